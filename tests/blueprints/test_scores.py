"""Attention scores of blueprints against real reference models."""

import pytest
import torch

from sigprop.blueprints import MLP, Transformer, predict
from sigprop.measurement import measure
from sigprop.models import build
from sigprop.models.layers import initialize_

SHAPE = {"depth": 2, "width": 64, "heads": 4}
TOKENS, WORDS, SEEDS = 48, 512, 8


@pytest.mark.parametrize(("kind", "gain"), [("encoder", 1.0), ("encoder", 3.0), ("decoder", 1.0), ("decoder", 3.0)])
def test_scores_agree_with_measurement(kind, gain):
    ids = torch.randint(WORDS, (1, TOKENS), generator=torch.Generator().manual_seed(0))

    def make():
        model = initialize_(build("transformer", kind=kind, context=TOKENS, vocabulary=WORDS, **SHAPE), "xavier",
                            embedding_std=1.0).eval()  # fmt: skip
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(("query.weight", "key.weight")):
                    weight.mul_(gain**0.5)
        return model

    blueprint = Transformer(kind=kind, tokens=TOKENS, vocabulary=WORDS, query_key_gain=gain, ids=ids[0], **SHAPE)
    predicted = predict(blueprint, scores=True)
    for row in measure(None, ids, build=make, seeds=SEEDS, scores=True, backward=False):
        if "entropy" not in row.extras:
            continue
        mine = predicted[row.name]
        assert mine.variance == pytest.approx(row.variance, abs=4 * row.errors["variance"] + 0.03 * row.variance)
        assert mine.extras["entropy"] == pytest.approx(row.extras["entropy"], abs=4 * row.errors["entropy"] + 0.02)
        assert mine.extras["largest_weight"] == pytest.approx(row.extras["largest_weight"], rel=0.1)


def test_all_layers_at_once_give_the_scores_of_the_chain():
    deep, chain = Transformer(depth=20), Transformer(depth=20, branch_scale=[1.0] * 20, skip_scale=[1.0] * 20)
    one, other = predict(deep, scores=True), predict(chain, scores=True)
    for layer in (0, 10, 19):
        name = f"blocks.{layer}.attention.scores"
        assert one[name].variance == pytest.approx(other[name].variance, rel=1e-5)
        assert one[name].extras["entropy"] == pytest.approx(other[name].extras["entropy"], rel=1e-5)


def test_a_network_without_attention_has_none():
    assert not [row for row in predict(MLP(depth=3), scores=True).sites if row.extras]

"""Tied heads and embedding tables, of models and of blueprints, against many initializations of the network."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.blueprints import Transformer
from sigprop.blueprints import predict as of_blueprint
from sigprop.blueprints.inits import InitScheme
from sigprop.capture import predict
from sigprop.measurement import measure
from sigprop.models import build

SEEDS = 24
SHAPE = {"kind": "decoder", "depth": 2, "width": 128, "heads": 4, "vocabulary": 256, "norm_placement": "pre"}
IDS = torch.multinomial(1 / torch.arange(1.0, 257), 32, True, generator=torch.Generator().manual_seed(3))


class SmallEmbedding(InitScheme):
    """Rows of unit norm, as a tied head needs them."""

    def embedding(self, blueprint):
        return 1.0 / blueprint.width


def loss(logits):
    return F.cross_entropy(logits[0], IDS.roll(-1))


def both(tied, branch_scale=1.0):
    """The profile of a blueprint, or with a tied head that of the model, and that of networks with its deviations."""
    blueprint = of_blueprint(Transformer(tokens=32, ids=IDS, init=SmallEmbedding(), **SHAPE, branch_scale=branch_scale))
    spread = {row.name: row.init_std for row in blueprint.parameters if len(row.shape) == 2}

    def make():
        model = build("transformer", context=32, **SHAPE, branch_scale=branch_scale, tied_head=tied)
        for name, parameter in model.named_parameters():
            if name in spread:
                nn.init.normal_(parameter, 0.0, spread[name])
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        return model

    predicted = predict(make, IDS[None], loss=loss) if tied else blueprint
    return predicted, measure(None, IDS[None], loss, build=make, seeds=SEEDS)


def assert_agree(predicted, measured, column, name):
    """Within four standard errors and what is left out at this width, of order 1/width."""
    rows = [p.parameter(name) if name.endswith("weight") else p[name] for p in (predicted, measured)]
    found, expected = (getattr(row, column) for row in rows)
    error = rows[1].errors[column]
    assert abs(found - expected) < 4 * error + 6 / SHAPE["width"] * expected, (name, found, expected, error)


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_of_tables_and_head(tied):
    predicted, measured = both(tied)
    for name in ("token_embedding.weight", "position_embedding.weight", *(() if tied else ("head.weight",))):
        assert_agree(predicted, measured, "grad_second_moment", name)
    for name in ("blocks.0", "blocks.1"):
        assert_agree(predicted, measured, "grad_variance", name)


def test_rows_that_reach_the_top_meet_the_head():
    predicted, measured = both(True, 0.03)
    apart, _ = both(False, 0.03)
    for column, name in (("variance", "head"), ("grad_variance", "head"), ("grad_variance", "final_norm")):
        assert_agree(predicted, measured, column, name)
    met = measured["head"]
    assert abs(apart["head"].grad_variance - met.grad_variance) > 0.2 * met.grad_variance

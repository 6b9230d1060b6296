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


class Experts(nn.Module):
    """A tied head above experts, to which tokens go by what they are."""

    def __init__(self, width=64, words=32):
        super().__init__()
        self.table, self.router = nn.Embedding(words, width), nn.Linear(width, 4, bias=False)
        self.experts, self.back = (nn.Parameter(torch.randn(4, width, width) / width**0.5) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.table(ids)
        best, chosen = self.router(x).softmax(-1).topk(1, -1)
        shares = torch.zeros(*x.shape[:-1], 4).scatter(-1, chosen, best)
        hidden = F.gelu(torch.einsum("btd,edh->bteh", x, self.experts))
        made = torch.einsum("bteh,ehd,bte->btd", hidden, self.back, shares)
        return F.linear(self.norm(x + made), self.table.weight)


def test_a_tied_head_above_experts_meets_its_rows(agreement):
    """The number of an expert was taken for that of a row, and the head for a lookup that picks rows by what they are:
    logits had none of what tokens say of their own rows."""
    agreement(Experts, torch.arange(16).view(2, 8), "noise", seeds=32, skip=("router", "router.weight"))


class Rolled(nn.Module):
    """A tied head above a function of several channels of its rows."""

    def __init__(self, width=64):
        super().__init__()
        self.table, self.norm = nn.Embedding(32, width), nn.LayerNorm(width)

    def forward(self, ids):
        x = self.table(ids)
        return F.linear(self.norm(x + x * x.roll(1, -1)), self.table.weight)


def test_a_tied_head_above_functions_of_its_rows_is_a_guess():
    """How much of its row a token still holds is not known: half of the variance of logits was missing."""
    rows = predict(Rolled(), torch.arange(16).view(2, 8), loss="noise").sites
    assert {row.status for row in rows if not row.name.startswith("table")} == {"assumed"}

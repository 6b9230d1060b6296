"""Models that multiply what they look up by the root of their width, inside the table's module or after it."""

import math

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.plans.scaling import coord_check
from sigprop.plans.scaling import plan as prescribe
from sigprop.structure import read_structure

WORDS = 23
IDS = torch.randint(0, WORDS, (3, 8), generator=torch.Generator().manual_seed(0))


class Table(nn.Embedding):
    """Gemma 3: a tensor of the module multiplies its rows."""

    def __init__(self, width):
        super().__init__(WORDS, width)
        self.register_buffer("factor", torch.tensor(math.sqrt(width)), persistent=False)

    def forward(self, ids):
        return super().forward(ids) * self.factor


class Model(nn.Module):
    def __init__(self, width, inside):
        super().__init__()
        self.table = Table(width) if inside else nn.Embedding(WORDS, width)
        self.after = None if inside else math.sqrt(width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.final, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, ids):
        x = self.table(ids)
        if self.after is not None:
            x = x * torch.tensor(self.after)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return self.head(self.final(x))


@pytest.mark.parametrize("inside", [False, True])
def test_the_factor_is_read_and_taken_back_in_draw_and_rate(inside):
    torch.manual_seed(0)
    model, base = Model(64, inside), Model(16, inside)
    scale = read_structure(model, IDS).table_scales["table.weight"]
    assert (scale.number, scale.inside) == (pytest.approx(8.0), inside)
    row = prescribe(model, "mup", base=base, batch=IDS)["table.weight"]
    assert row.lr == row.init.value == pytest.approx(0.5)
    steps = set()
    for width in (64, 256):
        row = sp.plan(Model(width, inside), "unit", width="mup", batch=IDS)["table.weight"]
        assert row.init.std == pytest.approx(width**-0.5)
        steps.add(round(row.lr / row.init.std, 6))
    assert len(steps) == 1


@pytest.mark.parametrize("inside", [False, True])
def test_the_coordinate_check_passes_with_it_and_fails_without(inside):
    options = {"batch": IDS, "seeds": 2, "steps": 2, "lr": 1e-2}

    def make(width):
        return Model(width, inside)

    def kept(model, base):
        made = prescribe(model, "mup", base=base, batch=IDS)
        row = made["table.weight"]
        made.parameters[made.parameters.index(row)] = type(row)(row.name, row.shape, role=row.role)
        return made

    good, bad = (coord_check(make, [16, 32, 64], plan=plan, **options) for plan in ("mup", kept))
    assert good.passed, [str(item) for item in good.culprits]
    assert {item.name for item in bad.culprits} == {"table.weight"}

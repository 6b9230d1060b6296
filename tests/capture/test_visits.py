"""Blocks that are visited again: stream, gradients and weights against 64 initializations, and what stays in doubt."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sigprop as sp
from studies.compositions.networks import Attention, Feedforward, he
from studies.looped_stacks import TOKENS, WIDTH, Looped

X = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(0))
COLUMNS = ("variance", "grad_variance", "grad_second_moment")


def rows_of(build, inputs: Tensor, seeds: int = 64) -> tuple[list, dict[str, list[float]]]:
    """Rows of theory alone, and of those that state an error, how far from the measured average they are, in units of
    that error and four standard errors."""
    theory = sp.predict(build, inputs, loss="noise", verify=0)
    real = sp.measure(build, inputs, "noise", seeds=range(500, 500 + seeds), progress=False)
    rows, measured = [*theory.sites, *theory.parameters], {row.name: row for row in (*real.sites, *real.parameters)}
    far: dict[str, list[float]] = {column: [] for column in COLUMNS}
    for row in rows:
        for column, stated in row.stated_errors.items():
            there, error = getattr(measured[row.name], column), measured[row.name].errors[column]
            far[column].append(abs(getattr(row, column) - there) / (stated * getattr(row, column) + 4.0 * error))
    return rows, far


@pytest.mark.parametrize(("block", "visits"), [("MLP", 4), ("MLP", 12), ("attention and MLP", 4)])
def test_streams_grow_as_visits_that_add_nearly_the_same_vector(block, visits):
    inputs = torch.randn(*TOKENS[block], WIDTH, generator=torch.Generator().manual_seed(7))
    _, far = rows_of(partial(Looped, block, "shared", visits), inputs)
    assert max(map(max, far.values())) <= 1.0
    assert len(far["variance"]) > 6 * visits
    assert len(far["grad_second_moment"]) > 3
    theory = sp.predict(partial(Looped, block, "shared", visits), inputs, loss="noise", verify=0)
    apart = sp.predict(partial(Looped, block, "separate", visits), inputs, loss="noise", verify=0)
    for column, most in (
        ("variance", "end"),
        ("grad_variance", "start"),
    ):  # the same without what visits share is wrong
        assert getattr(theory[most], column) > 2.0 * getattr(apart[most], column)


class Loop(nn.Module):
    """`x + scale f(norm(x))`, visited again; with an embedding of each step, or weights that start anew."""

    def __init__(self, block, visits=5, norm=nn.LayerNorm, steps=False, post=False, cut=0, scale=1.0):
        super().__init__()
        self.first, self.norm, self.block, self.head = nn.Linear(16, WIDTH), norm(WIDTH), block(), nn.Linear(WIDTH, 8)
        self.visits, self.post, self.cut, self.scale = visits, post, cut, scale
        self.steps = nn.Parameter(torch.empty(visits, WIDTH)) if steps else None
        he(self)
        if self.steps is not None:
            nn.init.normal_(self.steps)

    def forward(self, x):
        x = self.first(x)
        for number in range(self.visits):
            x = x.detach() if number < self.cut else x
            x = x if self.steps is None else x + self.steps[number]
            x = self.norm(x + self.scale * self.block(x)) if self.post else x + self.scale * self.block(self.norm(x))
        return self.head(x)


def mlp(act=nn.ReLU):
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), act(), nn.Linear(WIDTH, WIDTH))


class Gated(nn.Module):
    """SwiGLU; with gate and values of one map it is drawn as a whole."""

    def __init__(self, fused: bool):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = None if fused else nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        value, gate = self.up(x).chunk(2, -1)
        return self.down(value * F.silu(gate if self.gate is None else self.gate(x)))


SURE = {
    "gelu": partial(Loop, partial(mlp, nn.GELU)),
    "RMSNorm": partial(Loop, mlp, norm=nn.RMSNorm),
    "post-norm": partial(Loop, mlp, post=True),
    "no norm": partial(Loop, mlp, 4, norm=lambda width: nn.Identity(), scale=0.5),
    "steps": partial(Loop, partial(mlp, nn.Tanh), steps=True),
    "cut": partial(Loop, mlp, cut=2),
    "gated": partial(Loop, partial(Gated, fused=False)),
    "attention": partial(Loop, partial(Attention, WIDTH, 4, causal=False), 4),
}


@pytest.mark.parametrize("name", SURE)
def test_what_is_known_is_right(name):
    rows, far = rows_of(SURE[name], X)
    assert max(map(max, filter(None, far.values()))) <= 1.0
    assert sum(row.status == "assumed" for row in rows) <= len(rows) / 3


class Returned(nn.Module):
    """Its own output comes back through the transpose."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.relu(self.map(x)) @ self.map.weight


class Recurrent(nn.Module):
    """A cell unrolled by hand: the last state, or those of all steps."""

    def __init__(self, every: bool):
        super().__init__()
        self.input, self.state, self.head = nn.Linear(16, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.every = every

    def forward(self, x):
        states = [torch.zeros(len(x), WIDTH)]
        for step in range(x.shape[1]):
            states.append(torch.tanh(self.input(x[:, step]) + self.state(states[-1])))
        return self.head(torch.stack(states[1:], 1) if self.every else states[-1])


DOUBTED = {
    "drawn as a whole": partial(Loop, partial(Gated, fused=True)),
    "transpose": partial(Loop, Returned),
    "function at the end": partial(Loop, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())),
    "last state": partial(Recurrent, every=False),
    "every state": partial(Recurrent, every=True),
    "deep, without a norm": partial(Loop, mlp, 16, norm=lambda width: nn.Identity(), scale=0.3),
}


@pytest.mark.parametrize("name", DOUBTED)
def test_what_is_not_known_is_a_guess(name):
    rows, far = rows_of(DOUBTED[name], X)
    assert max(map(max, filter(None, far.values()))) <= 1.0
    assert any(row.status == "assumed" for row in rows)


def test_feedforward_of_one_weight_and_of_others_grow_apart():
    """A block of which one half has weights of its own at every visit, as adapters of a shared block have."""

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.shared = nn.Linear(16, WIDTH), nn.Sequential(nn.LayerNorm(WIDTH), Feedforward(WIDTH))
            self.own = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), mlp()) for _ in range(4))
            he(self)

        def forward(self, x):
            x = self.first(x)
            for own in self.own:
                x = x + self.shared(x)
                x = x + own(x)
            return x

    rows, far = rows_of(Half, X)
    assert max(map(max, far.values())) <= 1.0
    assert all(row.status != "assumed" for row in rows)

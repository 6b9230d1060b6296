"""Mixtures of experts as people write them: which expert a token goes to is drawn with its share, or is in doubt."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, predict
from sigprop.capture.rules import contraction
from sigprop.graph.evaluate import ROUTED
from sigprop.measurement import measure

TOKENS = torch.randn(2, 12, 24, generator=torch.Generator().manual_seed(1))


def masked(p, indices):
    return torch.zeros_like(p, dtype=torch.bool).scatter_(-1, indices, True)


SHARES = {
    "scatter": lambda p, best: torch.zeros_like(p).scatter(-1, best.indices, best.values),
    "equality": lambda p, best: best.values * (best.indices == torch.arange(4)),
    "argmax": lambda p, best: p * (p.argmax(-1, keepdim=True) == torch.arange(4)),
    "mask": lambda p, best: p * torch.zeros_like(p).scatter_(-1, best.indices, 1.0),
    "masked_fill": lambda p, best: p.masked_fill(~masked(p, best.indices), 0.0),
    "one_hot": lambda p, best: p * F.one_hot(p.argmax(-1), 4).type_as(p),
    "einsum": lambda p, best: torch.einsum("btk,btke->bte", best.values, F.one_hot(best.indices, 4).float()),
}
"""Shares of four experts, of which each token goes to the first."""


class Routed(nn.Module):
    """Each token through one of four experts, and few tokens."""

    def __init__(self, shares, width=48):
        super().__init__()
        self.first, self.router, self.shares = nn.Linear(24, width), nn.Linear(width, 4, bias=False), SHARES[shares]
        self.experts, self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(4)), nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x)
        p = self.router(x).softmax(-1)
        shares = self.shares(p, p.topk(1, -1))
        return self.out(x + sum(shares[..., n, None] * expert(x) for n, expert in enumerate(self.experts)))


@pytest.mark.parametrize("shares", SHARES)
def test_which_expert_is_chosen_is_no_draw_of_its_own(shares):
    """Tokens were routed once, so that of 24 an expert saw up to twice as many as it does; and not as the shares say
    that they multiply, so that these were a third too small."""
    make = partial(Routed, shares)
    measured, predicted = (
        measure(None, TOKENS, "noise", build=make, seeds=50),
        predict(build(make), TOKENS, loss="noise"),
    )
    seen, told = ([row for row in made.parameters if "experts" in row.name] for made in (measured, predicted))
    expected, found = ([row.grad_second_moment for row in rows[::2]] for rows in (seen, told))
    error = math.hypot(*(row.errors["grad_second_moment"] for row in seen[::2]))
    assert abs(sum(found) - sum(expected)) < 4.0 * error
    assert max(found) < 1.3 * min(found)


class Picked(Routed):
    """The same, each expert on its own tokens."""

    def forward(self, x):
        x = self.first(x.flatten(0, 1))
        best, made = self.router(x).softmax(-1).topk(1, -1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            tokens, place = torch.where(best.indices == number)
            made.index_add_(0, tokens, best.values[tokens, place, None] * expert(x[tokens]))
        return self.out(x + made)


def test_weights_that_see_tokens_picked_once_are_guesses():
    """How many tokens an expert sees is that of one initialization; the other weights see all."""
    told = {row.name: row.reason for row in predict(build(partial(Picked, "scatter")), TOKENS, loss="noise").parameters}
    assert all(told[f"experts.{number}.weight"] == ROUTED for number in range(4))
    assert ROUTED not in (told["router.weight"], told["first.weight"], told["out.weight"])


def test_weights_that_see_tokens_picked_once_count_those_of_the_average():
    """They had the gradient of the one draw, from a quarter to twice what it is."""
    make = partial(Picked, "scatter")
    measured, told = measure(None, TOKENS, "noise", build=make, seeds=100), predict(build(make), TOKENS, loss="noise")
    for row in (item for item in measured.parameters if "experts" in item.name):
        found, error = told.parameter(row.name).grad_second_moment, row.errors["grad_second_moment"]
        assert abs(found - row.grad_second_moment) < 4.0 * error + 0.15 * row.grad_second_moment, row.name


class Many(Picked):
    """More experts than the draw has tokens for."""

    def __init__(self, width=48):
        super().__init__("scatter", width)
        self.router = nn.Linear(width, 40, bias=False)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(40))


def test_an_expert_that_no_token_was_drawn_for_makes_nothing():
    """It was a fault. Of few tokens no average is known."""
    told = predict(build(Many), TOKENS, loss="noise")
    assert all(math.isfinite(row.variance) for row in told.sites if not row.name.startswith("experts"))
    assert all(row.status == "assumed" for row in told.sites if row.name.startswith("experts"))


class Dispatched(Routed):
    """Tokens put into the slots of their experts by a product with ones, and taken back from there; what is beyond an
    expert's slots is dropped."""

    def forward(self, x, slots=8):
        x = self.first(x)
        p = self.router(x).softmax(-1)
        shares, index = p.max(-1)
        mask = F.one_hot(index, 4).float()
        place = (mask.cumsum(1) - 1.0) * mask
        sent = F.one_hot(place.sum(-1).long(), 12).float()[:, :, None] * (mask * (place < slots))[..., None]
        inside = torch.einsum("btes,btd->ebsd", sent, x)
        made = torch.stack([torch.relu(expert(inside[n])) for n, expert in enumerate(self.experts)])
        return self.out(x + torch.einsum("btes,ebsd->btd", sent * shares[..., None, None], made))


class Deep(Routed):
    """The tokens with the largest score through one expert, added where they stood; the later ones are larger."""

    def forward(self, x):
        x = self.first(x) * torch.arange(12.0)[:, None]
        best, index = self.router(x)[..., 0].topk(6, dim=1)
        index, order = index.sort(dim=1)
        places = index[..., None].expand(-1, -1, x.shape[-1])
        made = torch.relu(self.experts[0](x.gather(1, places))) * best.gather(1, order).sigmoid()[..., None]
        return self.out(torch.zeros_like(x).scatter_add(1, places, made))


@pytest.mark.parametrize("kind", [Dispatched, Deep])
def test_a_choice_that_sends_tokens_and_takes_them_back_is_one(kind):
    """What experts make was drawn with every slot alike, and slots that no token was sent to were read: 0.3 of the
    variance. Where sorted places were drawn once, the choice before and behind the expert were two."""
    make = partial(kind, "argmax")
    measured, told = measure(None, TOKENS, "noise", build=make, seeds=100), predict(build(make), TOKENS, loss="noise")
    found = [item for item in told.compare(measured).differences if item.column != "token_correlation"]
    found = [item for item in found if item.standard_error > 0.0 and item.column != "mean"]
    assert len(found) > 12
    assert max(abs(item.error) / (item.standard_error + 0.02 * item.reference) for item in found) < 5.0


class Sent(nn.Module):
    """Shares that are zero at what is not chosen multiply what experts see (Llama 4)."""

    def __init__(self, width=48):
        super().__init__()
        self.first, self.router = nn.Linear(24, width), nn.Linear(width, 4, bias=False)
        self.gates, self.back = (nn.Parameter(torch.randn(4, width, n) / width**0.5) for n in (2 * width, width))

    def forward(self, x):
        x = self.first(x).flatten(0, 1)
        best = self.router(x).topk(1, -1)
        shares = torch.full((len(x), 4), -math.inf).scatter(-1, best.indices, best.values).sigmoid()
        seen = (x.repeat(4, 1) * shares.T.reshape(-1, 1)).view(4, len(x), -1)
        gate, up = torch.bmm(seen, self.gates).chunk(2, -1)
        return torch.bmm(F.silu(gate) * up, self.back).sum(0)


def test_products_of_what_is_sent_or_zero(agreement):
    """A quarter of the gradients: where one of four tokens is there, the square of its energy is four times that of the
    average."""
    agreement(Sent, TOKENS, loss="noise", seeds=64)


def test_many_weights_behind_what_is_sent_are_guesses(monkeypatch):
    monkeypatch.setattr(contraction, "DRAWN", 16)
    assert {row.status for row in predict(build(Sent), TOKENS, loss="noise").parameters} == {"assumed"}

"""A norm above takes out what a gradient has along the signal: numbers that scale a whole tensor receive none of it."""

import pytest
import torch
from torch import nn

from sigprop.capture import build, predict

IDS = torch.arange(6)[None]


class Scaled(nn.Module):
    """A function without a rule, scaled by one number for each head, inside of it or above, and a norm above that."""

    def __init__(self, heads, inside, width=64):
        super().__init__()
        self.table, self.map, self.out = nn.Embedding(16, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.heads, self.inside = nn.LayerNorm(width), heads, inside
        self.sizes = nn.Parameter(torch.ones(heads))

    def forward(self, ids):
        x = self.map(self.table(ids)).unflatten(-1, (self.heads, -1))
        sizes = self.sizes[:, None]
        y = x * sizes * x.roll(1, -1) if self.inside else x * x.roll(1, -1) * sizes
        return self.norm(self.out(y.flatten(-2)))


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("inside", [True, False])
def test_what_scales_a_tensor_below_a_norm(agreement, heads, inside):
    found = agreement(lambda: Scaled(heads, inside), IDS, seeds=48, skip=() if inside else ("sizes",))
    status = {row.name: row.status for row in found.parameters}
    assert (status["sizes"] == "assumed") == (not inside or heads == 1)
    assert status["map.weight"] != "assumed"


class Steered(nn.Module):
    """Steps of one channel for all others, in a scan below a norm."""

    def __init__(self, width=64):
        super().__init__()
        self.table, self.step, self.out = nn.Embedding(16, width), nn.Linear(width, 2), nn.Linear(width, width)
        self.norm, self.seen = nn.LayerNorm(width), nn.Identity()

    def forward(self, ids):
        x = self.table(ids)
        kept, taken = self.seen(torch.sigmoid(self.step(x))).unbind(-1)
        state, states = torch.zeros_like(x[:, 0]), []
        for token in range(ids.shape[1]):
            state = kept[:, token, None] * state + taken[:, token, None] * x[:, token]
            states.append(state)
        return self.norm(self.out(torch.stack(states, 1)))


def test_few_channels_that_steer_many_are_a_guess_below_a_norm():
    found = predict(build(Steered), IDS)
    rows = {row.name: row for row in (*found.sites, *found.parameters)}
    assert all(rows[name].status == "assumed" for name in ("step", "seen", "step.weight"))
    assert "steer" in rows["step"].reason or "norms that vary too much" in rows["step"].reason
    assert rows["step"].stated_errors.keys() == {"variance"}


class Difference(nn.Module):
    """Attention less a part of another, under a norm of each head's output or not (differential transformers)."""

    def __init__(self, normed, width=64):
        super().__init__()
        self.table, self.maps, self.out = nn.Embedding(16, width), nn.Linear(width, 5 * width), nn.Linear(width, width)
        self.norm, self.less = nn.RMSNorm(32) if normed else nn.Identity(), nn.Parameter(torch.randn(16) * 0.1)

    def forward(self, ids):
        parts = self.maps(self.table(ids)).chunk(5, -1)
        q, k, other_q, other_k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
        one, two = ((x @ y.mT / 6.0).softmax(-1) for x, y in ((q, k), (other_q, other_k)))
        return self.out(self.norm((one - (self.less.sum() + 0.5) * two) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("normed", [True, False])
def test_a_number_in_attention_weights_is_a_guess_below_a_norm(normed):
    """What attention makes is nearly along what the number takes away: four to eight times too large."""
    found = predict(build(lambda: Difference(normed)), IDS)
    assert (found.parameter("less").status == "assumed") == normed
    assert found.parameter("maps.weight").status != "assumed"

"""Filters over time whose poles and residues are complex, as diagonal state spaces have them."""

import torch
from torch import nn

from sigprop.capture import build, predict

TOKENS = torch.randn(3, 12, 24, generator=torch.Generator().manual_seed(1))


class Filtered(nn.Module):
    """Each channel through a filter of its own by Fourier transforms over time."""

    def __init__(self, width=32, states=4):
        super().__init__()
        self.first, self.mix, self.width = nn.Linear(24, width), nn.Linear(width, 10), width
        self.decay, self.turns = nn.Parameter(torch.rand(width, states)), nn.Parameter(torch.randn(width, states))
        self.residue = nn.Parameter(torch.randn(width, states, 2) * 0.5)

    def forward(self, x):
        x = self.first(x).transpose(1, 2)
        moved = torch.complex(-self.decay.exp(), self.turns)
        steps = (moved[..., None] * torch.arange(12)).exp()
        kernel = torch.einsum("ds,dst->dt", torch.view_as_complex(self.residue), steps).real
        y = torch.fft.irfft(torch.fft.rfft(x, n=24) * torch.fft.rfft(kernel, n=24), n=24)[..., :12]
        return self.mix((y + x).transpose(1, 2))


def test_complex_functions_of_weights_have_gradients(agreement):
    """What was made of them was taken as fixed numbers, so that they had no gradient."""
    agreement(Filtered, TOKENS, "noise", seeds=60)


def test_a_transform_over_time_leaves_channels_independent():
    """Only one over channels makes pairs of them equal."""
    assert {row.status for row in predict(build(Filtered), TOKENS, loss="noise").sites} == {"sampled"}

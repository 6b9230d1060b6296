"""Tensors of many positions: a row that is not followed says so."""

import math

import torch
from torch import nn

from sigprop.capture import predict


def test_a_site_of_too_many_positions_is_a_row_that_says_so():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), Between(), nn.Flatten(), nn.Linear(4 * 36 * 36, 3))
    names = [name for name, _ in model.named_modules() if name]
    found = predict(model, torch.randn(1, 1, 36, 36))
    assert set(names) <= {row.name for row in found}
    for row in found:
        assert math.isfinite(row.variance) or "positions" in row.reason


class Between(nn.Module):
    """Gives a tensor that is only a step on the way of a sampled one."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Softplus()

    def forward(self, x):
        y = self.inner(x * x.sin())
        return (y * x.cos()).tanh()

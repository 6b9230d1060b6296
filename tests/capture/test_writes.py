"""Writes into tensors, directly and through views, are part of what is predicted."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Written(nn.Module):
    """Two halves of a tensor filled by different maps, in one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.left, self.right, self.head = nn.Linear(16, 64), nn.Linear(16, 64), nn.Linear(128, 3)

    def forward(self, x):
        left, right = 3.0 * self.left(x), self.right(x)
        out = left.new_full((x.shape[0], 128), float("nan"))
        if self.how == "items":
            out[:, :64] = left
            out[:, 64:] = right
        else:
            out[:, :64].copy_(left)
            out[:, 64:].copy_(right)
        return self.head(out)


@pytest.mark.parametrize("how", ["items", "views"])
def test_written_halves(agreement, how):
    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    agreement(lambda: Written(how), x, lambda out: F.mse_loss(out, torch.zeros(6, 3)))

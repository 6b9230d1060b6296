"""BatchNorm in networks of images: branches that begin at zero."""

import torch
from torch import nn

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Begun(nn.Module):
    """A residual branch whose last norm has a gain of zero."""

    def __init__(self, width=48):
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm, self.head = nn.BatchNorm2d(width), nn.Linear(width, 8)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        x = self.stem(x)
        return self.head(torch.relu(x + self.norm(self.inner(torch.relu(x)))).mean((2, 3)))


def test_a_gain_of_zero(agreement):
    """The gradient below it was zero over zero, and no number below a branch had one."""
    found = agreement(Begun, X)
    assert found["inner"].grad_variance == found.parameter("inner.weight").grad_second_moment == 0.0

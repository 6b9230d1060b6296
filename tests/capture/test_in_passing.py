"""What losses and layers of public repositories call, in passing."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop import predict
from studies.corpus.witness import witnessed

FRACTIONS = (torch.arange(9) + 0.5) / 9


def quantile_huber(output):
    """Of QR-DQN: a comparison as numbers."""
    error = torch.linspace(-1.0, 2.0, 9)[None, None] - output[:, :, None]
    size = torch.where(error.abs() < 1, 0.5 * error**2, error.abs() - 0.5)
    return ((FRACTIONS[None, :, None] - (error.detach() < 0).float()).abs() * size).sum(1).mean()


class Pooled(nn.Module):
    """One number of each channel, spread over an image again, beside the image."""

    def __init__(self):
        super().__init__()
        self.stem, self.pooled, self.out = nn.Conv2d(3, 24, 3), nn.Conv2d(24, 24, 1), nn.Conv2d(48, 16, 1)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        of_all = torch.relu(self.pooled(F.adaptive_avg_pool2d(x, 1)))
        return self.out(torch.cat([x, F.interpolate(of_all, size=x.shape[2:], mode="bilinear")], 1))


def quantiles():
    return nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 9))


@pytest.mark.parametrize(
    ("make", "shape", "loss"), [(quantiles, (12, 16), quantile_huber), (Pooled, (3, 3, 8, 8), None)]
)
def test_it_is_followed(make, shape, loss):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    profile, seen = predict(make, x, loss=loss or "noise", verify=0), witnessed(make, x, loss, 24)
    for row in profile.sites:
        for column in ("variance", "grad_variance"):
            mean, error = seen[row.name][column]
            assert abs(getattr(row, column) - mean) < 4 * error + row.stated_errors[column] * mean, (row.name, column)


def test_spectral_norm_of_old_builds_as_the_new_one():
    norms = (nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm)
    new, old = (predict(lambda norm=norm: norm(nn.Linear(64, 96)), torch.ones(4, 64), verify=0) for norm in norms)
    assert old["(output)"].variance == pytest.approx(new["(output)"].variance, rel=0.4)


class OnePairAndAQueue(nn.Module):
    """Contrastive: the logit of a pair stands beside those of others, and is larger."""

    def __init__(self):
        super().__init__()
        self.pair, self.others = nn.Linear(32, 1), nn.Linear(32, 15)
        nn.init.constant_(self.pair.bias, 3.0)

    def forward(self, x):
        return torch.cat([self.pair(x), self.others(x)], 1)


def test_classes_that_are_not_alike():
    def loss(output):
        return F.cross_entropy(output, torch.zeros(12, dtype=torch.long))

    x = torch.randn(12, 32, generator=torch.Generator().manual_seed(0))
    row = predict(OnePairAndAQueue, x, loss=loss, verify=0)["(output)"]
    mean, error = witnessed(OnePairAndAQueue, x, loss, 24)["(output)"]["grad_variance"]
    assert abs(row.grad_variance - mean) < 4 * error + row.stated_errors["grad_variance"] * mean


@pytest.mark.parametrize(("std", "status"), [(0.2, "sampled"), (6.0, "assumed")])
def test_probabilities_near_zero_and_one(std, status):
    """`1 / (p (1 - p))` of a few logits is all of the gradient at a sigmoid."""

    def make():
        model = nn.Sequential(nn.Linear(24, 1), nn.Sigmoid())
        nn.init.normal_(model[0].weight, std=std / 24**0.5)
        return model

    def loss(output):
        return F.binary_cross_entropy(output[:, 0], (torch.arange(16) % 3 == 0).float())

    x = torch.randn(16, 24, generator=torch.Generator().manual_seed(0))
    profile = predict(make, x, loss=loss, verify=0)
    assert (profile["(output)"].status, profile["0"].status) == (status, "sampled")

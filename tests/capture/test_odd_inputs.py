"""Norms of the raw input, token shifts, padding: against measurement over fresh initializations."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.capture import build, predict
from sigprop.measurement import measure

_GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(2, 8, 24, generator=_GENERATOR) * 3 + 1
IMAGES = torch.randn(4, 3, 8, 8, generator=_GENERATOR) + 0.5


class Shifted(nn.Module):
    """Tokens moved by one, as in RWKV."""

    def __init__(self, pad: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 96), nn.Linear(96, 96)
        self.pad = pad

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(F.pad(h, self.pad) + (h if F.pad(h, self.pad).shape == h.shape else 0.0))


@pytest.mark.parametrize("pad", [(0, 0, 1, -1), (0, 0, -1, 1), (0, 0, 2, 0), (0, 0, 0, -3), (0, 0, 1, -1, 0, 0)])
def test_token_shift(agreement, pad):
    agreement(lambda: Shifted(pad), X, "noise", seeds=30)


def test_a_shift_is_not_the_identity():
    """The first token has nothing before it."""
    rows = predict(build(lambda: Shifted((0, 0, 1, -1))), X, loss="noise")
    plain = predict(build(lambda: Shifted((0, 0, 0, 0))), X, loss="noise")
    assert rows["second"].variance < 0.8 * plain["second"].variance


@pytest.mark.parametrize(
    ("norm", "batch"),
    [
        (lambda: nn.LayerNorm(24), X),
        (lambda: nn.RMSNorm(24), X),
        (lambda: nn.LayerNorm(24, elementwise_affine=False), X),
        (lambda: nn.GroupNorm(1, 3), IMAGES),
        (lambda: nn.BatchNorm2d(3), IMAGES),
    ],
)
def test_a_norm_of_the_raw_input(norm, batch):
    def make() -> nn.Module:
        after = nn.Linear(24, 64) if batch is X else nn.Conv2d(3, 64, 1)
        return nn.Sequential(norm(), after, nn.ReLU(), nn.Linear(64, 8) if batch is X else nn.Conv2d(64, 8, 1))

    predicted, measured = (
        predict(build(make), batch, loss="noise"),
        measure(None, batch, "noise", build=make, seeds=30),
    )
    for name in ("1", "3"):
        error = measured[name].errors["variance"]
        assert abs(predicted[name].variance - measured[name].variance) < 5 * error + 0.02 * measured[name].variance
    for row in measured.parameters:
        if row.name in ("1.weight", "3.weight"):
            made = predicted.parameter(row.name).grad_second_moment
            assert (
                abs(made - row.grad_second_moment)
                < 5 * row.errors["grad_second_moment"] + 0.03 * row.grad_second_moment
            )


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.first = nn.Embedding(16, 96), nn.Linear(96, 96)
        self.head = nn.Linear(96, 16)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.first(self.embedding(input_ids)) * attention_mask[..., None]
        return self.head(h.cumsum(1))


def test_rows_leave_padding_out_as_measured_ones_do():
    ids = torch.randint(16, (2, 10), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[0, 6:] = 0
    mask[1, 3:] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    predicted, measured = (
        predict(build(Padded), batch, loss="noise"),
        measure(None, batch, "noise", build=Padded, seeds=40),
    )
    for name in ("first", "head"):
        for column in ("variance", "token_correlation", "grad_variance"):
            error = measured[name].errors[column]
            assert abs(getattr(predicted[name], column) - getattr(measured[name], column)) < 5 * error, (name, column)


class Neighbours(nn.Module):
    """The raw input, scaled or shifted by parameters, and sums of its neighbours, as in a graph network."""

    def __init__(self, first, width=128):
        super().__init__()
        self.factor, self.gain, self.shift = (
            nn.Parameter(torch.zeros(1)),
            nn.Parameter(torch.ones(24)),
            nn.Parameter(torch.zeros(24)),
        )
        self.first, self.sum = first, nn.Identity()
        self.map, self.readout = nn.Linear(24, width), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.sum(self.first(self, x) + (x.roll(1, 1) + x.roll(-1, 1)))
        return self.readout(torch.relu(self.map(x)))


@pytest.mark.parametrize(
    "first",
    [lambda net, x: (1.0 + net.factor) * x, lambda net, x: x * net.gain, lambda net, x: net.shift + x],
    ids=["factor", "gain", "shift"],
)
def test_parameters_on_the_raw_input_keep_its_numbers(first, agreement):
    """The product was a table of parameters with independent entries: tokens had a correlation of 0.02 for 0.22."""
    smooth = X - 1.0 + X.roll(2, 1)
    predicted = agreement(lambda: Neighbours(first), smooth, "noise", seeds=40, width=30)
    actual = measure(None, smooth, "noise", build=lambda: Neighbours(first), seeds=1)
    assert predicted["sum"].variance == pytest.approx(actual["sum"].variance, rel=1e-4)
    assert predicted["sum"].token_correlation == pytest.approx(actual["sum"].token_correlation, abs=1e-4)


class Differentiated(nn.Module):
    """A convolution of an input that the model itself makes require a gradient, as for gradient checkpoints."""

    def __init__(self, requires_grad):
        super().__init__()
        self.first, self.norm = nn.Conv1d(1, 16, 5, 3, bias=False), nn.GroupNorm(16, 16)
        self.second, self.requires_grad = nn.Conv1d(16, 16, 3), requires_grad

    def forward(self, x: Tensor) -> Tensor:
        x.requires_grad = self.requires_grad
        return self.second(F.gelu(self.norm(self.first(x))))


def test_an_input_that_requires_a_gradient_is_predicted_as_one_that_does_not():
    waves = torch.randn(2, 1, 100, generator=torch.Generator().manual_seed(0))
    without, given = (
        predict(build(partial(Differentiated, requires_grad)), waves.clone(), loss="noise")
        for requires_grad in (False, True)
    )
    for name in ("first", "norm", "second"):
        assert given[name].variance == without[name].variance > 0.0
        assert given[name].grad_variance == without[name].grad_variance > 0.0

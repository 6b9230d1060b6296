"""Tensors and parameters: as by the definition, whatever their mean, size and layout."""

import math
import statistics

import pytest
import torch
from torch import nn

from sigprop.measurement import measure
from sigprop.measurement.measurement import deviation
from sigprop.measurement.moments import Moments
from sigprop.measurement.parameters import square_of, total_of

MASK = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)) > 0.3


def tensors():
    """Of one shape: ordinary, with a large mean, tiny, huge, constant, zero, with a token of zeros, not finite."""
    drawn = torch.randn(9, 3, 20, 48, generator=torch.Generator().manual_seed(0))
    drawn[1] += 100.0
    drawn[2] *= 1e-15
    drawn[3] *= 1e17
    drawn[4] = 0.3
    drawn[5] = 0.0
    drawn[6, :, 4] = 0.0
    drawn[7, 1, 2, 3] = math.nan
    return drawn


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def reduced(x, signal, mask=None):
    made = Moments()
    return (made.signal if signal else made.gradient)(x, mask).tolist()


def exact(x, signal, mask):
    """From the definition, pair by pair, in float64."""
    x = x.double()
    mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    mean = x[mask].mean() if signal else torch.zeros(())
    centred = x - mean
    cosines = []
    for rows, kept in zip(centred, mask, strict=True):
        norms = rows.norm(dim=-1)
        unit = (rows / norms[:, None])[kept & (norms > 1e-6 * centred.norm(dim=-1).max())]
        if len(unit) > 1:
            cosines.append(((unit @ unit.T).sum() - len(unit)) / (len(unit) * (len(unit) - 1)))
    cosine = torch.stack(cosines).mean() if cosines else torch.tensor(math.nan)
    return [float(mean), float(centred[mask].square().mean()), float(cosine)]


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@pytest.mark.parametrize("signal", [True, False], ids=["signal", "gradient"])
@pytest.mark.parametrize("image", [False, True], ids=["channels last", "channels first"])
def test_each_is_reduced_as_defined(signal, mask, image):
    for number, x in enumerate(tensors()):
        expected = exact(x, signal, mask)
        found = reduced(x.mT.contiguous().mT if image else x, signal, mask)
        scale = max(abs(expected[0]), math.sqrt(expected[1]))
        assert found[0] == pytest.approx(expected[0], abs=1e-6 * scale, nan_ok=True)
        assert found[1] == pytest.approx(expected[1], rel=1e-6, abs=1e-12 * scale**2, nan_ok=True)
        if number != 4 or not signal:  # tokens of a constant signal have no direction
            assert found[2] == pytest.approx(expected[2], abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_formats_of_tensors(dtype):
    x = (random(4, 50, 64) + 0.5).to(dtype)
    for signal in (True, False):
        assert reduced(x, signal) == pytest.approx(exact(x, signal, None), rel=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e15, 1e25])
def test_tiny_and_huge_values(scale):
    x = random(3, 70, 60) * scale
    for signal in (True, False):
        assert reduced(x, signal) == pytest.approx(exact(x, signal, None), rel=1e-6)


@pytest.mark.parametrize("offset", [5.0, 1e3, 1e5])
def test_a_mean_that_dominates(offset):
    x = random(4, 50, 64) + offset
    assert reduced(x, True) == pytest.approx(exact(x, True, None), rel=1e-6, abs=1e-6)


def test_tokens_without_a_direction():
    x = random(2, 6, 8)
    x[0, 1] = 0.0
    x[1, 2:] = 1e-9
    x[1, 3] = 0.0
    assert reduced(x, False) == pytest.approx(exact(x, False, None), rel=1e-6)
    mean, variance, correlation = reduced(torch.zeros(2, 6, 8), False)
    assert (mean, variance) == (0.0, 0.0)
    assert math.isnan(correlation)
    assert math.isnan(reduced(random(5, 1, 8), True)[2])


WRITES = {
    "in place": lambda x: x.zero_(),
    "by its data": lambda x: x.data.zero_(),
    "through a view": lambda x: x[1].zero_(),
    "by numpy": lambda x: x.numpy().fill(0.0),
}


class Writes(nn.Module):
    """Overwrites what the module before it has put out, by a way that torch may not see."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def forward(self, x):
        with torch.no_grad():
            self.write(x)
        return x.sum(-1)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_was_seen_may_be_overwritten(write):
    x = random(2, 8, 16)
    model = nn.Sequential(nn.Identity(), nn.Identity(), Writes(write))
    assert not x.requires_grad
    row = measure(model, x, backward=False)["0"]
    assert [row.mean, row.variance, row.token_correlation] == pytest.approx(exact(x, True, None), rel=1e-5, abs=1e-6)


def test_a_buffer_that_a_module_returns_and_writes_stays_where_it_is():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.ones(4, 16))

        def forward(self, x):
            self.kept.add_(1.0)
            return self.kept

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.keeps, self.linear = Keeps(), nn.Linear(16, 16)

        def forward(self, x):
            kept = self.keeps(x)
            kept.data.mul_(3.0)
            return self.linear(x + kept)

    model = Model()
    view = model.keeps.kept.numpy()
    profile = measure(model, torch.zeros(4, 16))
    assert next(row for row in profile.sites if row.name == "keeps").mean == 2.0
    assert (view == 1.0).all()
    model.keeps.kept.add_(1.0)
    assert (view == 2.0).all(), "NumPy's array and the buffer are one memory"


def test_sums_of_small_and_large_parameters():
    generator = torch.Generator().manual_seed(0)
    shapes = [(7,), (300,), (64, 3, 3, 3), (513, 1000), (1,)]
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    made += [torch.zeros(40), torch.ones(40), torch.randn(500, generator=generator) + 50.0, torch.full((3,), 1e-20)]
    made.append(torch.randn(5, 6, generator=generator, dtype=torch.float64))
    made.append(torch.arange(6))
    for x in made:
        values = x.double()
        assert float(total_of(x)) == pytest.approx(float(values.sum()), abs=1e-12 * float(values.abs().sum()))
        assert float(square_of(x)) == pytest.approx(float(values.square().sum()), rel=1e-12)


class Secretive(torch.autograd.Function):
    """Writes the gradient into its input behind torch's back, as fused losses do."""

    @staticmethod
    def forward(ctx, x):
        total = x.sum()
        x.data.fill_(1.0)
        ctx.save_for_backward(x.data)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0] * gradient


fused_loss = Secretive.apply


def test_functions_that_write_in_secret():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5)), random(3, 4, 8)
    plain, fused = measure(model, x, lambda y: y.sum()), measure(model, x, lambda y: fused_loss(y))
    assert plain["2"].variance > 0
    for found, expected in zip(fused, plain, strict=True):
        assert found.variance == expected.variance
        assert found.grad_variance == pytest.approx(expected.grad_variance)


@pytest.mark.parametrize(
    "values", [[1.0, 1.0 + 1e-9, 1.0 - 1e-9], [1e-300, 3e-300], [5.0, 5.0, 5.0, 5.0], [-2.0, 0.0, 1e8]]
)
def test_deviation_is_that_of_the_standard_library(values):
    assert deviation(values) == pytest.approx(statistics.stdev(values), rel=1e-9)

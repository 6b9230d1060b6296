"""Tensors and parameters on a CPU: as by the definition, whatever their mean, size and layout."""

import math

import pytest
import torch
from torch import nn

from sigprop.measurement import measure
from sigprop.measurement.parameters import square_of, total_of
from sigprop.measurement.queue import Queue

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
    queue = Queue()
    for ticket, x in enumerate(tensors()):
        queue.add(ticket, x.mT.contiguous().mT if image else x, mask, signal)
    queue.read()
    found = queue.signals if signal else queue.gradients
    for ticket, x in enumerate(tensors()):
        expected = exact(x, signal, mask)
        scale = max(abs(expected[0]), math.sqrt(expected[1]))
        assert found[ticket][0] == pytest.approx(expected[0], abs=1e-6 * scale, nan_ok=True)
        assert found[ticket][1] == pytest.approx(expected[1], rel=1e-6, abs=1e-12 * scale**2, nan_ok=True)
        if ticket != 4 or not signal:  # tokens of a constant signal have no direction
            assert found[ticket][2] == pytest.approx(expected[2], abs=1e-6, nan_ok=True)


WRITES = {
    "in place": lambda x: x.zero_(),
    "by its data": lambda x: x.data.zero_(),
    "through a view": lambda x: x[1].zero_(),
    "by numpy": lambda x: x.numpy().fill(0.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_was_taken_in_may_be_overwritten(write):
    queue, x = Queue(), torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    expected = exact(x, True, None)
    queue.add(0, x, None, True)
    write(x)
    assert not x[1].any()
    queue.read()
    assert queue.signals[0] == pytest.approx(expected, rel=1e-5, abs=1e-6)


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

"""Tensors that wait and are reduced together, the way of a GPU, on CPU tensors."""

import gc
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sigprop.measurement import measure, one_pass, queue
from sigprop.measurement.queue import Overwritten, Queue
from sigprop.models import build

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")

MASK = torch.rand(4, 50, generator=torch.Generator().manual_seed(1)) > 0.3


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reduced(items, mask=None):
    """What a queue gives for (tensor, is a signal) pairs."""
    waiting = Queue()
    for ticket, (x, signal) in enumerate(items):
        waiting.add(ticket, x, mask, signal)
    waiting.read()
    return [(waiting.signals if signal else waiting.gradients)[t] for t, (_, signal) in enumerate(items)]


def exact(x, signal, mask=None):
    """From the definition: centre, normalize, compare every pair of real tokens."""
    x = x.double()
    mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    centre = x[mask].mean() if signal else 0.0
    x = x - centre
    length = x.norm(dim=-1) * mask
    cosines = []
    for rows, norms in zip(x, length, strict=True):
        unit = (rows / norms[:, None])[norms > 1e-6 * length.max()]
        if len(unit) > 1:
            cosines.append(((unit @ unit.T).sum() - len(unit)) / (len(unit) * (len(unit) - 1)))
    return [float(centre), float(x[mask].square().mean()), float(torch.stack(cosines).mean())]


def agree(found, expected, rel=1e-6):
    scale = max(abs(expected[0]), math.sqrt(expected[1]))
    assert found[0] == pytest.approx(expected[0], abs=rel * scale, nan_ok=True)
    assert found[1] == pytest.approx(expected[1], rel=rel, nan_ok=True)
    assert found[2] == pytest.approx(expected[2], abs=rel, nan_ok=True)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shapes_signals_and_gradients_in_one_queue(dtype, mask):
    shapes = [(64, 1.0), (64, 30.0), (16, 1e-3), (700, 1.0), (64, 1e-9)]
    items = []
    for seed, (width, scale) in enumerate(shapes):
        x = (random(4, 50, width, seed=seed) + 0.5) * scale
        items += [(x.to(dtype), True), (x.to(dtype).flip(0), False)]
    for found, (x, signal) in zip(reduced(items, mask), items, strict=True):
        agree(found, exact(x, signal, mask))


def test_a_single_sequence_among_several():
    items = [(random(1, 50, 64) + 0.5, True), (random(4, 50, 16), True), (random(1, 50, 64, seed=1), False)]
    for found, (x, signal) in zip(reduced(items), items, strict=True):
        agree(found, exact(x, signal))


@pytest.mark.parametrize("garbage", [1e3, math.inf, math.nan])
def test_padding_may_hold_anything(garbage):
    x = random(4, 50, 64) + 0.5
    dirty = torch.where(MASK[:, :, None], x, garbage)
    for signal in (True, False):
        agree(reduced([(dirty, signal)], MASK)[0], exact(x, signal, MASK))


def test_tiny_gradients_of_single_tokens_are_no_zeros():
    x = random(6, 1, 16) * 1e-30
    zeros, tiny = reduced([(torch.zeros_like(x), False), (x, False)])
    assert zeros[1] == 0.0
    assert tiny[1] == pytest.approx(float(x.double().square().mean()), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-6, 1e15, 1e25])
def test_tiny_and_huge_values(scale):
    x = random(3, 70, 60) * scale
    for signal in (True, False):
        agree(reduced([(x, signal)])[0], exact(x, signal))


@pytest.mark.parametrize("offset", [1.9, 5.0, 1e3, 1e6])
def test_a_mean_that_dominates(offset):
    x = random(4, 50, 64) + offset
    agree(reduced([(x, True)])[0], exact(x, True))


def test_tokens_without_a_direction():
    x = random(2, 6, 8)
    x[0, 1] = 0.0
    x[1, 2:] = 1e-9
    x[1, 3] = 0.0
    agree(reduced([(x, False)])[0], exact(x, False))
    mean, variance, correlation = reduced([(torch.zeros(2, 6, 8), False)])[0]
    assert (mean, variance) == (0.0, 0.0)
    assert math.isnan(correlation)
    assert math.isnan(reduced([(random(5, 1, 8), True)])[0][2])
    assert math.isnan(reduced([(torch.full((2, 6, 8), 0.1), True)])[0][2])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_value_spoils_its_own_tensor_only(bad):
    x = random(2, 6, 8)
    spoiled = x.clone()
    spoiled[1, 3, 2] = bad
    whole, broken, gradient = reduced([(x, True), (spoiled, True), (spoiled, False)])
    agree(whole, exact(x, True))
    assert not math.isfinite(broken[1])
    assert not math.isfinite(gradient[1])


def test_large_tensors_and_pieces_do_not_show(monkeypatch):
    items = [
        (random(4, 20, 30, seed=seed).to(dtype), True) for seed in range(3) for dtype in (torch.float32, torch.half)
    ]
    whole = reduced(items)
    monkeypatch.setattr(queue, "LARGE", 100)
    monkeypatch.setattr(queue.stacked_moments, "PIECE", 100)
    for found, expected in zip(reduced(items), whole, strict=True):
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_a_full_queue_is_emptied_on_the_way(monkeypatch):
    torch.manual_seed(0)
    model, tokens = build("transformer", width=16, depth=2, heads=2), torch.arange(24).view(2, 12)
    whole = measure(model, tokens)
    monkeypatch.setattr(queue, "DEFAULT_BYTES", 4000)
    for found, expected in zip(measure(model, tokens), whole, strict=True):
        for column in found.COLUMNS:
            assert getattr(found, column) == pytest.approx(getattr(expected, column), rel=1e-6, abs=1e-9, nan_ok=True)


def test_a_model_too_coarse_for_float32_is_run_again(monkeypatch):
    """The queue was emptied on the way, so that the tensors are gone when the means turn out to dominate."""
    monkeypatch.setattr(queue, "DEFAULT_BYTES", 100)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Identity(), nn.Linear(8, 8), nn.Tanh()), random(3, 4, 8) + 1e3
    row = measure(model, x)["0"]
    agree((row.mean, row.variance, row.token_correlation), exact(x, True))


def test_zeros_and_constants_are_no_reason_to_run_again(monkeypatch):
    monkeypatch.setattr(queue, "DEFAULT_BYTES", 100)
    counter, last = Accumulating(), nn.Linear(8, 8)
    nn.init.zeros_(last.weight)
    nn.init.constant_(last.bias, 0.1)
    profile = measure(nn.Sequential(nn.ReLU(inplace=True), counter, last), random(3, 4, 8))
    assert profile["1"].grad_variance == 0
    assert profile["2"].mean == pytest.approx(0.1)
    assert profile["2"].variance < 1e-20
    assert counter.count.runs == 1


def test_a_vanishing_gradient_is_no_zero(monkeypatch):
    monkeypatch.setattr(queue, "DEFAULT_BYTES", 100)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), random(3, 4, 8)
    plain, tiny = measure(model, x, lambda y: y.sum()), measure(model, x, lambda y: 1e-30 * y.sum())
    assert tiny["0"].grad_variance == pytest.approx(1e-60 * plain["0"].grad_variance, rel=1e-5)


def test_a_tensor_that_is_written_to_while_it_waits():
    waiting = Queue()
    x = random(2, 3, 4)
    waiting.add(0, x, None, True)
    x += 1
    with pytest.raises(Overwritten):
        waiting.read()
    copying = Queue(copies=True)
    expected = exact(x, True)
    copying.add(0, x, None, True)
    x += 1
    copying.read()
    agree(copying.signals[0], expected)


def test_a_fleeting_tensor_is_reduced_at_once_and_where_float32_is_too_coarse_in_float64():
    fleeting = Queue(fleeting=True)
    tensors = [random(2, 3, 4), 1e4 + random(2, 3, 4, seed=1), 1e-20 * random(2, 3, 4, seed=2)]
    expected = [exact(x, True) for x in tensors]
    for ticket, x in enumerate(tensors):
        fleeting.add(ticket, x, None, True)
        x.zero_()
    fleeting.read()
    for ticket, one in enumerate(expected):
        agree(fleeting.signals[ticket], one)


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


class Accumulating(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.count = SimpleNamespace(runs=0)  # an attribute of its own would be put back

    def forward(self, x):
        self.count.runs += 1
        for layer in self.layers:
            y = layer(x)
            y += x
            x = y
        return x


def test_a_model_that_adds_in_place_is_run_again_with_copies(monkeypatch):
    torch.manual_seed(0)
    model, x = Accumulating(), random(3, 4, 8)
    together = measure(model, x)
    assert model.count.runs == 2
    monkeypatch.undo()
    for found, expected in zip(together, measure(model, x), strict=True):
        for column in found.COLUMNS:
            assert getattr(found, column) == pytest.approx(getattr(expected, column), rel=1e-6, abs=1e-8, nan_ok=True)


def test_modules_that_say_they_write_in_place_are_copied_at_once():
    torch.manual_seed(0)
    counter = Accumulating()
    measure(nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), counter), random(3, 4, 8))
    assert counter.count.runs == 1


@pytest.mark.parametrize("collecting", [True, False])
def test_nothing_stays_behind(collecting):
    watched = (torch.autograd.function, torch.autograd.function.FunctionMeta)
    before = [vars(owner).copy() for owner in watched]
    (gc.enable if collecting else gc.disable)()
    try:
        measure(nn.Linear(8, 8), random(3, 4, 8))
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
    assert [vars(owner).copy() for owner in watched] == before


def test_a_torch_whose_functions_cannot_be_watched_is_not_trusted(monkeypatch):
    monkeypatch.setattr(one_pass, "ASKED", "renamed")
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5)), random(3, 4, 8)
    assert measure(model, x, lambda y: fused_loss(y))["2"].variance > 0

"""Convolution over pixels, embeddings, and the gradients that start at the top."""

import pytest
import torch
from torch.nn import functional as F

from sigprop.theory import Dense, Gradient, Signal, exchangeable_signal
from sigprop.theory.ops import loss, sources
from sigprop.theory.ops.convolution import Convolution, square_windows
from sigprop.theory.ops.group_norm import GroupNorm
from sigprop.theory.ops.linear import Linear
from tests.theory.ops.monte_carlo import assert_close

SIDE, CHANNELS, DRAWS = 6, 24, 800


def pixel_kernel(rng):
    """A correlation of pixels that falls with distance."""
    place = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij"), -1).reshape(-1, 2)
    apart = (place[:, None] - place[None]).double().square().sum(-1)
    return torch.exp(-apart / 4) + 0.2


def images(kernel, rng):
    root = torch.linalg.cholesky(kernel + 1e-9 * torch.eye(len(kernel)))
    noise = torch.randn(DRAWS, CHANNELS, len(kernel), generator=rng, dtype=torch.float64)
    return (noise @ root.T).reshape(DRAWS, CHANNELS, SIDE, SIDE)


def kernels(x):
    flat = x.flatten(2)
    return flat.transpose(1, 2) @ flat / flat.shape[1]


@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_on_a_pixel_kernel(stride):
    rng = torch.Generator().manual_seed(0)
    kernel, outputs, std = pixel_kernel(rng), 20, 0.1
    op = Convolution(9 * CHANNELS, outputs, std**2, rows=square_windows((SIDE, SIDE), 3, stride))
    x = images(kernel, rng).requires_grad_()
    weight = torch.randn(DRAWS * outputs, CHANNELS, 3, 3, generator=rng, dtype=torch.float64) * std
    y = F.conv2d(x.reshape(1, -1, SIDE, SIDE), weight, padding=1, stride=stride, groups=DRAWS)
    y = y.reshape(DRAWS, outputs, *y.shape[-2:])
    g = torch.randn(y.shape, generator=rng, dtype=torch.float64)
    (grad,) = torch.autograd.grad(y, x, g)
    signal = Signal(Dense(kernel), torch.zeros(len(kernel), dtype=torch.float64), CHANNELS)
    out = op.forward(signal)
    white = Gradient(Dense(torch.eye(y[0, 0].numel(), dtype=torch.float64)))
    (back,) = op.backward(white, out, signal)
    assert_close(out.kernel.values.flatten(), kernels(y.detach()).flatten(1), "forward")
    assert_close(back.kernel.values.flatten(), kernels(grad).flatten(1), "backward")


def test_exchangeable_convolution_counts_taps_inside_the_image():
    op = Convolution(72, 8, 1.0 / 72, rows=square_windows((4, 4), 3))
    flat = exchangeable_signal(1.0, 1.0, tokens=16, width=8)
    dense = Signal(flat.kernel.dense(), torch.zeros(16, dtype=torch.float64), 8)
    average = op.forward(dense).kernel.diagonal.mean()
    assert float(op.forward(flat).kernel.diagonal) == pytest.approx(float(average))


def test_image_norm():
    kernel = pixel_kernel(None) * 3 + 2
    signal = Signal(Dense(kernel), torch.full((SIDE**2,), 1.4, dtype=torch.float64), 64)
    out = GroupNorm(epsilon=0.0).forward(signal)
    assert float(out.kernel.diagonal.mean()) == pytest.approx(1.0)
    assert float(out.mean.abs().max()) == pytest.approx(0.0, abs=1e-12)


def test_cross_entropy_gradient_against_autograd():
    """Logits of 12 tokens over 50 classes with a given correlation, random targets."""
    rng = torch.Generator().manual_seed(1)
    tokens, classes, variance, r = 12, 50, 0.7, 0.4
    common = torch.randn(3000, 1, classes, generator=rng, dtype=torch.float64)
    own = torch.randn(3000, tokens, classes, generator=rng, dtype=torch.float64)
    logits = (variance**0.5 * (r**0.5 * common + (1 - r) ** 0.5 * own)).requires_grad_()
    targets = torch.randint(0, classes, (3000, tokens), generator=rng)
    value = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1).sum()
    (grad,) = torch.autograd.grad(value, logits)
    predicted = loss.cross_entropy(exchangeable_signal(variance, r, tokens=tokens, width=classes))
    same = grad.square().mean((1, 2))
    everything = grad.sum(1).square().mean(1)
    different = (everything - tokens * same) / (tokens * (tokens - 1))
    assert_close(predicted.kernel.values, torch.stack((same, different), 1), "cross-entropy", slack=0.01)


def test_cross_entropy_with_equal_targets_correlates_tokens():
    signal = exchangeable_signal(1e-6, 0.0, tokens=3, width=100)
    dense = Signal(signal.kernel.dense(), torch.zeros(3, dtype=torch.float64), 100)
    gradient = loss.cross_entropy(dense, targets=torch.tensor([4, 4, 7])).kernel.values
    assert float(gradient[0, 1]) == pytest.approx(float(gradient[0, 0]), rel=1e-3)
    assert float(gradient[0, 2]) < 0.02 * float(gradient[0, 0])


def test_white_noise_is_independent_over_tokens():
    gradient = loss.white_noise(exchangeable_signal(2.0, 0.5, tokens=4, width=8))
    assert gradient.kernel.values.tolist() == [1.0, 0.0]


def test_sinusoidal_positions_match_the_table():
    signal = sources.sinusoidal_positions(6, 16)
    assert float(signal.kernel.diagonal[0]) == pytest.approx(0.5)
    assert torch.allclose(signal.kernel.values, signal.kernel.values.T)


def test_patches_are_an_exact_linear_kernel():
    rng = torch.Generator().manual_seed(2)
    pixels = torch.rand(5, 12, generator=rng)
    weight = torch.randn(4000, 12, 8, generator=rng, dtype=torch.float64) * 0.3
    y = pixels.double() @ weight
    signal = Linear(12, 8, 0.09).forward(sources.patches(pixels))
    assert_close(signal.kernel.values.flatten(), (y @ y.transpose(1, 2) / 8).flatten(1), "patches")


def test_gradient_of_an_embedding_table_sums_over_equal_ids():
    rng = torch.Generator().manual_seed(3)
    ids, width, rows = torch.tensor([1, 0, 1, 4, 1]), 6, 5
    root = torch.randn(5, 5, generator=rng, dtype=torch.float64)
    gradient = root @ torch.randn(4000, 5, width, generator=rng, dtype=torch.float64)
    table = torch.zeros(4000, rows, width, dtype=torch.float64).index_add(1, ids, gradient)
    op = sources.ParameterSource(sources.equal_ids(ids), 0.5, (rows, width), width)
    (state,) = op.parameters(Gradient(Dense(root @ root.T)))
    assert_close(state.grad_second_moment[None], table.square().mean((1, 2))[:, None], "embedding table")
    assert op.backward(Gradient(Dense(root @ root.T)), op.forward()) == ()

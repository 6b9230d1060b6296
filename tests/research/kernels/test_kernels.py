"""Kernels of infinite width against closed forms written down here, and against wide networks."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sigprop as sp
from sigprop.blueprints import MLP, Transformer
from sigprop.errors import InputError, SigpropError, UnsupportedError

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * torch.tensor(
    [[0.3], [1.0], [2.0], [0.7]], dtype=torch.float64
)
Y = torch.randn(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def arc_cosine(u, v, c):
    """E relu relu and E step step (Cho and Saul 2009)."""
    cosine = (c / (u * v).sqrt()).clamp(-1, 1)
    angle = cosine.acos()
    value = (u * v).sqrt() * (angle.sin() + (math.pi - angle) * cosine) / (2 * math.pi)
    return value, (math.pi - angle) / (2 * math.pi)


def error_function(u, v, c):
    """E erf erf and E erf' erf' (Williams 1997)."""
    value = 2 / math.pi * (2 * c / ((1 + 2 * u) * (1 + 2 * v)).sqrt()).asin()
    return value, 4 / math.pi / ((1 + 2 * u) * (1 + 2 * v) - 4 * c**2).sqrt()


def sine(u, v, c):
    """E sin sin and E cos cos."""
    decay = torch.exp(-(u + v) / 2)
    return decay * torch.sinh(c), decay * torch.cosh(c)


def straight(u, v, c):
    return c, torch.ones_like(c)


def leaky(slope):
    """f = slope x + (1 - slope) relu(x)."""

    def pair(u, v, c):
        value, step = arc_cosine(u, v, c)
        mixed = slope * (1 - slope)
        return slope**2 * c + mixed * c + (1 - slope) ** 2 * value, slope**2 + mixed + (1 - slope) ** 2 * step

    return pair


def by_hand(pair, depth, sigma_w, sigma_b, first=None, skip=0.0):
    """The textbook recursion in the NTK parametrization, on all inputs."""
    z = torch.cat((X, Y))
    weight, bias = (value**2 for value in (first or (sigma_w, sigma_b)))
    kernel = weight * z @ z.T / z.shape[1] + bias
    tangent = kernel.clone()
    for layer in range(depth + 1):
        u = kernel.diagonal()
        value, slope = pair(u[:, None], u[None, :], kernel)
        before, behind = kernel, tangent
        kernel = sigma_w**2 * value + sigma_b**2
        tangent = kernel + sigma_w**2 * slope * tangent
        if skip and layer < depth:
            kernel, tangent = kernel + skip**2 * before, tangent + skip**2 * behind
    return kernel, tangent


CASES = {
    "relu": arc_cosine,
    "erf": error_function,
    "sin": sine,
    "identity": straight,
    "leaky_relu": leaky(0.01),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("depth", "skip"), [(1, 0.0), (3, 0.0), (2, 0.8)])
def test_blueprints_have_the_kernels_of_the_textbook(name, depth, skip):
    nngp, ntk = by_hand(CASES[name], depth, 1.3, 0.2, skip=skip)
    found = sp.kernels(MLP(depth=depth, activation=name, sigma_w=1.3, sigma_b=0.2, mu=skip), X, Y)
    torch.testing.assert_close(found.nngp, nngp[:4, 4:], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.ntk, ntk[:4, 4:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "erf"])
def test_a_first_layer_with_its_own_deviation(name):
    nngp, ntk = by_hand(CASES[name], 2, 1.5, 0.1, first=(0.7, 0.0))
    found = sp.kernels(MLP(depth=2, activation=name, sigma_w=1.5, sigma_b=0.1), X, first=(0.7, 0.0))
    torch.testing.assert_close(found.nngp, nngp[:4, :4], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.ntk, ntk[:4, :4], rtol=1e-12, atol=1e-12)


def lecun(fan_in, fan_out, gain, bias):
    layer = nn.Linear(fan_in, fan_out)
    nn.init.normal_(layer.weight, std=gain / math.sqrt(fan_in))
    nn.init.normal_(layer.bias, std=bias)
    return layer


def module(*functions, width=64):
    def make():
        parts = [lecun(6, width, 1.3, 0.2)]
        for function in functions:
            parts += [function(), lecun(width, width, 1.3, 0.2)]
        return nn.Sequential(*parts)

    return make


@pytest.mark.parametrize(
    ("function", "pair"), [(nn.ReLU, arc_cosine), (nn.Identity, straight), (lambda: nn.LeakyReLU(0.3), leaky(0.3))]
)
def test_modules_have_the_kernels_of_the_textbook(function, pair):
    nngp, ntk = by_hand(pair, 1, 1.3, 0.2)
    found = sp.kernels(module(function, function), X, Y)
    torch.testing.assert_close(found.nngp, nngp[:4, 4:], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.ntk, ntk[:4, 4:], rtol=1e-12, atol=1e-12)


class Residual(nn.Module):
    """What people write: norms, residual sums, a function by its own name."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.norm = lecun(6, width, 1.0, 0.1), nn.LayerNorm(width)
        self.inner, self.outer = lecun(width, width, 1.4, 0.0), lecun(width, width, 0.9, 0.0)
        self.head = lecun(width, 1, 1.0, 0.0)

    def forward(self, x):
        x = self.first(x)
        x = x + 0.5 * self.outer(F.gelu(self.inner(self.norm(x))))
        return self.head(torch.tanh(x))


def empirical(make, seeds):
    """Outputs' products and gradients' products of real networks, with standard errors."""
    found = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = make().double()
        rows, outputs = [], []
        for x in X:
            output = model(x[None])[0, 0]
            outputs.append(output.detach())
            gradients = torch.autograd.grad(output, list(model.parameters()))
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
        stacked, values = torch.stack(rows), torch.stack(outputs)
        found.append(torch.stack((values[:, None] * values, stacked @ stacked.T)))
    table = torch.stack(found)
    return table.mean(0), table.std(0) / math.sqrt(seeds)


def test_wide_networks_come_close_in_the_standard_parametrization():
    width = 512
    mean, error = empirical(lambda: Residual(width), 24)
    found = sp.kernels(lambda: Residual(width), X, parametrization="standard")
    assert ((mean[0] - found.nngp).abs() < 5 * error[0]).all()
    assert ((mean[1] - found.ntk).abs() < 5 * error[1] + 0.02 * found.ntk.abs().max()).all()
    assert ((mean[1] - 1.2 * found.ntk).abs() > 5 * error[1] + 0.02 * found.ntk.abs().max()).any()


def test_frozen_weights_have_no_part_in_the_tangent_kernel():
    def make():
        model = module(nn.ReLU)()
        model[0].requires_grad_(False)
        return model

    found, whole = sp.kernels(make, X), sp.kernels(module(nn.ReLU), X)
    torch.testing.assert_close(found.nngp, whole.nngp)
    assert (found.ntk.diagonal() < whole.ntk.diagonal()).all()


class Shared(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.first, self.way = lecun(6, 32, 1.0, 0.0), way
        self.inner = lecun(32, 32, 1.0, 0.0)

    def forward(self, x):
        return self.way(self, self.first(x))


def doubled(u, v, c):
    """E f f and E f' f' of x + relu(x)."""
    value, step = arc_cosine(u, v, c)
    return 2 * c + value, 2 + step


@pytest.mark.parametrize(
    ("way", "pair"),
    [
        (lambda m, x: x + F.relu(x), doubled),
        (lambda m, x: x * x, lambda u, v, c: (u * v + 2 * c**2, 4 * c)),
    ],
)
def test_sums_and_products_of_one_tensor_are_functions_of_it(way, pair):
    kernel = X @ X.T / 6
    value, slope = pair(kernel.diagonal()[:, None], kernel.diagonal()[None, :], kernel)
    found = sp.kernels(lambda: Shared(way), X)
    torch.testing.assert_close(found.nngp, value, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.ntk, slope * kernel, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        (lambda m, x: m.inner(F.relu(m.inner(x))), "inner.weight is used twice"),
        (lambda m, x: F.relu(F.relu(x) + m.inner(x)), "not Gaussian"),
        (lambda m, x: x.softmax(-1), "softmax"),
        (lambda m, x: F.dropout(x), "eval"),
    ],
)
def test_what_is_not_followed_is_refused_by_name(way, message):
    with pytest.raises(SigpropError, match=message):
        sp.kernels(lambda: Shared(way), X)


def test_wrong_inputs_are_refused():
    with pytest.raises(UnsupportedError, match="transformer"):
        sp.kernels(Transformer(depth=1), X)
    with pytest.raises(InputError, match="features"):
        sp.kernels(MLP(depth=1), X, torch.randn(3, 5))
    with pytest.raises(InputError, match="parametrization"):
        sp.kernels(MLP(depth=1), X, parametrization="mup")

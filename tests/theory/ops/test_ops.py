"""Every op against real torch code on drawn tensors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sigprop.theory import Dense, Gradient, Signal, activations, exchangeable_signal
from sigprop.theory.ops import sources
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.batch_norm import BatchNorm
from sigprop.theory.ops.dropout import Dropout
from sigprop.theory.ops.layer_norm import LayerNorm, RMSNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.positions_to_channels import ChannelsToPositions, PositionsToChannels
from sigprop.theory.ops.product import Product, _fourth_moments
from sigprop.theory.ops.residual import Residual, TokenResidual
from sigprop.theory.ops.softmax import overlap
from sigprop.theory.ops.token_map import DrawnTokenLinear, TokenLinear, TokenMap
from tests.theory.ops.monte_carlo import Setting, assert_close, check, draw, moments


def weights(draws, *shape, std, rng):
    return torch.randn(draws, *shape, generator=rng, dtype=torch.float64) * std


@pytest.mark.parametrize(("mean", "correlation"), [(0.0, 0.0), (0.0, 0.5), (1.5, 0.3)])
def test_linear_forward_backward_and_weight_gradient(mean, correlation):
    setting, std, bias = Setting(mean=mean, correlation=correlation), 0.2, 0.3
    op = Linear(64, 96, std**2, bias**2)

    def run(x, rng):
        weight = weights(len(x), 64, 96, std=std, rng=rng)
        return x @ weight + weights(len(x), 1, 96, std=bias, rng=rng)

    x, _, g = check(op, run, setting)
    weight, offset = op.parameters(setting.gradient(), setting.signal())
    assert_close(weight.grad_second_moment[None], (x.transpose(1, 2) @ g).square().mean((1, 2))[:, None], "weight")
    assert_close(offset.grad_second_moment[None], g.sum(1).square().mean(1)[:, None], "bias")


def test_a_wrong_gain_fails():
    with pytest.raises(AssertionError, match="forward"):
        check(Linear(64, 64, 0.05**2), lambda x, rng: x @ weights(len(x), 64, 64, std=0.052, rng=rng), Setting())


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh", "silu", "erf"])
@pytest.mark.parametrize(("variance", "mean"), [(1.0, 0.0), (4.0, 0.7)])
def test_activation(name, variance, mean):
    function = activations.get(name)
    check(Activation(function), lambda x, rng: function(x), Setting(variance=variance, mean=mean, width=256))


@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_dropout(mean):
    check(
        Dropout(0.3),
        lambda x, rng: x * (torch.rand(x.shape, generator=rng, dtype=x.dtype) >= 0.3) / 0.7,
        Setting(mean=mean, width=256),
    )


@pytest.mark.parametrize("width", [16, 64, 256])
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_layer_norm(width, correlation):
    setting = Setting(variance=3.0, mean=1.0, width=width, correlation=correlation, draws=40000 // width)
    check(
        LayerNorm(epsilon=0.0),
        lambda x, rng: torch.nn.functional.layer_norm(x, (width,), eps=0.0),
        setting,
        slack=6.0 / width**2,
    )


def test_layer_norm_backward_factor_is_exact_for_independent_channels():
    d = 24
    setting = Setting(width=d, variance=2.0)
    out = LayerNorm(epsilon=0.0).backward(setting.gradient(), setting.signal(), setting.signal())[0]
    assert float(out.kernel.diagonal) == pytest.approx((d - 2) / (d - 3) / 2.0, rel=1e-12)


@pytest.mark.parametrize("width", [16, 256])
def test_rms_norm(width):
    setting = Setting(variance=3.0, width=width, draws=40000 // width)
    check(
        RMSNorm(epsilon=0.0),
        lambda x, rng: torch.nn.functional.rms_norm(x, (width,), eps=1e-30),
        setting,
        slack=6.0 / width**2,
    )


def test_a_second_norm_removes_nothing_more():
    """After a norm the gradient is orthogonal to the signal: the next norm on the same stream finds nothing."""
    setting = Setting(width=16, draws=4000, correlation=0.0, grad_correlation=0.0)
    norm, x = LayerNorm(epsilon=0.0), setting.signal()
    once = norm.forward(x)
    outer = norm.backward(setting.gradient(), norm.forward(once), once)[0]
    predicted = norm.backward(outer, once, x)[0].kernel.diagonal
    rng = torch.Generator().manual_seed(3)
    sample = draw(1.0, 0.0, 0.0, (4000, 12, 16), rng).requires_grad_()
    y = torch.nn.functional.layer_norm(torch.nn.functional.layer_norm(sample, (16,), eps=0.0), (16,), eps=0.0)
    (grad,) = torch.autograd.grad(y, sample, draw(1.0, 0.0, 0.0, (4000, 12, 16), rng))
    assert_close(predicted[None], moments(grad)[:, :1], "two norms", slack=6.0 / 16**2)


def test_batch_norm_large_batch():
    setting = Setting(tokens=400, width=16, draws=200, variance=2.0, correlation=0.4, mean=0.5)

    def run(x, rng):
        centred = x - x.mean(1, keepdim=True)
        return centred / centred.square().mean(1, keepdim=True).sqrt()

    check(BatchNorm(epsilon=0.0), run, setting, slack=4.0 / 400)


def test_residual_adds_energies_and_sends_the_gradient_both_ways():
    setting = Setting()
    op, x = Residual(0.9, 0.5), setting.signal()
    f = exchangeable_signal(2.0, 0.7, 0.4, tokens=12, width=64)
    out = op.forward(x, f)
    assert float(out.kernel.diagonal) == pytest.approx(0.81 * 1.0 + 0.25 * (2.0 + 0.16))
    assert float(out.mean) == pytest.approx(0.5 * 0.4)
    to_x, to_f = op.backward(setting.gradient(), out, x, f)
    assert float(to_x.kernel.diagonal) == pytest.approx(0.81)
    assert float(to_f.kernel.diagonal) == pytest.approx(0.25)


def test_gated_product():
    setting = Setting(mean=0.3)
    gate = exchangeable_signal(2.0, 0.1, 0.5, tokens=12, width=64)
    rng = torch.Generator().manual_seed(1)
    x = draw(1.0, 0.3, 0.3, (600, 12, 64), rng).requires_grad_()
    y = draw(2.0, 0.1, 0.5, (600, 12, 64), rng)
    g = draw(1.0, 0.2, 0.0, (600, 12, 64), rng)
    (grad,) = torch.autograd.grad(x * y, x, g)
    op = Product()
    out = op.forward(setting.signal(), gate)
    assert_close(out.kernel.values, moments((x * y).detach()), "forward")
    assert_close(op.backward(setting.gradient(), out, setting.signal(), gate)[0].kernel.values, moments(grad), "back")


def test_mean_pooling():
    check(TokenMap.mean(12), lambda x, rng: x.mean(1, keepdim=True), Setting(correlation=0.5))


class MapOverTokens:
    """A linear map over tokens as blueprints and the interpreter spell it: tokens become channels, and tokens again."""

    def __init__(self, op: TokenLinear):
        take = PositionsToChannels(torch.arange(op.fan_in)[None], op.fan_in, mixes=True)
        self.linear, self.ops = op, (take, op, ChannelsToPositions(op.fan_out))

    def forward(self, x: Signal) -> Signal:
        self.signals = [x]
        for op in self.ops:
            self.signals.append(op.forward(self.signals[-1]))
        return self.signals[-1]

    def backward(self, gradient: Gradient, output: Signal, x: Signal) -> tuple[Gradient]:
        for op, before, after in zip(self.ops[::-1], self.signals[-2::-1], self.signals[:0:-1], strict=True):
            if op is self.linear:
                self.parameters = op.parameters(gradient, before)
            (gradient,) = op.backward(gradient, after, before)
        return (gradient,)


def test_linear_map_over_tokens():
    setting, drawn = Setting(correlation=0.4, tokens=12), []
    op = MapOverTokens(TokenLinear(12, 20, 0.1, 0.05, channels=setting.width))

    def run(x, rng):
        drawn.append(weights(len(x), 20, 12, std=0.1**0.5, rng=rng).requires_grad_())
        drawn.append(weights(len(x), 20, 1, std=0.05**0.5, rng=rng).requires_grad_())
        return drawn[0] @ x + drawn[1]

    x, _, g = check(op, run, setting)  # type: ignore[arg-type]
    found = torch.autograd.grad(drawn[0] @ x + drawn[1], drawn, g)
    for state, values in zip(op.parameters, found, strict=True):
        assert_close(state.grad_second_moment, values.square().mean((1, 2)), state.name)


def test_a_drawn_map_over_tokens_has_the_weight_gradients_of_its_average():
    x, gradient = Setting(tokens=12).signal().dense(), Setting(tokens=20).gradient()
    law = TokenLinear(12, 20, 0.1, 0.05, channels=x.width)
    averaged, gradient = MapOverTokens(law), replace(gradient, kernel=gradient.kernel.dense())
    averaged.backward(gradient, averaged.forward(x), x)
    assert DrawnTokenLinear.draw(law, seed=3).parameters(gradient, x) == averaged.parameters


def test_one_draw_of_a_map_over_tokens():
    """Many channels through the drawn matrix: their moments, and the gradient by the same matrix."""
    rng = torch.Generator().manual_seed(0)
    mean = torch.tensor([0.5, -0.2, 0.0], dtype=torch.float64)
    covariance = torch.tensor([[1.0, 0.3, 0.0], [0.3, 2.0, -0.4], [0.0, -0.4, 0.7]], dtype=torch.float64)
    x = mean + torch.randn(200_000, 3, generator=rng, dtype=torch.float64) @ torch.linalg.cholesky(covariance).T
    op = DrawnTokenLinear.draw(TokenLinear(3, 5, 0.3, 0.1, channels=100), seed=4)
    weight, bias = op.matrix, op.bias
    y = x @ weight.T + bias
    state = Signal(Dense(covariance + mean[:, None] * mean), mean, 100)
    out = op.forward(state)
    assert_close(out.kernel.values, (y[:, :, None] * y[:, None, :]), "forward")
    assert_close(out.mean, y, "mean")
    g = torch.randn(5, 5, generator=rng, dtype=torch.float64)
    (back,) = op.backward(Gradient(Dense(g @ g.T)), out, state)
    torch.testing.assert_close(back.kernel.values, (weight.T @ g) @ (weight.T @ g).T)


def test_residual_around_drawn_token_maps():
    """The branch acts on each channel by itself and is correlated with the skip path: many channels, one draw."""
    rng = torch.Generator().manual_seed(1)
    root = torch.randn(3, 3, generator=rng, dtype=torch.float64)
    x = torch.randn(400_000, 3, generator=rng, dtype=torch.float64) @ root.T
    up, down = (
        DrawnTokenLinear.draw(TokenLinear(*sizes, 0.2, channels=100), seed)
        for seed, sizes in enumerate(((3, 4, 0.6), (4, 3, 0.5)), 1)
    )
    skip = 0.7
    covariance = root @ root.T
    scale = covariance.diagonal().sqrt()
    normalized = Signal(Dense(covariance / (scale * scale[:, None])), torch.zeros(3, dtype=torch.float64), 100)
    (one, first), (two, second) = ((op.matrix, op.bias) for op in (up, down))
    hidden = up.forward(normalized)
    function = activations.get("gelu")
    f = torch.nn.functional.gelu((x / scale) @ one.T + first) @ two.T + second
    z = skip * x + f
    signal = Signal(Dense(covariance), torch.zeros(3, dtype=torch.float64), 100)
    slopes = function.derivative_mean(hidden.covariance.diagonal, hidden.mean)
    cross = TokenResidual.covariance(signal, normalized, up, slopes, down)
    out = TokenResidual(skip, cross=cross).forward(signal, down.forward(Activation(function).forward(hidden)))
    assert_close(out.kernel.values, z[:, :, None] * z[:, None, :], "kernel")
    plain = Residual(skip).forward(signal, down.forward(Activation(function).forward(hidden)))
    with pytest.raises(AssertionError):
        assert_close(plain.kernel.values, z[:, :, None] * z[:, None, :], "kernel")


@pytest.mark.parametrize("count", [2, 8, 64, 512])
@pytest.mark.parametrize("variance", [0.1, 1.0, 2.0])
def test_softmax_overlap_fit_is_within_its_stated_error(count, variance):
    allowed = 0.016 if variance <= 1 else 0.03
    fitted = overlap(torch.tensor(float(count)), torch.tensor(variance, dtype=torch.float64))
    assert float(fitted) == pytest.approx(exact_overlap(count, variance), rel=allowed)


def exact_overlap(count: int, variance: float, nodes: int = 600) -> float:
    """`Y(n, s)` by quadrature of `n * int t E[e^{2x} e^{-t e^x}] (E e^{-t e^x})^{n-1} dt`, `x ~ N(0, s)`."""
    if count == 1 or variance == 0.0:
        return 1.0 / count
    deviation = math.sqrt(variance)
    x = torch.linspace(-9.0, 9.0, 1201, dtype=torch.float64)
    weight = torch.exp(-x * x / 2)
    weight = weight / weight.sum()
    growth = torch.exp(deviation * x)
    low, high = -9.0 * deviation - 3.0, math.log(count) + 9.0 * deviation + variance + 6.0
    u = torch.linspace(low, high, nodes, dtype=torch.float64)
    t = torch.exp(-u)
    decay = torch.exp(-t[:, None] * growth)
    laplace, second = decay @ weight, decay @ (weight * growth * growth)
    return float(count * torch.trapezoid(t * t * second * laplace ** (count - 1), u))


def test_exact_overlap_against_sampling():
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(40000, 16, generator=rng, dtype=torch.float64) * 1.3
    samples = scores.softmax(-1).square().sum(-1)
    assert_close(torch.tensor([exact_overlap(16, 1.69)]), samples[:, None], "overlap")


def test_zipf_coincidence_exact_and_asymptotic():
    assert sources.zipf_coincidence(32000) == pytest.approx(0.01372, abs=1e-5)
    asymptotic = (math.pi**2 / 6) / (np.euler_gamma + math.log(32000)) ** 2
    assert sources.zipf_coincidence(32000) == pytest.approx(asymptotic, rel=0.02)
    printed = math.pi**2 / (6 * math.log(32000) ** 2)
    assert printed > 1.1 * sources.zipf_coincidence(32000)


def test_bert_input_correlation():
    tables = (sources.zipf_tokens(32000, 256), sources.one_per_position(256), sources.two_segments(256))
    token, position, segment = (sources.ParameterSource(same, 1.0, (512, 64), 64).forward() for same in tables)
    _, variance, correlation = Residual().forward(Residual().forward(token, position), segment).summary()
    assert float(variance) == pytest.approx(3.0)
    assert float(correlation) == pytest.approx(0.2268, abs=1e-4)


def test_a_product_with_a_factor_that_has_a_mean_below_a_sum_over_tokens():
    """All but the square of the covariance, where the slope, as that of a sum over tokens, is no diagonal."""
    generator = torch.Generator().manual_seed(0)
    slope, roots = torch.ones(4, 4, dtype=torch.float64), torch.randn(2, 4, 6, generator=generator, dtype=torch.float64)
    own, covariance = roots[0] @ roots[0].T, 0.1 * roots[1] @ roots[1].T / 6
    mean = torch.rand(4, generator=generator, dtype=torch.float64) + 0.5
    kernel = covariance + mean[:, None] * mean
    other = Signal(Dense(kernel), mean, 64)

    def summed(second):
        terms = ("tu,sv,uv,tu,sv->ts", kernel, kernel), ("tu,sv,uv,tv,su->ts", second, second)
        found = [torch.einsum(rule, slope, slope, own, one, two) for rule, one, two in terms]
        return found[0] + found[1] - 2.0 * torch.einsum("tu,sv,uv,t,s,u,v->ts", slope, slope, own, *[mean] * 4)

    left = torch.einsum("tu,sv,uv,tv,su->ts", slope, slope, own, covariance, covariance)
    left = left - slope.diagonal()[:, None] * own * covariance**2 * slope.diagonal()
    torch.testing.assert_close(_fourth_moments(slope, own, other), summed(kernel) - left)
    across = torch.full((4,), 0.5, dtype=torch.float64)
    torch.testing.assert_close(_fourth_moments(across, own, other), _fourth_moments(torch.diag(across), own, other))

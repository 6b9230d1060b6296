"""What gradients share with the signal they came through: against plain draws of Gaussian pairs."""

import pytest
import torch

from sigprop.theory import Dense, Exchangeable, Gradient, Signal, activations
from sigprop.theory.corrections.gates import ActivationGradient, projected
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.layer_norm import LayerNorm
from sigprop.theory.ops.residual import Residual
from sigprop.theory.states import ThroughActivation

TOKENS, DRAWS, BATCHES = 5, 400_000, 40
NAMES = ["relu", "leaky_relu", "gelu", "tanh", "silu", "elu"]


def kernels() -> tuple[torch.Tensor, torch.Tensor]:
    """A signal with tokens of several variances and correlations, and a gradient common to most of them."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(TOKENS, TOKENS, generator=generator, dtype=torch.float64)
    grad = 0.5 * torch.randn(TOKENS, TOKENS, generator=generator, dtype=torch.float64) + torch.ones(TOKENS, 1)
    return root @ root.T / TOKENS, grad @ grad.T / TOKENS


def drawn(kernel: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(DRAWS, TOKENS, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(kernel).T


def gate_of(
    grad: torch.Tensor, kernel: torch.Tensor, name: str, mean: torch.Tensor | float = 0.0
) -> ActivationGradient:
    """The gate that an activation makes of a gradient with the kernel `grad`."""
    x = Signal(Dense(kernel), torch.zeros(TOKENS, dtype=torch.float64) + mean, 64)
    (made,) = Activation(activations.get(name)).backward(Gradient(Dense(grad)), x, x)
    return made.through_activation.gradients[0]


def agree(values: torch.Tensor, expected: torch.Tensor | float, k: float = 4.5) -> None:
    """Averages over independent batches of draws against the expected values, in standard errors."""
    parts = torch.stack([part.mean(0) for part in values.chunk(BATCHES)])
    error = parts.std(0) / BATCHES**0.5
    assert ((parts.mean(0) - expected).abs() < k * error).all(), (parts.mean(0) - expected) / error


@pytest.mark.parametrize("name", NAMES)
def test_moments_of_a_gated_gradient(name):
    kernel, grad = kernels()
    function = activations.get(name)
    gate, x = gate_of(grad, kernel, name), drawn(kernel, 1)
    g = drawn(grad, 2) * function.derivative(x)
    along = (g * x).sum(1)
    slopes = gate.passed.values
    agree(along**2, (slopes * kernel + gate.excess(Dense(kernel), torch.zeros(TOKENS))).sum())
    plain, beyond = projected(slopes, kernel), gate.projection(Dense(kernel))
    agree(g[:, :, None] * x[:, None] * along[:, None, None], plain[0] + beyond[0])
    agree(x[:, :, None] * x[:, None] * along[:, None, None] ** 2, plain[1] + beyond[1])


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_the_signal_may_have_a_mean(name):
    kernel, grad = kernels()
    function, mean = activations.get(name), torch.linspace(-0.5, 0.5, TOKENS, dtype=torch.float64)
    x = drawn(kernel, 1) + mean
    along = (drawn(grad, 2) * function.derivative(x) * x).sum(1)
    full = kernel + mean[:, None] * mean
    gate = gate_of(grad, full, name, mean)
    agree(along**2, (gate.passed.values * full + gate.excess(Dense(full), mean)).sum())


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_the_signal_may_be_a_part_of_what_the_function_sees(name):
    kernel, grad = kernels()
    function, share = activations.get(name), 0.4
    x, rest = drawn(share * kernel, 1), drawn((1 - share) * kernel, 3)
    g = drawn(grad, 2) * function.derivative(x + rest)
    along = (g * x).sum(1)
    part, whole = Dense(share * kernel), gate_of(grad, kernel, name)
    gradient = Gradient(whole.passed, through_activation=ThroughActivation((whole,)))
    signals = [Signal(Dense(w * kernel), torch.zeros(TOKENS), 64) for w in (share, 1 - share)]
    passed, _ = Residual().backward(gradient, signals[0], *signals)
    (gate,) = passed.through_activation.gradients
    slopes = whole.passed.values
    agree(along**2, (slopes * part.values + gate.excess(part, torch.zeros(TOKENS))).sum())
    one = projected(slopes, part.values)[0] + gate.projection(part)[0]
    agree(g[:, :, None] * x[:, None] * along[:, None, None], one)


def test_gain_before_an_activation_in_both_representations():
    """ReLU passes its input or nothing: the gain's gradient is that of the output's scale, `sum G E[y y']`."""
    alike = Signal(Exchangeable.of(1.0, 0.3, 4), torch.zeros(()), 64)
    upstream = Gradient(Exchangeable.of(2.0, 1.1, 4))
    op = Activation(activations.get("relu"))
    (below,) = op.backward(upstream, alike, alike)
    gain, _ = LayerNorm(epsilon=0.0).parameters(below, alike)
    expected = upstream.kernel.contract(op.forward(alike).kernel)
    assert float(gain.grad_second_moment) == pytest.approx(float(expected), rel=1e-12)
    (spread,) = op.backward(Gradient(upstream.kernel.dense()), alike.dense(), alike.dense())
    dense, _ = LayerNorm(epsilon=0.0).parameters(spread, alike.dense())
    assert float(dense.grad_second_moment) == pytest.approx(float(expected), rel=1e-12)


def test_gradients_of_two_paths_add_and_are_counted_at_a_scale():
    kernel, grad = kernels()
    parts = (ThroughActivation((gate_of(grad, kernel, name),)) for name in ("relu", "tanh"))
    one, other = (Gradient(Dense(grad), through_activation=part) for part in parts)
    assert [item.function.name for item in (one + other).through_activation.gradients] == ["relu", "tanh"]
    signals = [Signal(Dense(kernel), torch.zeros(TOKENS), 64)] * 2
    scaled, same = Residual(skip=0.5).backward(one, signals[0], *signals)
    assert not scaled.through_activation.gradients
    assert float(scaled.through_activation.gain_excess) > 0.0
    assert float(same.through_activation.gradients[0].share) == pytest.approx(0.8)

"""The shared battery for ops: draw real tensors with a given state, run torch, compare within standard errors."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory import Exchangeable, Gradient, Signal, exchangeable_gradient, exchangeable_signal
from sigprop.theory.ops.base import Op

SIGMAS = 4.5


@dataclass
class Setting:
    """A state to start from, and how many networks to draw."""

    variance: float = 1.0
    correlation: float = 0.3
    mean: float = 0.0
    grad_variance: float = 1.0
    grad_correlation: float = 0.2
    tokens: int = 12
    width: int = 64
    draws: int = 300

    def signal(self) -> Signal:
        return exchangeable_signal(self.variance, self.correlation, self.mean, tokens=self.tokens, width=self.width)

    def gradient(self, tokens: int | None = None) -> Gradient:
        return exchangeable_gradient(self.grad_variance, self.grad_correlation, tokens=tokens or self.tokens)


def draw(variance: float, correlation: float, mean: float, shape: tuple[int, int, int], rng: torch.Generator) -> Tensor:
    """`[draws, tokens, channels]` Gaussian with exchangeable tokens."""
    draws, tokens, channels = shape
    common = torch.randn(draws, 1, channels, generator=rng, dtype=torch.float64)
    own = torch.randn(draws, tokens, channels, generator=rng, dtype=torch.float64)
    return mean + variance**0.5 * (correlation**0.5 * common + (1 - correlation) ** 0.5 * own)


def moments(x: Tensor) -> Tensor:
    """Per draw: same-token and different-token second moment."""
    tokens, channels = x.shape[1:]
    same = x.square().mean((1, 2))
    everything = x.sum(1).square().sum(1) / channels
    if tokens == 1:
        return same[:, None]
    return torch.stack((same, (everything - tokens * same) / (tokens * (tokens - 1))), 1)


def assert_close(predicted: Tensor, samples: Tensor, what: str, slack: float = 0.0) -> None:
    """Every entry within `SIGMAS` standard errors (plus a stated relative slack for higher orders in 1/width)."""
    mean, error = samples.mean(0), samples.std(0) / len(samples) ** 0.5
    scale = mean.abs().max()
    allowed = SIGMAS * error + slack * scale + 1e-12
    off = (predicted - mean).abs() / allowed
    assert bool((off <= 1).all()), (
        f"{what}: predicted {predicted.tolist()}, measured {mean.tolist()} ± {error.tolist()}"
    )


def values(kernel) -> Tensor:
    assert isinstance(kernel, Exchangeable)
    return kernel.values[:1] if kernel.tokens == 1 else kernel.values


def check(
    op: Op, run: Callable[[Tensor, torch.Generator], Tensor], setting: Setting, slack: float = 0.0, seed: int = 0
):
    """Forward and backward of an op with one input against `run`, which applies fresh weights to each draw."""
    rng = torch.Generator().manual_seed(seed)
    shape = (setting.draws, setting.tokens, setting.width)
    x = draw(setting.variance, setting.correlation, setting.mean, shape, rng).requires_grad_()
    y = run(x, rng)
    g = draw(setting.grad_variance, setting.grad_correlation, 0.0, tuple(y.shape), rng)
    (grad,) = torch.autograd.grad(y, x, g)
    out = op.forward(setting.signal())
    (back,) = op.backward(setting.gradient(y.shape[1]), out, setting.signal())
    assert_close(values(out.kernel), moments(y.detach()), "forward", slack)
    assert_close(values(back.kernel), moments(grad), "backward", slack)
    return x.detach(), y.detach(), g

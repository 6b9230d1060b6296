"""The state of the signal going forward and of the gradient going backward.

Besides the kernel each state carries what first-order finite-width corrections need. At width `d`, per token:

- `Signal.norm_fluctuation`: `d` times the relative variance of the squared norm (2 for independent Gaussian
  channels, 0 after a normalization);
- `Signal.mixed`: the mean square cosine of a token with those it was made from, where a map over tokens, the same in
  all channels, has mixed them: one over their number if they are independent. It makes the norm of their sum fluctuate;
- `Signal.pair_fluctuation`: `d` times the variance, over networks, of the product of two tokens about the average one,
  relative to their size (1 for independent Gaussian channels; of two normalized tokens with cosine `r` the product
  itself varies by `(1 - r^2)^2` of it). No norm removes it, so that it adds up over layers;
- `Signal.pair_inherited`: the part of it that came with the tensor at which a branch begins (a source, a residual sum,
  a norm of these), 0 there. It is in step with the fluctuations of the skip path; the rest is not;
- `Signal.uniform_share`: `d` times the share of the squared norm along the all-ones direction (1 for independent
  channels, 0 after centring);
- `Signal.common_share`: the share of the squared norm in a part that is the same in all channels and independent
  between tokens, as a map over tokens makes it; not small, and removed by centring;
- `Gradient.radial_share`, `Gradient.uniform_share`: the same shares of the gradient, along the signal itself and
  along the all-ones direction. A normalization removes exactly these;
- `Gradient.tilt` and `Gradient.alignment`: the gradient is `B x` and a rest (see `tilts`), and the expected average
  over channels of the signal at `s` times the gradient at `t` is `(K B^T)[s,t] + alignment[s,t]`. The tilt `B` is a
  vector where it is diagonal; tied embeddings give the rest rows that the signal carries. They add up over tokens;
- `Gradient.gates`: the parts of the gradient that came through a function of the signal (see `gates`);
- `Gradient.excess`: what `E (sum_t g_t x_t)^2` of one channel has beyond `sum_tt' G K`, carried down from a gate. Maps
  over positions keep the sum itself, so that they keep this.

They matter because a deep stack multiplies many factors `1 + c/d`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.gradient_along_signal import added, crossed
from sigprop.theory.gradient_through_activation import Gate
from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.status import EXACT, Evidence, Status

Number = Tensor | float


@dataclass(frozen=True)
class Signal:
    """Uncentred second moments over token pairs and the mean per token, of a tensor with `width` channels."""

    kernel: Kernel
    mean: Tensor
    width: int
    norm_fluctuation: Tensor | float = 2.0
    uniform_share: Tensor | float = 1.0
    common_share: Tensor | float = 0.0
    pair_fluctuation: Tensor | float = 1.0
    pair_inherited: Tensor | float = 0.0
    mixed: Tensor | float = 0.0
    evidence: Evidence = EXACT

    @property
    def covariance(self) -> Kernel:
        """Moments about the mean of each token."""
        if not torch.any(self.mean):
            return self.kernel
        return self.kernel - self.kernel.outer(self.mean, self.mean)

    @property
    def pair_origin(self) -> Tensor:
        """What of the pair fluctuation comes from where the branch begins: all of it, if that is here."""
        inherited, total = (torch.as_tensor(item) for item in (self.pair_inherited, self.pair_fluctuation))
        return torch.where(inherited > 0.0, inherited, total)

    @property
    def independent_channels(self) -> int:
        """How many independent channels make pairs of tokens fluctuate as they do."""
        return max(1, round(self.width / max(float(self.pair_fluctuation), 1e-9)))

    def note(self, status: Status, reason: str) -> Signal:
        """The same state with the evidence worsened."""
        return replace(self, evidence=self.evidence.join(Evidence(status, reason)))

    def dense(self) -> Signal:
        """The same state with all pairs of tokens written out."""
        if isinstance(self.kernel, Exchangeable):
            kernel = self.kernel.dense()
            return replace(self, kernel=kernel, mean=self.mean[..., None].expand_as(kernel.diagonal))
        return self

    def exchangeable(self) -> Signal:
        """The closest state in which all tokens are alike."""
        return replace(self, kernel=self.kernel.exchangeable(), mean=self.kernel.token_average(self.mean))

    def summary(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean over all entries, variance about it, token correlation about it."""
        kernel = self.kernel
        overall = kernel.token_average(self.mean)
        level = self.mean - kernel.per_token(overall / 2)
        shift = kernel.outer(level, torch.ones_like(level)).scale(overall)
        centred = kernel - shift - shift.transposed()
        variance = kernel.token_average(centred.diagonal)
        return overall, variance, centred.cosine_average()


@dataclass(frozen=True)
class Gradient:
    """Second moments over token pairs of the gradient of the loss with respect to a tensor."""

    kernel: Kernel
    radial_share: Tensor | float = 1.0
    uniform_share: Tensor | float = 1.0
    evidence: Evidence = EXACT
    alignment: Tensor | float = 0.0
    tilt: Tensor | float = 0.0
    gates: tuple[Gate, ...] = ()
    excess: Tensor | float = 0.0

    def __add__(self, other: Gradient) -> Gradient:
        """Gradients that arrive along paths with independent weights: energies add, shares average."""
        mine, theirs = self.energy(), other.energy()
        total = (mine + theirs).clamp_min(torch.finfo(mine.dtype).tiny)

        def mix(a, b):
            return (a * mine + b * theirs) / total

        return Gradient(
            self.kernel + other.kernel,
            mix(self.radial_share, other.radial_share),
            mix(self.uniform_share, other.uniform_share),
            self.evidence.join(other.evidence),
            self.alignment + other.alignment,
            added(self.tilt, other.tilt),
            self.gates + other.gates,
            self.excess + other.excess,
        )

    def meets(self, other: Gradient, signal: Signal) -> Gradient:
        """The sum at a tensor: what both have in common with the signal, they have in common with each other."""
        made = self + other
        pairs = ((self.tilt, self.alignment), (other.tilt, other.alignment))
        cross = crossed(signal.kernel.values, *pairs)
        return replace(made, kernel=made.kernel.like(made.kernel.values + cross)) if isinstance(cross, Tensor) else made

    def energy(self) -> Tensor:
        """Mean square over tokens."""
        return self.kernel.token_average(self.kernel.diagonal)

    def scale(self, factor: Tensor | float) -> Gradient:
        return replace(self, kernel=self.kernel.scale(factor), gates=(), excess=0.0)

    def note(self, status: Status, reason: str) -> Gradient:
        return replace(self, evidence=self.evidence.join(Evidence(status, reason)))

    def summary(self) -> tuple[Tensor, Tensor]:
        """Mean square over all entries and token correlation."""
        return self.energy(), self.kernel.cosine_average()


def exchangeable_signal(
    variance: Number, correlation: Number = 0.0, mean: Number = 0.0, *, tokens: int, width: int
) -> Signal:
    """A state in which all tokens are alike; every argument may be a grid."""
    variance, correlation, mean = (torch.as_tensor(item, dtype=torch.float64) for item in (variance, correlation, mean))
    kernel = Exchangeable.of(variance + mean**2, variance * correlation + mean**2, tokens)
    return Signal(kernel, mean + torch.zeros_like(kernel.diagonal), width)


def exchangeable_gradient(variance: Number, correlation: Number = 0.0, *, tokens: int) -> Gradient:
    """A gradient with all tokens alike; `correlation=0` is white noise, the probe of partial Jacobians."""
    variance, correlation = (torch.as_tensor(item, dtype=torch.float64) for item in (variance, correlation))
    return Gradient(Exchangeable.of(variance, variance * correlation, tokens))


def gradient_of(values: Tensor, like: Gradient) -> Gradient:
    return Gradient(Dense(values), like.radial_share, like.uniform_share, like.evidence)

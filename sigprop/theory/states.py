"""The state of the signal going forward and of the gradient going backward.

Both are second moments over pairs of tokens, and a few named parts beside: what finite width adds, and what couples the
gradient to the signal (see `parts`). What each op does with every part it declares itself (see `carries`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sigprop.theory.corrections import ACTIVE
from sigprop.theory.corrections.along_signal import crossed
from sigprop.theory.kernels import Exchangeable, Kernel
from sigprop.theory.parts import GIVEN, AlongSignal, Common, Directions, Fluctuation, Number, ThroughActivation
from sigprop.theory.status import EXACT, Evidence, Status

CORRECTED = {"directions": "finite_width", "along_signal": "along_signal", "through_activation": "gates"}
"""Parts of a gradient, by the correction that they belong to."""
ROUNDING = 1e-7
"""Of the sum over tokens of a gradient, against that of tokens alike: what cancels to less is rounding."""


@dataclass(frozen=True)
class Signal:
    """Uncentred second moments over token pairs and the mean per token, of a tensor with `width` channels."""

    kernel: Kernel
    mean: Tensor
    width: int
    fluctuation: Fluctuation = field(default_factory=Fluctuation)
    common: Common = field(default_factory=Common)
    evidence: Evidence = EXACT

    def __post_init__(self) -> None:
        if "pairs" not in ACTIVE.get():
            object.__setattr__(self, "fluctuation", Fluctuation(self.fluctuation.norm, GIVEN.pair))

    @property
    def covariance(self) -> Kernel:
        """Moments about the mean of each token."""
        if not torch.any(self.mean):
            return self.kernel
        return self.kernel - self.kernel.outer(self.mean, self.mean)

    def without_mean(self) -> Signal:
        """About the mean of each token: what weights that sum to zero see."""
        return replace(self, kernel=self.covariance, mean=torch.zeros_like(self.mean))

    @property
    def independent_channels(self) -> int:
        """How many independent channels make pairs of tokens fluctuate as they do."""
        return max(1, round(self.width / max(float(self.fluctuation.pair), 1e-9)))

    def note(self, status: Status, reason: str) -> Signal:
        """The same state with the evidence worsened."""
        if status <= self.evidence.status:
            return self
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
    directions: Directions = field(default_factory=Directions)
    along_signal: AlongSignal = field(default_factory=AlongSignal)
    through_activation: ThroughActivation = field(default_factory=ThroughActivation)
    evidence: Evidence = EXACT

    def __post_init__(self) -> None:
        active = ACTIVE.get()
        for part, correction in CORRECTED.items():
            if correction not in active:
                object.__setattr__(self, part, type(getattr(self, part))())

    def __add__(self, other: Gradient) -> Gradient:
        """Gradients that arrive along paths with independent weights: energies add, directions average.

        One part of a sum alone may have less than no energy: what two paths have in common.
        """
        mine, theirs = self.energy().abs(), other.energy().abs()
        total = (mine + theirs).clamp_min(torch.finfo(mine.dtype).tiny)

        def mix(a, b):
            return (a * mine + b * theirs) / total

        one, two = self.directions, other.directions
        return Gradient(
            self.kernel + other.kernel,
            Directions(
                mix(one.radial, two.radial),
                mix(one.uniform, two.uniform),
                one.groups if one.groups == two.groups else 1,
                mix(one.response, two.response),
            ),
            self.along_signal + other.along_signal,
            self.through_activation + other.through_activation,
            self._evidence_with(other, float(torch.nan_to_num(mix(1.0, 0.0)).mean())),
        )

    def _evidence_with(self, other: Gradient, share: float) -> Evidence:
        """The worse of the two statuses; what is left open adds up by the energy that each brings."""
        found = self.evidence.join(other.evidence)
        return replace(found, doubt=share * self.evidence.doubt + (1.0 - share) * other.evidence.doubt)

    def meets(self, other: Gradient, signal: Signal) -> Gradient:
        """The sum at a tensor: what both have in common with the signal, they have in common with each other."""
        made = self + other
        pairs = ((item.along_signal.slope, item.along_signal.rest) for item in (self, other))
        cross = crossed(signal.kernel.values, *pairs)
        return replace(made, kernel=made.kernel.like(made.kernel.values + cross)) if isinstance(cross, Tensor) else made

    def energy(self) -> Tensor:
        """Mean square over tokens."""
        return self.kernel.level

    def summed(self) -> Tensor:
        """Mean square of the sum over tokens, which a bias receives; zero where only rounding is left of it.

        Nobody sees a shift that all keys have in common: what float32 draws leave of that sum is no number.
        """
        total, most = self.kernel.total(), self.kernel.tokens**2 * self.energy()
        return torch.where(total > ROUNDING * most, total, torch.zeros_like(total))

    def note(self, status: Status, reason: str) -> Gradient:
        """The same state with the evidence worsened."""
        return (
            self
            if status <= self.evidence.status
            else replace(self, evidence=self.evidence.join(Evidence(status, reason)))
        )

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

"""States: the signal going forward, the gradient going backward, how each number is known, and what ops carry of them.

Both are second moments over pairs of tokens, and a few named parts beside: what finite width adds, and what couples the
gradient to the signal. A deep stack multiplies many factors `1 + c/d`, and adds up many terms of one sign: the parts
hold the `c` and the terms. Their defaults are what fresh, independent Gaussian channels have. What each op does with
every part it declares itself (`Carries`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, TypeVar

import torch
from torch import Tensor

from sigprop.theory.corrections import ACTIVE
from sigprop.theory.corrections.along_signal import Slope, added, crossed
from sigprop.theory.corrections.gates import ActivationGradient, excess_of
from sigprop.theory.kernels import Exchangeable, Kernel


class Status(IntEnum):
    """Ordered from best to worst; along a chain the worst one wins."""

    EXACT = 0
    ASYMPTOTIC = 1
    QUADRATURE = 2
    SAMPLED = 3
    FITTED = 4
    ASSUMED = 5

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Evidence:
    """A status with its reason, and what the neglected orders of depth over width may add to its error.

    `doubt` is that part of the corrections of first order that the next ones may bring (see
    `corrections.finite_width`): it grows along every path, with depth over width.
    """

    status: Status = Status.EXACT
    reason: str = ""
    doubt: float = 0.0

    def join(self, *others: Evidence) -> Evidence:
        """The worst of all; the earlier reason stays on a tie."""
        worst, doubt = self, self.doubt
        for other in others:
            worst, doubt = other if other.status > worst.status else worst, max(doubt, other.doubt)
        return worst if doubt == worst.doubt else Evidence(worst.status, worst.reason, doubt)

    def doubted(self, more: float) -> Evidence:
        """With so much more left open."""
        return Evidence(self.status, self.reason, self.doubt + more) if more else self


EXACT = Evidence()


# -- What a state carries beside its kernel and mean, in five parts: two of a signal, three of a gradient


Number = Tensor | float


@dataclass(frozen=True)
class Fluctuation:
    """How much norms and products of tokens vary over networks, at `d` channels.

    - `norm`: `d` times the relative variance of the squared norm (2 for independent Gaussian channels, 0 after a norm),
      or rather of its inverse mean, `d (1 - 1/(E n E 1/n))`, where that is known to differ;
    - `pair`: `d` times the variance of the product of two tokens about the average one, relative to their size (1 for
      independent Gaussian channels; of two normalized tokens with cosine `r` the product itself varies by
      `(1 - r^2)^2` of it). No norm removes it, so that it adds up over layers;
    - `pair_inherited`: the part of it that came with the tensor at which a branch begins (a source, a residual sum, a
      norm of these), 0 there. It is correlated with the fluctuations of the skip path; the rest is not.
    """

    norm: Number = 2.0
    pair: Number = 1.0
    pair_inherited: Number = 0.0

    @property
    def pair_origin(self) -> Tensor:
        """What of the pair fluctuation comes from where the branch begins: all of it, if that is here."""
        inherited, total = (torch.as_tensor(item) for item in (self.pair_inherited, self.pair))
        return torch.where(inherited > 0.0, inherited, total)

    def scaled(self, factor: Number) -> Fluctuation:
        """The same relative variances at `factor` times as many channels."""
        return Fluctuation(self.norm * factor, self.pair * factor, self.pair_inherited * factor)


GIVEN = Fluctuation(norm=0.0, pair=1e-6)
"""Of numbers that are the same in all networks; not zero, so that shares of it have a meaning."""


@dataclass(frozen=True)
class Common:
    """What the channels of a signal have in common.

    - `uniform`: `d` times the share of the squared norm along the all-ones direction (1 for independent channels, 0
      after centring);
    - `share`: the share of the squared norm in a part that is the same in all channels and independent between tokens,
      as a map over tokens makes it; not small, and removed by centring;
    - `mixed`: the mean square cosine of a token with those it was made from, where a map over tokens, the same in all
      channels, has mixed them: one over their number if they are independent. It makes the norm of their sum fluctuate.
    """

    uniform: Number = 1.0
    share: Number = 0.0
    mixed: Number = 0.0


@dataclass(frozen=True)
class Directions:
    """`d` times the shares of a gradient's energy along the signal itself and along the all-ones direction (1 if it
    points anywhere). A normalization removes exactly these.

    `groups`: the radial share is that of each of so many equal groups of channels, as after norms of heads.
    `response`: how the energy follows the squared norm of the signal, `d log G / d log n`; -1 below a norm.
    `normed`: the part of a channel over all tokens, about its mean, that a norm over the batch has taken out.
    `channel`: `E (sum_t g_t x_t)^2` of a channel over all tokens, in units of that of an independent gradient; 0 below
    a norm over the batch.
    """

    radial: Number = 1.0
    uniform: Number = 1.0
    groups: int = 1
    response: Number = 0.0
    channel: Number = 1.0
    normed: Number = 0.0

    def along_part(self, part: Number) -> Number:
        """The radial share at a tensor that brings this part of the squared norm; the rest may point anywhere."""
        return 1.0 + (self.radial - 1.0) * part

    def at_part(self, part: Number) -> Directions:
        """At a tensor that brings this part of the squared norm."""
        return replace(self, radial=self.along_part(part), response=self.response * part, normed=self.normed * part)


@dataclass(frozen=True)
class AlongSignal:
    """The part of a gradient that is a linear function of the signal (see `corrections.along_signal`).

    The gradient is `B x` and a rest. `slope` is `B` (a vector where it is diagonal), and `rest[s,t]` the expected
    average over channels of the signal at `s` times the rest at `t`, which tied embeddings make: the signal carries
    their rows. Both add up over tokens.
    """

    slope: Slope = 0.0
    rest: Number = 0.0

    def moved(self, move: Callable[[Tensor], Tensor]) -> AlongSignal:
        """Where the positions are moved."""
        return AlongSignal(*(move(item) if isinstance(item, Tensor) else item for item in (self.slope, self.rest)))

    def __add__(self, other: AlongSignal) -> AlongSignal:
        return AlongSignal(added(self.slope, other.slope), self.rest + other.rest)


@dataclass(frozen=True)
class ThroughActivation:
    """The parts of a gradient that came through a function of the signal (see `corrections.gates`).

    - `gradients`: those whose function is still known;
    - `gain_excess`: what `E (sum_t g_t x_t)^2` of one channel has beyond `sum_tt' G K`, from further up. Whatever is
      the same in all channels, or multiplies entries, keeps `sum_t g_t x_t` itself, so that it keeps this.
    """

    gradients: tuple[ActivationGradient, ...] = ()
    gain_excess: Number = 0.0

    def __add__(self, other: ThroughActivation) -> ThroughActivation:
        return ThroughActivation(self.gradients + other.gradients, self.gain_excess + other.gain_excess)

    def moved(self, move: Callable[[Kernel], Kernel], gain_excess: Number = 1.0) -> ThroughActivation:
        """With every kernel mapped, and so much of `sum_t g_t x_t` squared."""
        found = ((item, move(item.kernel), move(item.passed)) for item in self.gradients)
        made = (replace(item, kernel=kernel, passed=passed, kurtosis=None) for item, kernel, passed in found)
        return ThroughActivation(tuple(made), self.gain_excess * gain_excess)

    def collected(self, signal: Signal) -> ThroughActivation:
        """With the excess of every gradient counted, for an op that keeps `sum_t g_t x_t`; `signal` is its output."""
        if not self.gradients:
            return self
        kernel = signal.kernel
        found = kernel.like(excess_of(self.gradients, kernel, signal.mean)).total()
        return ThroughActivation(gain_excess=self.gain_excess + found)


# -- The state of the signal going forward and of the gradient going backward


CORRECTED = {"directions": "finite_width", "along_signal": "along_signal", "through_activation": "gates"}
"""Parts of a gradient, by the correction that they belong to."""
FEW = 32
"""Channels up to which their own average counts: beyond it is at most 3 % of a variance."""


Self = TypeVar("Self", bound="State")


@dataclass(frozen=True)
class State:
    """A state that says how it is known."""

    evidence: Evidence = field(default=EXACT, kw_only=True)

    def note(self: Self, status: Status, reason: str) -> Self:
        """The same state with the evidence worsened."""
        if status <= self.evidence.status:
            return self
        return replace(self, evidence=self.evidence.join(Evidence(status, reason)))


@dataclass(frozen=True)
class Signal(State):
    """Uncentred second moments over token pairs and the mean per token, of a tensor with `width` channels."""

    kernel: Kernel
    mean: Tensor
    width: int
    fluctuation: Fluctuation = field(default_factory=Fluctuation)
    common: Common = field(default_factory=Common)

    def __post_init__(self) -> None:
        if "pairs" not in ACTIVE.get():
            object.__setattr__(self, "fluctuation", Fluctuation(self.fluctuation.norm, GIVEN.pair))

    @property
    def covariance(self) -> Kernel:
        """Moments about the mean of each token."""
        if not torch.any(self.mean):
            return self.kernel
        return self.kernel - self.kernel.outer(self.mean, self.mean)

    def of_the_average(self) -> Tensor:
        """Variance over networks of the average over all entries, about which each network's variance is taken.

        Of independent channels `1 / d` of the average covariance of two positions, of others by what they have along
        all ones: it counts where channels are `FEW`, as in a gate of one channel whose tokens have much in common.
        """
        shared = self.covariance.total() / self.kernel.tokens**2
        return (shared * (torch.as_tensor(self.common.uniform) / self.width)).clamp_min(0.0)

    def without_mean(self) -> Signal:
        """About the mean of each token: what weights that sum to zero see."""
        return replace(self, kernel=self.covariance, mean=torch.zeros_like(self.mean))

    @property
    def independent_channels(self) -> int:
        """How many independent channels make pairs of tokens fluctuate as they do."""
        return max(1, round(self.width / max(float(self.fluctuation.pair), 1e-9)))

    def dense(self) -> Signal:
        """The same state with all pairs of tokens written out."""
        if isinstance(self.kernel, Exchangeable):
            kernel = self.kernel.dense()
            return replace(self, kernel=kernel, mean=self.mean[..., None].expand_as(kernel.diagonal))
        return self

    def exchangeable(self) -> Signal:
        """The closest exchangeable state."""
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
class Gradient(State):
    """Second moments over token pairs of the gradient of the loss with respect to a tensor."""

    kernel: Kernel
    directions: Directions = field(default_factory=Directions)
    along_signal: AlongSignal = field(default_factory=AlongSignal)
    through_activation: ThroughActivation = field(default_factory=ThroughActivation)

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
                mix(one.channel, two.channel),
                mix(one.normed, two.normed),
            ),
            self.along_signal + other.along_signal,
            self.through_activation + other.through_activation,
            evidence=self._evidence_with(other, float(torch.nan_to_num(mix(1.0, 0.0)).mean())),
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
        """Mean square of the sum over tokens, which a bias receives."""
        return self.kernel.summed()

    def summary(self) -> tuple[Tensor, Tensor]:
        """Mean square over all entries and token correlation."""
        return self.energy(), self.kernel.cosine_average()


def exchangeable_signal(
    variance: Number, correlation: Number = 0.0, mean: Number = 0.0, *, tokens: int, width: int
) -> Signal:
    """An exchangeable state; every argument may be a grid."""
    variance, correlation, mean = (torch.as_tensor(item, dtype=torch.float64) for item in (variance, correlation, mean))
    kernel = Exchangeable.of(variance + mean**2, variance * correlation + mean**2, tokens)
    return Signal(kernel, mean + torch.zeros_like(kernel.diagonal), width)


def exchangeable_gradient(variance: Number, correlation: Number = 0.0, *, tokens: int) -> Gradient:
    """An exchangeable gradient; `correlation=0` is white noise, the probe of partial Jacobians."""
    variance, correlation = (torch.as_tensor(item, dtype=torch.float64) for item in (variance, correlation))
    return Gradient(Exchangeable.of(variance, variance * correlation, tokens))


# -- What an op says it does with every part of a state


def _parts_of(state: type[State]) -> dict[str, Any]:
    return {item.name: item.default_factory for item in fields(state) if item.default_factory is not MISSING}


SIGNAL_PARTS, GRADIENT_PARTS = _parts_of(Signal), _parts_of(Gradient)


@dataclass(frozen=True)
class Passage:
    """What an op does with one part."""

    kind: str
    reason: str = ""


KEPT = Passage("kept")
TRANSFORMED = Passage("transformed")


def ended(reason: str) -> Passage:
    """The part starts afresh behind the op."""
    return Passage("ended", reason)


@dataclass(frozen=True, kw_only=True)
class Carries:
    """What an op does with each part of a state, declared in its own class, where its equations are: `KEPT`, the output
    has it as the (first) input has it; `TRANSFORMED`, the op computes it; `ended(reason)`, it starts afresh behind the
    op, and why.

    It also makes the op's states, so that what is declared is what happens: a part that is transformed must be given,
    and no other may be. A class with a `forward` or a `backward` of its own and without a declaration of its own cannot
    be defined (see `Op`).
    """

    fluctuation: Passage
    common: Passage
    directions: Passage
    along_signal: Passage
    through_activation: Passage

    def but(self, **parts: Passage) -> Carries:
        """The same declaration with these parts otherwise."""
        return replace(self, **parts)

    def signal(
        self,
        x: Signal,
        kernel: Kernel,
        mean: Tensor,
        width: int | None = None,
        evidence: Evidence | None = None,
        **transformed: Any,
    ) -> Signal:
        """The output of an op on `x`; width and evidence are those of `x` unless given."""
        parts = self._parts(SIGNAL_PARTS, x, transformed)
        return Signal(kernel, mean, width or x.width, evidence=evidence or x.evidence, **parts)

    def gradient(
        self, gradient: Gradient, kernel: Kernel, evidence: Evidence | None = None, **transformed: Any
    ) -> Gradient:
        """The gradient at an input of an op, given that at its output."""
        parts = self._parts(GRADIENT_PARTS, gradient, transformed)
        return Gradient(kernel, evidence=evidence or gradient.evidence, **parts)

    def _parts(self, kinds: dict[str, Any], state: Signal | Gradient, given: dict[str, Any]) -> dict[str, Any]:
        made = dict(given)
        for name, kind in kinds.items():
            passage: Passage = getattr(self, name)
            if (passage is TRANSFORMED) != (name in given):
                came = "given" if name in given else "not given"
                raise TypeError(f"the part {name!r} of a state is declared {passage.kind}, and it was {came}")
            if passage is not TRANSFORMED:
                made[name] = getattr(state, name) if passage is KEPT else kind()
        return made


ALL_TRANSFORMED = Carries(
    fluctuation=TRANSFORMED,
    common=TRANSFORMED,
    directions=TRANSFORMED,
    along_signal=TRANSFORMED,
    through_activation=TRANSFORMED,
)
"""The declaration of an op that computes every part."""


def starts(reason: str) -> Carries:
    """The declaration of an op without inputs."""
    begin, no_input = ended(reason), ended("there is no input to send a gradient to")
    return Carries(
        fluctuation=begin, common=begin, directions=no_input, along_signal=no_input, through_activation=no_input
    )

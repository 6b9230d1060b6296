"""What a state carries beside its kernel and mean, in five parts: two of a signal, three of a gradient.

A deep stack multiplies many factors `1 + c/d`, and adds up many terms of one sign: the parts hold the `c` and the
terms. Their defaults are what fresh, independent Gaussian channels have. What an op does with each: see `carries`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import Slope, added
from sigprop.theory.corrections.gates import ActivationGradient, excess_of

if TYPE_CHECKING:
    from sigprop.theory.states import Signal

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
      norm of these), 0 there. It is in step with the fluctuations of the skip path; the rest is not.
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
    """

    radial: Number = 1.0
    uniform: Number = 1.0
    groups: int = 1
    response: Number = 0.0

    def along_part(self, part: Number) -> Number:
        """The radial share at a tensor that brings this part of the squared norm; the rest may point anywhere."""
        return 1.0 + (self.radial - 1.0) * part

    def at_part(self, part: Number) -> Directions:
        """At a tensor that brings this part of the squared norm."""
        return replace(self, radial=self.along_part(part), response=self.response * part)


@dataclass(frozen=True)
class AlongSignal:
    """The part of a gradient that is a linear function of the signal (see `corrections.along_signal`).

    The gradient is `B x` and a rest. `slope` is `B` (a vector where it is diagonal), and `rest[s,t]` the expected
    average over channels of the signal at `s` times the rest at `t`, which tied embeddings make: the signal carries
    their rows. Both add up over tokens.
    """

    slope: Slope = 0.0
    rest: Number = 0.0

    def __add__(self, other: AlongSignal) -> AlongSignal:
        return AlongSignal(added(self.slope, other.slope), self.rest + other.rest)


@dataclass(frozen=True)
class ThroughActivation:
    """The parts of a gradient that came through a function of the signal (see `corrections.gates`).

    - `gradients`: those whose function is still known;
    - `gain_excess`: what `E (sum_t g_t x_t)^2` of one channel has beyond `sum_tt' G K`, from further up. Whatever is
      alike in all channels, or multiplies entries, keeps `sum_t g_t x_t` itself, so that it keeps this.
    """

    gradients: tuple[ActivationGradient, ...] = ()
    gain_excess: Number = 0.0

    def __add__(self, other: ThroughActivation) -> ThroughActivation:
        return ThroughActivation(self.gradients + other.gradients, self.gain_excess + other.gain_excess)

    def collected(self, signal: Signal) -> ThroughActivation:
        """With the excess of every gradient counted, for an op that keeps `sum_t g_t x_t`; `signal` is its output."""
        if not self.gradients:
            return self
        kernel = signal.kernel
        found = kernel.like(excess_of(self.gradients, kernel, signal.mean)).total()
        return ThroughActivation(gain_excess=self.gain_excess + found)

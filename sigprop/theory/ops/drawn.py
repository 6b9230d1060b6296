"""What ops without a closed form have in common: they are evaluated on draws, which somebody else makes.

An op says what draws mean for the states before and behind it. Who draws, and how many, is bound to it as `draws`: the
interpreter replays the model's own functions on numbers drawn from predicted states.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import applied
from sigprop.theory.drawing import DTYPE, drawn_rows, kernel_of, root_of, unit_kernel
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Coupling, Law, Op, ParameterState
from sigprop.theory.ops.gain import ACROSS, FEW, FEW_NUMBERS
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    EXACT,
    Common,
    Directions,
    Evidence,
    Fluctuation,
    Gradient,
    Signal,
    Status,
    ThroughActivation,
    ended,
)

Self = TypeVar("Self", bound="DrawnOp")


TAIL = "a gradient with a long tail: what most initializations have"


class DrawnOp(Op):
    """An op with inputs that are the sources of what is drawn (and values, if it takes some beside).

    `draws` is who draws: `bound(states)` are the same draws from the states and distributions of an evaluation (itself
    if they are these), `received` is what arrived at the sources going backward, and `scale_received(factor)` averages
    it over all draws and multiplies it. `backward()` yields draws; one with `has_sources` lets them receive a gradient
    of what was drawn, `send(gradient)`.
    """

    draws: Any
    _sent: tuple[Gradient, Gradient | None] | None = None

    def bound(self: Self, states: Any, node: Any) -> Self:
        draws = self.draws.bound(states)
        if draws is self.draws:
            return self
        made = copy(self)
        made.draws, made._sent = draws, None
        return made

    @property
    def received(self) -> Any:
        return self.draws.received

    def with_law(self: Self, parameter: str, law: Law) -> Self:
        """Weights are drawn, by whatever their distributions are then."""
        return self

    @abstractmethod
    def _send(self, gradient: Gradient, *inputs: Signal) -> Gradient | None:
        """Send a gradient back through draws; returns that of an input which is no source of these."""

    def sent(self, gradient: Gradient, *inputs: Signal) -> tuple[Any, Gradient | None]:
        """What the draws have received of a gradient, and what `_send` returned: sent once for weights and inputs."""
        if self._sent is None or self._sent[0] is not gradient:
            self._sent = (gradient, self._send(gradient, *inputs))
        assert self.received is not None
        return self.received, self._sent[1]

    def drawn_evidence(self, receiver: Any) -> Evidence:
        """What the scatter of draws says of the gradient that a source, by its number, or a weight has received."""
        return Evidence(Status.ASSUMED, TAIL) if self.draws.received.has_tail(receiver) else EXACT

    def weight_evidence(self, gradient: Gradient, weight: Any) -> Evidence:
        return self.drawn_evidence(weight)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        """Of the weights that were drawn; numbered, since they have no names here."""
        return self.sent(gradient, *inputs)[0].states()


# -- Gradients drawn for an op that is evaluated on draws, with what they have in common with the signal


TINY = 1e-30
EXCEEDS = 0.1
"""By how much of it what is along the signal may exceed a gradient, for draws of both."""
SMALL = 1e-3
"""Share of a gradient's energy below which what is along the signal does not count."""


class DrawnGradient:
    """Draws of a gradient at a tensor `y`, in units of `level`, the mean square.

    - below an activation of `y` alone: `h f'(y)`, `h` drawn from the kernel above it;
    - with a part along the signal: `B y` and a rest, which has what is left of the kernel; `B (y - m)` where `B y` is
      more than there is, as of a signal with a large mean;
    - otherwise independent of `y`;
    - of what is not `B y`, `directions.radial` says how much is along `y`: none, where a norm above takes it out. This
      counts where few numbers scale all of `y`. Such a gradient also shrinks as `y` grows: `weights`;
    - where its sum over positions is zero, as below BatchNorm, that of every draw is.

    `signal` gives the kernel and the mean of `y` where it is needed; `along_signal` is the share of the energy that is
    along it, all of it where the mean is left out.
    """

    def __init__(self, gradient: Gradient, signal: Callable[[], tuple[Tensor, Tensor]]):
        kernel, self.level = unit_kernel(gradient)
        self._radial, self._groups = float(gradient.directions.radial), gradient.directions.groups
        self._uniform = max(float(gradient.directions.uniform), 0.0)
        self._normed = min(float(gradient.directions.normed), 1.0)
        self._cancels = not torch.any(gradient.summed())
        self._slope, self._function, self.along_signal, self._mean = None, None, 0.0, None
        slope, through = gradient.along_signal.slope, gradient.through_activation.gradients
        if isinstance(slope, Tensor) and self.level > 0.0:
            slope, (own, mean) = slope / self.level**0.5, signal()
            along = applied(slope, applied(slope, own).T)
            if bool((along.diagonal() > (1.0 + EXCEEDS) * kernel.diagonal()).any()):
                along = applied(slope, applied(slope, own - mean[:, None] * mean).T)
                self._mean = mean.to(DTYPE)[:, None]
            share = float(along.diagonal().mean())
            if share > SMALL or self._mean is not None:
                self.along_signal = share if self._mean is None else 1.0
                self._slope, kernel = slope.to(DTYPE), kernel - along
        if self._slope is None and len(through) == 1 and through[0].share == 1.0 and self.level > 0.0:
            self._function, kernel = through[0].function, through[0].kernel.values / self.level
        self._root = root_of(kernel).to(DTYPE)

    @property
    def groups(self) -> int:
        """Groups of channels each of which has its own direction; all channels where nothing is known of one."""
        return self._groups if self._radial != 1.0 else 1

    def weights(self, norms: Tensor) -> Tensor:
        """How much energy the gradient has in every draw, relative to the average one, by the squared norms `[draw,
        position, group]` of `y`.

        With `p` the radial share, `1 - p` of what the norm above sees is `y`: the energy is as `1 / (p + (1 - p) n)`,
        `n` being the squared norm in units of the average one.
        """
        share = min(max(self._radial, SMALL), 1.0)
        usual = norms.mean((0, 2), keepdim=True).clamp_min(TINY)
        found = 1.0 / (share + (1.0 - share) * norms / usual)
        return found / found.mean((0, 2), keepdim=True)

    def rows(self, y: Tensor, weights: Tensor, generator: torch.Generator) -> Tensor:
        """One draw, for the numbers `[position, channel]` of `y`, with the energies `weights[position, group]`."""
        made = drawn_rows(self._root, y.shape[-1], generator)
        slopes = torch.ones_like(y)
        if self._slope is None and self._function is not None:
            slopes = self._function.derivative(y.double()).to(DTYPE)
        made = self._without_channels(made, y)
        left = max(1.0 + (self._uniform - 1.0) / y.shape[-1], TINY)
        parts = (self._levelled(made * slopes) / left**0.5, self._levelled(y), slopes)
        parts = (item.unflatten(-1, (self.groups, -1)) for item in parts)
        made = (self._turned(*parts) * weights.sqrt().to(DTYPE)[..., None]).flatten(-2)
        if self._slope is not None:
            made = made + applied(self._slope, y if self._mean is None else y - self._mean)
        return made - made.mean(0) if self._cancels else made

    def _without_channels(self, drawn: Tensor, y: Tensor) -> Tensor:
        """Less the part along each channel that a norm over the batch has taken out."""
        if self._normed == 0.0:
            return drawn
        centred = y - y.mean(0)
        along = (drawn * centred).sum(0) / centred.square().sum(0).clamp_min(TINY) * centred
        return drawn + ((1.0 - self._normed) ** 0.5 - 1.0) * along

    def _levelled(self, numbers: Tensor) -> Tensor:
        """With the share along all ones that is known: what sums over channels receives nothing else."""
        return (
            numbers + (self._uniform**0.5 - 1.0) * numbers.mean(-1, keepdim=True) if self._uniform != 1.0 else numbers
        )

    def _turned(self, drawn: Tensor, y: Tensor, slopes: Tensor) -> Tensor:
        """With the share along `y` that is known, in place of that of independent numbers times the slopes."""
        if self._radial == 1.0:
            return drawn
        size = y.square().sum(-1, keepdim=True).clamp_min(TINY)
        energy = slopes.square().sum(-1, keepdim=True).clamp_min(TINY)
        share = ((y * slopes).square().sum(-1, keepdim=True) / (size * energy)).clamp_min(TINY)
        wanted = (self._radial / y.shape[-1] / share).clamp_max(1.0 / share)
        along = (drawn * y).sum(-1, keepdim=True) / size * y
        left = (1.0 + (wanted - 1.0) * share).clamp_min(TINY)
        return (drawn + (wanted.sqrt() - 1.0) * along) / left.sqrt()


STEERED = 8
"""Channels of a result for each one that steers it, from which on a gradient across it is a guess."""
STEERS = "few channels that steer many, under a gradient across these"
MUCH = 0.03
"""Share of a gradient's energy along the signal, from which on what follows below is a guess."""
ENDS = "a gradient along the signal ends at a sampled function"
INSIDE = "weights inside a sampled function, under a gradient along its result"
CANCELLED = 1e-3
"""Part of what independent gradients would bring few numbers, below which they get what a cancellation leaves."""
LEFT = "few numbers, and what a gradient across them leaves"


@dataclass(eq=False)
class Sampled(DrawnOp):
    """`y = f(x, ..)`, any function of its sources: Monte Carlo on the function itself.

    Forward   `K_y`, mean, fluctuation of norms and what channels have in common as drawn
    Backward  gradients drawn with the kernel above, and with what they have in common with the signal, sent through
              the function by autograd; directions and `E (sum_t g_t x_t)^2` at the sources as they arrive there
    Weights   of those that the function draws inside, likewise

    Exact up to the error of the draws, for sources with independent Gaussian channels.

    `reaches`: fewer than all inputs where weights inside renew what comes from the others.

    `draws` draw the function `replicas` times: `rows()` yields its results `[position, channel]`, as each draw of
    `backward()` has them in `rows`. Of the `channels` of the result `fewest` steer all; the smallest weight inside has
    `fewest_entries`. `doubts`: what draws of this function do not tell of its `signal`, `gradient` and `parameters`.
    """

    carries = ALL_TRANSFORMED.but(
        along_signal=ended("gradients are sampled with it; what autograd makes of it is not followed"),
    )

    draws: Any
    reason: str
    reaches: int | None = None
    _along_signal: float = 0.0
    _norms: Tensor | None = None

    def forward(self, *inputs: Signal) -> Signal:
        kernel, averages, norms = torch.zeros(()), [], []
        for drawn in self.draws.rows():
            rows = drawn.double()
            kernel = kernel + kernel_of(rows) / self.draws.replicas
            averages.append(rows.mean(1))
            norms.append(rows.square().mean(1))
        doubt = self.draws.doubts.get("signal")
        evidence = Evidence(Status.SAMPLED, self.reason) if doubt is None else Evidence(Status.ASSUMED, doubt)
        for x in inputs:
            evidence = x.evidence.join(evidence)
        self._norms = torch.stack(norms)
        fluctuation = Fluctuation(fluctuation_of(self._norms, self.draws.channels))
        mean, common = _in_common(torch.stack(averages), kernel, self.draws.channels)
        x: Any = inputs[0] if inputs else None  # a function of weights alone keeps no part
        parts = {"fluctuation": fluctuation, "common": common}
        return self.carries.signal(x, Dense(kernel), mean, self.draws.channels, evidence, **parts)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        received, _ = self.sent(gradient, *inputs)
        self._sent = None
        evidence = gradient.evidence.join(output.evidence)
        for doubt in (self.draws.doubts.get("gradient"), ENDS if self._along_signal > MUCH else None):
            evidence = evidence if doubt is None else evidence.join(Evidence(Status.ASSUMED, doubt))
        evidence = evidence.join(self.gradient_evidence(gradient))
        found: list[Gradient | None] = []
        for number, kernel in enumerate(received.kernels):
            known, coupling = evidence.join(self.drawn_evidence(number)), received.coupling(number)
            found.append(None if kernel is None else self._arrived(gradient, Dense(kernel), known, coupling))
        return tuple(found)

    def _arrived(self, gradient: Gradient, kernel: Dense, evidence: Evidence, coupling: Coupling) -> Gradient:
        through = ThroughActivation(gain_excess=coupling.excess)
        parts = {"directions": coupling.directions, "through_activation": through}
        return self.carries.gradient(gradient, kernel, evidence, **parts)

    def _send(self, gradient: Gradient, *inputs: Signal) -> None:
        drawn = DrawnGradient(gradient, self._kernel)
        self._along_signal = drawn.along_signal
        weights = drawn.weights(self._squared_norms(drawn.groups))
        for draw, weight in zip(self.draws.backward(), weights, strict=True):
            if draw.has_sources:
                draw.send(drawn.rows(draw.rows, weight, draw.generator))
        self.draws.scale_received(drawn.level)

    def _kernel(self) -> tuple[Tensor, Tensor]:
        drawn = [(kernel_of(rows.double()), rows.double().mean(1)) for rows in self.draws.rows()]
        kernel, mean = (torch.stack(items).mean(0) for items in zip(*drawn, strict=True))
        return kernel, mean

    def _squared_norms(self, groups: int) -> Tensor:
        """`[replica, position, group]`: those of all channels as the forward pass drew them."""
        if groups == 1 and self._norms is not None:
            return self._norms[..., None]
        rows = (item.double().square() for item in self.draws.rows())
        return torch.stack([item.unflatten(1, (groups, -1)).mean(2) for item in rows])

    def norm_of_groups(self, groups: int) -> float | None:
        norms = self._squared_norms(groups).transpose(0, 1).flatten(1).T
        return float(fluctuation_of(norms, self.draws.channels // groups))

    def parameter_evidence(self, gradient: Gradient, *inputs: Signal) -> Evidence:
        if self.gradient_evidence(gradient) is not EXACT:
            return self.gradient_evidence(gradient)
        doubt = INSIDE if self._along_signal else self.draws.doubts.get("parameters")
        if self.draws.fewest_entries <= FEW < self.draws.channels and _is_left_over(gradient.directions):
            doubt = FEW_NUMBERS
        return EXACT if doubt is None else Evidence(Status.ASSUMED, doubt)

    def weight_evidence(self, gradient: Gradient, weight: Any) -> Evidence:
        """A few numbers inside may get next to nothing, as a scale below a norm does."""
        if math.prod(weight.shape) > FEW or self._norms is None:
            return super().weight_evidence(gradient, weight)
        independent = self.draws.channels * float(gradient.kernel.diagonal @ self._norms.mean(0))
        left = self.received.weights[weight] < CANCELLED * independent
        return Evidence(Status.ASSUMED, LEFT) if left else EXACT

    def gradient_evidence(self, gradient: Gradient) -> Evidence:
        """Few channels that move all others together, as the steps of a scan do, feel more of what a norm above does to
        them than each token's own direction."""
        few = self.draws.fewest * STEERED < self.draws.channels
        return Evidence(Status.ASSUMED, STEERS) if few and float(gradient.directions.radial) < ACROSS else EXACT


def _is_left_over(directions: Directions) -> bool:
    """Whether little is along the signal although no norm right above takes it out: then paths that meet here nearly
    cancel, and each is followed by itself."""
    radial = float(directions.radial)
    return radial < ACROSS and float(directions.response) > (radial - 1.0) / 2.0


def _in_common(averages: Tensor, kernel: Tensor, channels: int) -> tuple[Tensor, Common]:
    """The mean per position, and the share along all ones, from averages over channels `[draw, position]`."""
    mean, count = averages.mean(0), len(averages)
    varied = averages.square().mean(0).sub(mean**2).sum() * count / max(count - 1, 1)
    about = (kernel.diagonal() - mean**2).sum()
    return mean, Common(channels * varied / about if about > 0.0 else 1.0)


def fluctuation_of(norms: Tensor, channels: int) -> Tensor | float:
    """That of squared norms `n` `[draw, position]`, by what a norm above makes of it: `1 - 1/(E n E 1/n)`.

    For Gaussian channels that is the relative variance; of norms with long tails it is less. Where some draws are zero
    it is `1 - (E n)^2 / E n^2`.
    """
    seen = norms[:, (norms > 0.0).any(0)]
    if not seen.numel():
        return 2.0
    mean, count = seen.mean(0), len(norms)
    about = torch.where((seen > 0.0).all(0), mean * (1.0 / seen).mean(0), seen.square().mean(0) / mean**2)
    excess = (about - 1.0) * count / max(count - 1, 1)
    return (excess / (1.0 + excess)).mean() * channels

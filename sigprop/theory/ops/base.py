"""What every op is: a map of the signal forward and of the gradient backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from sigprop.errors import UnsupportedError
from sigprop.theory.states import EXACT, Carries, Directions, Evidence, Gradient, Signal


@dataclass(frozen=True)
class ParameterState:
    """A parameter of an op: its initialization and, after backward, its gradient's second moment per entry."""

    name: str
    shape: tuple[int, ...]
    role: str
    variance: Tensor | float
    grad_second_moment: Tensor


@dataclass(frozen=True)
class Carried:
    """What an output holds of an input itself: `y_p = share_p x_index(p) + ..`; all in order without an index."""

    share: Tensor | float
    index: Tensor | None = None
    passed: float = 1.0
    """What of a gradient the input gets, in units of its share: nothing before `detach`."""
    bent: bool = False
    """Whether a function stands between: the rest is not linear in the input, and has nothing else in common with what
    is Gaussian together with it."""

    def of(self, values: Tensor) -> Tensor:
        """A number per position of the input, at the positions of the output that hold them."""
        return values if self.index is None else values[self.index]


@dataclass
class Coupling:
    """What gradients that draws send to a tensor have in common with the signal there, added up over draws."""

    along: float = 0.0
    expected: float = 0.0
    ones: float = 0.0
    energy: float = 0.0
    apart: float = 0.0
    excess: Tensor | float = 0.0
    """See `ThroughActivation.gain_excess`; of tensors that are drawn together a number for each position, which add up
    to that of each tensor."""

    def add(self, x: Tensor, gradient: Tensor, kernel: Tensor, share: float = 1.0) -> None:
        """Of draws `[draw, position, channel]` of a signal with a kernel; no gradient arrives at other channels, of
        which these are a share."""
        both, energies = x * gradient, gradient.square().sum(-1).double()
        self.along += float(both.sum(-1).double().square().sum())
        self.expected += float((energies * kernel.diagonal()).sum())
        self.ones += float(gradient.sum(-1).double().square().sum())
        self.energy += float(energies.sum())
        apart = float(((gradient @ gradient.mT).double() * kernel).sum()) / gradient.shape[-1] * share
        self.apart += apart
        self.excess += float(both.sum(-2).double().square().mean(-1).sum()) * share - apart

    @classmethod
    def joined(cls, found: Sequence[tuple[Coupling, slice]], positions: int) -> Coupling:
        """Of tensors drawn together, each at its positions."""
        excess = torch.zeros(positions, dtype=torch.float64)
        for item, span in found:
            excess[span] += item.excess / (span.stop - span.start)
        return cls(*(sum(row) for row in zip(*(item._shares for item, _ in found), strict=True)), excess=excess)

    def scaled(self, factor: float) -> Coupling:
        """Of so many times the gradients' energy."""
        return Coupling(*(value * factor for value in self._shares), excess=self.excess * factor)

    @property
    def _shares(self) -> tuple[float, ...]:
        return self.along, self.expected, self.ones, self.energy, self.apart

    @property
    def directions(self) -> Directions:
        if not self.expected:
            return Directions()
        excess = float(torch.as_tensor(self.excess).sum())
        channel = 1.0 + excess / self.apart if self.apart > 0.0 else 1.0
        return Directions(self.along / self.expected, self.ones / self.energy, channel=channel)


class Law(Protocol):
    """How the entries of a parameter are drawn."""

    @property
    def mean(self) -> float: ...

    @property
    def variance(self) -> float: ...

    @property
    def second_moment(self) -> float: ...

    @property
    def unevenness(self) -> float: ...

    @property
    def kind(self) -> str: ...

    @property
    def tails(self) -> float: ...


class Op(ABC):
    """One step of the chain. Hyperparameters may be numbers or grids; inputs and output are states.

    `carries` says what becomes of every part of the states. A class that writes `forward` or `backward` must say so
    itself: what it inherits was said of other equations.
    """

    carries: ClassVar[Carries]

    looks_beyond: ClassVar[bool] = False
    """Whether it looks beyond its inputs: has a `bound` of its own."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.looks_beyond = cls.bound is not Op.bound
        written = [name for name in ("forward", "backward") if name in vars(cls)]
        if written and not isinstance(vars(cls).get("carries"), Carries):
            raise TypeError(
                f"{cls.__name__} has a {' and a '.join(written)} of its own and does not say what it carries: "
                "declare carries = Carries(...) in the class, KEPT, TRANSFORMED or ended(reason) for each part"
            )

    keeps_channels: ClassVar[bool] = True
    """Whether what the output holds of an input (see `carried`) stands in the channels where it stood."""

    reaches: int | None = None
    """Of how many inputs, the first ones, its output is a function; of none where independent weights renew it."""

    by_position: ClassVar[bool] = False
    """Whether each position of the output is made of that position of the inputs, in the same way at all of them."""

    multiplies: ClassVar[bool] = True
    """Whether the weights of the op, if it has some, multiply its input; False where they are its output."""

    @abstractmethod
    def forward(self, *inputs: Signal) -> Signal:
        """The state of the output."""

    def parameter_evidence(self, gradient: Gradient, *inputs: Signal) -> Evidence:
        """What `parameters` does not follow, beside what is said of signal and gradient."""
        return EXACT

    def along_rows(self, gradient: Gradient, *inputs: Signal) -> float | None:
        """Which part of the energy of the weights' gradient is along the weights of each output; None where it is that
        of any direction."""
        return None

    def weight_evidence(self, gradient: Gradient, weight: Any) -> Evidence:
        """What is known of one weight beside that."""
        return EXACT

    @abstractmethod
    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        """The gradient at each input, from the gradient at the output."""

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        """Second moments of the parameters' gradients."""
        return []

    def with_law(self, parameter: str, law: Law) -> Op:
        """The op with one of its parameters drawn in another way."""
        raise UnsupportedError(f"{type(self).__name__} has no parameter {parameter!r} whose distribution could be set")

    def carried(self, number: int, output: Signal, *inputs: Signal) -> Carried | None:
        """What the output holds of one input itself; None where weights or a function stand between."""
        return None

    def bound(self, states: Any, node: Any) -> Op:
        """The op at a node of an evaluation, in its states; itself unless it looks beyond its inputs."""
        return self

    keeps_kurtosis: ClassVar[bool] = False
    """Whether the kurtosis of its channels has something to do with that of its inputs."""

    def kurtosis(self, output: Signal, inputs: Sequence[Signal], below: Sequence[Tensor | None]) -> Tensor | None:
        """That of its channels between positions, given that of the inputs (see `corrections.kurtosis`); None where
        they are Gaussian."""
        return None

    gradients_read: Sequence[Any] = ()
    """Nodes whose gradients it reads, beside that of its output."""

    received: Any = None
    """What its draws have received going backward: `kernels` at their sources (None where nothing arrived) with the
    `coupling` of each to its signal, and, by keys that only who draws knows, the energies of `weights`, `corrections`
    to those of linear maps before, and the kernels that `passed` other places. None where nothing is drawn."""

    def gradient_evidence(self, gradient: Gradient) -> Evidence:
        """What is known of the gradients that draws send to their sources and to places between."""
        return EXACT

    def norm_of_groups(self, groups: int) -> float | None:
        """The fluctuation of the norms of groups of channels, as heads are; None where it is that of all channels."""
        return None

    varied: float = 0.0
    """How much squared norms vary over networks beyond those of Gaussian numbers with the expected kernel."""

    picks: Tensor | slice | None = None
    """Positions of its one input that the output consists of, as they are; None where it is made otherwise."""

    def of_entry(self, values: Tensor) -> tuple[Tensor, Tensor] | None:
        """What numbers of the first input become, and the slopes there; None where others of it take part."""
        return None

    @property
    def holds_inputs(self) -> bool:
        """Whether two outputs may hold the same input, channel by channel."""
        return self.keeps_channels and type(self).carried is not Op.carried


def joined_evidence(*states: Signal) -> Evidence:
    """The worst evidence of several inputs."""
    found = states[0].evidence
    for x in states[1:]:
        found = found.join(x.evidence)
    return found

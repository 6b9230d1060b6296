"""What every op is: a map of the signal forward and of the gradient backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class ParameterState:
    """A parameter of an op: its initialization and, after backward, its gradient's second moment per entry."""

    name: str
    shape: tuple[int, ...]
    role: str
    variance: Tensor | float
    grad_second_moment: Tensor


class Op(ABC):
    """One step of the chain. Hyperparameters may be numbers or grids; inputs and output are states."""

    @abstractmethod
    def forward(self, *inputs: Signal) -> Signal:
        """The state of the output."""

    @abstractmethod
    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient | None, ...]:
        """The gradient at each input, from the gradient at the output."""

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        """Second moments of the parameters' gradients."""
        return []

"""Gradients drawn for a replay: with the predicted kernel, and with what they have in common with the signal."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sigprop.theory import Gradient
from sigprop.theory.gradient_along_signal import applied
from sigprop.trace.ensemble import DTYPE, root_of
from sigprop.trace.replay import drawn_rows
from sigprop.trace.reverse import unit_kernel

SMALL = 1e-3
"""Share of a gradient's energy below which what is along the signal does not count."""


class DrawnGradient:
    """Draws of a gradient at a tensor `y`, in units of `level`, the mean square.

    - below an activation of `y` alone: `h f'(y)`, `h` drawn from the kernel above it;
    - with a part along the signal: `B y` and a rest, which has what is left of the kernel;
    - otherwise independent of `y`.

    `signal` gives the kernel of `y` where it is needed; `along_signal` is the share of the energy that is along it.
    """

    def __init__(self, gradient: Gradient, signal: Callable[[], Tensor]):
        kernel, self.level = unit_kernel(gradient)
        self._slope, self._function, self.along_signal = None, None, 0.0
        slope, through = gradient.along_signal.slope, gradient.through_activation.gradients
        if isinstance(slope, Tensor) and self.level > 0.0:
            slope = slope / self.level**0.5
            along = applied(slope, applied(slope, signal()).T)
            share = float(along.diagonal().mean())
            if share > SMALL:
                self.along_signal = share
                self._slope, kernel = slope.to(DTYPE), kernel - along
        if self._slope is None and len(through) == 1 and through[0].share == 1.0 and self.level > 0.0:
            self._function, kernel = through[0].function, through[0].kernel.values / self.level
        self._root = root_of(kernel).to(DTYPE)

    def rows(self, y: Tensor, generator: torch.Generator) -> Tensor:
        """One draw, for the numbers `[position, channel]` of `y`."""
        made = drawn_rows(self._root, y.shape[-1], generator)
        if self._slope is not None:
            return made + applied(self._slope, y)
        return made if self._function is None else made * self._function.derivative(y.double()).to(DTYPE)

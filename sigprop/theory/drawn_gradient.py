"""Gradients drawn for an op that is evaluated on draws, with what they have in common with the signal."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sigprop.theory.corrections.along_signal import applied
from sigprop.theory.drawing import DTYPE, drawn_rows, root_of, unit_kernel
from sigprop.theory.states import Gradient

TINY = 1e-30
SMALL = 1e-3
"""Share of a gradient's energy below which what is along the signal does not count."""


class DrawnGradient:
    """Draws of a gradient at a tensor `y`, in units of `level`, the mean square.

    - below an activation of `y` alone: `h f'(y)`, `h` drawn from the kernel above it;
    - with a part along the signal: `B y` and a rest, which has what is left of the kernel;
    - otherwise independent of `y`;
    - of what is not `B y`, `directions.radial` says how much is along `y`: none, where a norm above takes it out. This
      counts where few numbers scale all of `y`. Such a gradient also shrinks as `y` grows: `weights`.

    `signal` gives the kernel of `y` where it is needed; `along_signal` is the share of the energy that is along it.
    """

    def __init__(self, gradient: Gradient, signal: Callable[[], Tensor]):
        kernel, self.level = unit_kernel(gradient)
        self._radial, self._groups = float(gradient.directions.radial), gradient.directions.groups
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
        parts = (item.unflatten(-1, (self.groups, -1)) for item in (made * slopes, y, slopes))
        made = (self._turned(*parts) * weights.sqrt().to(DTYPE)[..., None]).flatten(-2)
        return made if self._slope is None else made + applied(self._slope, y)

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

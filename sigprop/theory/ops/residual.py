"""Residual sum of a skip path and a branch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal


@dataclass(frozen=True)
class Residual(Op):
    """`z = skip * x + branch * f`, the branch ending in independent zero-mean weights.

    Forward   `K_z = skip^2 K_x + branch^2 K_f` (plus the product of means)
    Backward  `G_x = skip^2 G_z`, `G_f = branch^2 G_z`; the gradient through the branch is added at `x`

    The shares follow from geometry: with `c^2` the part of the squared norm of `z` that one summand brings,
    a gradient with radial share `p` along `z` has share `c^2 p + 1 - c^2` along the summand.
    """

    skip: Tensor | float = 1.0
    branch: Tensor | float = 1.0

    def forward(self, *inputs: Signal) -> Signal:
        x, f = inputs
        skip2, branch2 = self.skip**2, self.branch**2
        kernel = x.kernel.scale(skip2) + f.kernel.scale(branch2)
        cross = kernel.outer(x.mean, f.mean).values + kernel.outer(f.mean, x.mean).values
        kernel = kernel.like(kernel.values + cross * kernel.spread(self.skip * self.branch))
        part_x, part_f = self._parts(x, f)
        cross = 4 * part_x * part_f * (1.0 + x.width * f.mixed)
        fluctuation = part_x**2 * x.norm_fluctuation + part_f**2 * f.norm_fluctuation + cross
        return Signal(
            kernel,
            kernel.per_token(self.skip) * x.mean + kernel.per_token(self.branch) * f.mean,
            x.width,
            norm_fluctuation=fluctuation,
            uniform_share=part_x * x.uniform_share + part_f * f.uniform_share,
            common_share=part_x * x.common_share + part_f * f.common_share,
            **self._pairs(x, f),
            evidence=x.evidence.join(f.evidence),
        )

    def _parts(self, x: Signal, f: Signal) -> tuple[Tensor, Tensor]:
        """Shares of the two summands in the squared norm of the sum, averaged over tokens."""
        energy_x = self.skip**2 * x.kernel.token_average(x.kernel.diagonal)
        energy_f = self.branch**2 * f.kernel.token_average(f.kernel.diagonal)
        total = (energy_x + energy_f).clamp_min(torch.finfo(energy_x.dtype).tiny)
        return energy_x / total, energy_f / total

    def _pairs(self, x: Signal, f: Signal) -> dict[str, Tensor | float]:
        """Fluctuation of pairs, of the differences between tokens, of which `f` brings the part `p`.

        `(1-p)^2 v_x + p^2 v_f + 2 p (1-p) (1 + sqrt(o_x o_f))`: 1 for the products of `x` with `f`, and what both have
        from one origin adds in step. Sources have none. The sum of two branches is a branch, the sum with a skip path
        is where new ones begin. A branch that mixes tokens adds nothing in step; its products with the skip path
        fluctuate by what it is made of.
        """
        energy_x = self.skip**2 * x.kernel.apart().clamp_min(0.0)
        energy_f = self.branch**2 * f.kernel.apart().clamp_min(0.0)
        part = energy_f / (energy_x + energy_f).clamp_min(torch.finfo(energy_x.dtype).tiny)
        started_x, started_f = (torch.as_tensor(item.pair_inherited) > 0.0 for item in (x, f))
        shared = torch.where(started_x | started_f, (x.pair_origin * f.pair_origin).sqrt(), 0.0)
        if f.mixed:
            part, shared = self._parts(x, f)[1], x.width * f.mixed
        in_step = ((1.0 - part) * x.pair_origin.sqrt() + part * f.pair_origin.sqrt()) ** 2
        apart = (1.0 - part) ** 2 * x.pair_fluctuation + part**2 * f.pair_fluctuation
        return {
            "pair_fluctuation": apart + 2.0 * part * (1.0 - part) * (1.0 + shared),
            "pair_inherited": torch.where(started_x & started_f, in_step, 0.0),
        }

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, Gradient]:
        x, f = inputs
        part_x, part_f = self._parts(x, f)
        return (
            replace(self._share(gradient, self.skip**2, part_x), alignment=gradient.alignment),
            self._share(gradient, self.branch**2, part_f),
        )

    @staticmethod
    def _share(gradient: Gradient, factor: Tensor | float, part: Tensor) -> Gradient:
        radial = part * gradient.radial_share + (1.0 - part)
        tilt = gradient.tilt * factor if isinstance(gradient.tilt, Tensor) else 0.0
        made = Gradient(gradient.kernel.scale(factor), radial, gradient.uniform_share, gradient.evidence, tilt=tilt)
        if not gradient.gates or factor != 1.0:
            return made
        return replace(made, gates=tuple(replace(gate, share=gate.share * part) for gate in gradient.gates))

"""GroupNorm: statistics over some channels and all pixels of an image."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sigprop.theory.kernels import Kernel
from sigprop.theory.ops.base import ParameterState
from sigprop.theory.ops.layer_norm import Norm
from sigprop.theory.states import (
    ALL_TRANSFORMED,
    Directions,
    Gradient,
    Signal,
    Status,
)


@dataclass(frozen=True, eq=False)
class GroupNorm(Norm):
    """`y = gain * (x - m) / s + bias`, statistics over channels and pixels of an image, whose pixels are the tokens.

    Forward   `K_y = E (x - m)(x' - m') / (s s')`, `m` and `s^2` the mean and the variance over an image's pixels
    Backward  `G_x = G_y / (s s')`: the two directions removed are few against channels times pixels. But a gradient
              `B y` has a part along the image, which is taken out (see `Norm._across`)

    What the squared norms of all `n` pixels of an image have in common is gone, `norm` is `v (1 - mean r^2)` over
    pairs of them; so is what is uniform over channels and pixels, and `1/n` of a gradient along either. One pixel is
    `LayerNorm`.

    `image` numbers the images of the positions; without it all positions are of one image. For groups of many channels,
    exact in their limit.
    """

    carries = ALL_TRANSFORMED

    affine: bool = True
    image: Tensor | None = field(default=None, kw_only=True)

    def _unit(self, x: Signal) -> tuple[Kernel, Tensor, Tensor]:
        """Kernel and mean before gain and bias, and the scale of each position."""
        shift = self._average(x.kernel, x.mean)
        kernel = x.kernel - x.kernel.outer(x.mean, shift) - x.kernel.outer(shift, x.mean - shift)
        scale = (self._average(x.kernel, kernel.diagonal) + self.epsilon).sqrt()
        return kernel.like(kernel.values / (kernel.left(scale) * kernel.right(scale))), (x.mean - shift) / scale, scale

    def _average(self, kernel: Kernel, values: Tensor) -> Tensor:
        """For each position the average over its image."""
        if self.image is None:
            return torch.zeros_like(values) + kernel.per_token(kernel.token_average(values))
        count = int(self.image.max()) + 1
        size = torch.bincount(self.image, minlength=count).to(values)
        return (torch.zeros(count, dtype=values.dtype).index_add(0, self.image, values) / size)[self.image]

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel, mean = self._scaled(*self._unit(x)[:2])
        cosine = x.covariance.normalized()
        squares, plain = (self._within(cosine.like(item)) for item in (cosine.values**2, cosine.values))
        kept, count = 1.0 - squares, self._count(x.kernel)
        made = self.carries.signal(
            x,
            kernel,
            mean,
            fluctuation=replace(x.fluctuation, norm=x.fluctuation.norm * kept),
            common=replace(
                x.common, uniform=x.common.uniform * (1.0 - plain), share=x.common.share * (1.0 - 1.0 / count)
            ),
        )
        return made.note(Status.ASYMPTOTIC, "statistics of large groups")

    def _within(self, kernel: Kernel) -> Tensor:
        """Average over pairs of pixels of one image."""
        if self.image is None:
            return kernel.total() / kernel.tokens**2
        same = (self.image[:, None] == self.image).to(kernel.values.dtype)
        return (kernel.values * same).sum() / same.sum()

    def _count(self, kernel: Kernel) -> float:
        """Pixels of an image."""
        return kernel.tokens if self.image is None else len(self.image) / (int(self.image.max()) + 1)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        _, _, scale = self._unit(inputs[0])
        kernel, along = self._across(
            gradient, output.kernel, scale, lambda values: self._average(output.kernel, values)
        )
        factor = self.gain_second_moment / (kernel.left(scale) * kernel.right(scale))
        through, left = gradient.through_activation.collected(output), 1.0 - 1.0 / self._count(kernel)
        cosine = inputs[0].covariance.normalized()
        directions = Directions(
            gradient.directions.radial * left,
            gradient.directions.uniform * left,
            response=-self._within(cosine.like(cosine.values**2)),
        )
        made = kernel.like(kernel.values * factor)
        parts = {"directions": directions, "along_signal": along, "through_activation": through}
        return (self.carries.gradient(gradient, made, **parts),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        if not self.affine:
            return []
        (x,) = inputs
        unit, mean, _ = self._unit(x)
        return self._gain_and_bias(gradient, x, unit, mean)

"""Two-dimensional convolution over a kernel of pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.ops.base import Op, ParameterState
from sigprop.theory.states import Gradient, Signal
from sigprop.theory.status import Evidence, Status


@dataclass(frozen=True)
class ImageConvolution(Op):
    """`y_p = sum_o W_o x_(p+o) + b`, a square window of `size` offsets, zero padding; pixels are the tokens.

    Forward   `K_y[p,p'] = channels_in * variance * sum_o K_x[p+o, p'+o] + bias_variance`
    Backward  `G_x[p,p'] = channels_out * variance * sum_o G_y[p-o, p'-o]`

    Exact in expectation on a dense kernel. On an exchangeable one every pair counts the average number of window
    offsets that fall inside the image.
    """

    channels_in: int
    channels_out: int
    size: int
    variance: Tensor | float
    image: tuple[int, int]
    stride: int = 1
    bias_variance: Tensor | float | None = None

    @property
    def image_out(self) -> tuple[int, int]:
        reach = 2 * (self.size // 2) - self.size
        height, width = self.image
        return (height + reach) // self.stride + 1, (width + reach) // self.stride + 1

    @property
    def taps(self) -> float:
        """Window offsets inside the image, averaged over output pixels."""
        reach, inside = self.size // 2, 1.0
        for length, out in zip(self.image, self.image_out, strict=True):
            starts = [i * self.stride - reach for i in range(out)]
            inside *= sum(min(start + self.size, length) - max(start, 0) for start in starts) / out
        return inside

    def _windows(self, values: Tensor) -> Tensor:
        """`[..., offset, pixel_out, pixel_in]` selection of the pixels that each output sees, dense 0/1."""
        height, width = self.image
        index = torch.arange(height * width).reshape(1, 1, height, width).double() + 1
        pad = self.size // 2
        seen = torch.nn.functional.unfold(index, self.size, padding=pad, stride=self.stride)[0].long()
        chosen = torch.nn.functional.one_hot(seen, height * width + 1)[..., 1:]
        return chosen.to(values)

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        factor = self.channels_in * self.variance
        pixels = self.image_out[0] * self.image_out[1]
        if isinstance(x.kernel, Exchangeable):
            kernel: Kernel = Exchangeable(x.kernel.scale(factor * self.taps).values, pixels)
            evidence = x.note(Status.ASSUMED, "image borders averaged").evidence
            return self._made(kernel, evidence)
        windows = self._windows(x.kernel.values)
        values = (windows @ x.kernel.values[..., None, :, :] @ windows.transpose(-1, -2)).sum(-3)
        return self._made(Dense(values).scale(factor), x.evidence)

    def _made(self, kernel: Kernel, evidence: Evidence) -> Signal:
        if self.bias_variance is not None:
            kernel = kernel.like(kernel.values + kernel.spread(self.bias_variance))
        return Signal(kernel, torch.zeros_like(kernel.diagonal), self.channels_out, evidence=evidence)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        factor = self.channels_out * self.variance
        pixels = self.image[0] * self.image[1]
        if isinstance(gradient.kernel, Exchangeable):
            share = gradient.kernel.tokens / pixels
            kernel: Kernel = Exchangeable(gradient.kernel.scale(factor * self.taps * share).values, pixels)
            return (Gradient(kernel, evidence=gradient.evidence),)
        windows = self._windows(gradient.kernel.values)
        values = (windows.transpose(-1, -2) @ gradient.kernel.values[..., None, :, :] @ windows).sum(-3)
        return (Gradient(Dense(values).scale(factor), evidence=gradient.evidence),)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        (x,) = inputs
        shape = (self.channels_out, self.channels_in, self.size, self.size)
        if isinstance(x.kernel, Exchangeable):
            seen = Exchangeable(x.kernel.values, gradient.kernel.tokens)
            weight = gradient.kernel.contract(seen) * (self.taps / self.size**2)
        else:
            windows = self._windows(x.kernel.values)
            seen = (windows @ x.kernel.values[..., None, :, :] @ windows.transpose(-1, -2)).mean(-3)
            weight = (gradient.kernel.values * seen).sum((-2, -1))
        found = [ParameterState("weight", shape, "hidden", self.variance, weight)]
        if self.bias_variance is not None:
            bias = gradient.kernel.total()
            found.append(ParameterState("bias", (self.channels_out,), "bias", self.bias_variance, bias))
        return found

"""A fixed linear map over positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from sigprop.theory.gradient_along_signal import applied
from sigprop.theory.kernels import Dense
from sigprop.theory.ops.base import Op
from sigprop.theory.states import Gradient, Signal, gradient_of


@dataclass(frozen=True, eq=False)
class TokenMap(Op):
    """`y = M x` over positions, `M` a fixed matrix: pooling and interpolation. A tilt goes back like the gradient."""

    matrix: Tensor

    def forward(self, *inputs: Signal) -> Signal:
        (x,) = inputs
        kernel = Dense(self.matrix @ x.kernel.values @ self.matrix.T)
        return replace(x, kernel=kernel, mean=self.matrix @ x.mean)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
        made = gradient_of(self.matrix.T @ gradient.kernel.values @ self.matrix, gradient)
        if not isinstance(gradient.tilt, Tensor):
            return (made,)
        return (replace(made, tilt=self.matrix.T @ applied(gradient.tilt, self.matrix)),)

"""Pre-activation ResNet blueprint: three stages of basic blocks, image norm or BatchNorm, residual strength mu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sigprop.blueprints.base import Blueprint, Setting, Tape, require_positive_int, require_range
from sigprop.errors import require
from sigprop.graph.graph import Node
from sigprop.theory import activations, exchangeable_signal
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.batch_norm import BatchNorm
from sigprop.theory.ops.convolution import Convolution, square_windows
from sigprop.theory.ops.group_norm import GroupNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.residual import Residual
from sigprop.theory.ops.token_map import TokenMap

NORMS = {"layer_norm": GroupNorm, "batch_norm": BatchNorm}


@dataclass(frozen=True)
class ResNet(Blueprint):
    """Settings of a ResNet; `depth` counts the blocks of one stage (18 is ResNet-110).

    `Var W = sigma_w^2 / fan_in`; biases of variance `sigma_b^2` where it is given.
    """

    name: ClassVar[str] = "resnet"

    depth: int = 18
    width: int = 16
    image: int = 32
    channels: int = 3
    classes: int = 10
    norm: str = "batch_norm"
    mu: Setting = 1.0
    sigma_w: Setting = 2.0**0.5
    sigma_b: Setting | None = None
    input_correlation: Setting = 0.0

    def __post_init__(self) -> None:
        for key in ("depth", "width", "image", "channels", "classes"):
            require_positive_int(key, getattr(self, key))
        require(self.norm in NORMS, "norm", self.norm, " or ".join(NORMS))
        require(self.image % 4 == 0, "image", self.image, "a multiple of 4 (two stages halve it)")
        for key in ("mu", "sigma_w") if self.sigma_b is None else ("mu", "sigma_w", "sigma_b"):
            require_range(key, getattr(self, key), 0.0, float("inf"), "a finite number of at least 0")

    def forward(self, tape: Tape) -> Node:
        pixels = exchangeable_signal(1.0, self.input_correlation, tokens=self.image**2, width=self.channels)
        image = (self.image, self.image)
        x = tape.apply(self._convolution(self.channels, self.width, image), tape.source(pixels), name="stem")
        width = self.width
        for stage in range(3):
            for index in range(self.depth):
                layer, stride = stage * self.depth + index, 2 if stage and not index else 1
                outputs = self.width * 2**stage
                x = self._block(tape, x, layer, width, outputs, image, stride)
                image, width = (image[0] // stride, image[1] // stride), outputs
        x = tape.apply(NORMS[self.norm](), x, name="final_norm", depth=3 * self.depth)
        pooled = tape.apply(TokenMap.mean(tape.signal(x).kernel.tokens), tape.apply(self._relu, x))
        head = Linear(width, self.classes, self.sigma_w**2 / width, self._bias, role="readout")
        return tape.apply(head, pooled, name="head", depth=3 * self.depth)

    @property
    def _bias(self) -> Setting | None:
        return None if self.sigma_b is None else self.sigma_b**2

    @property
    def _relu(self) -> Activation:
        return Activation(activations.get("relu"))

    def _convolution(self, inputs: int, outputs: int, image: tuple[int, int], stride: int = 1, size: int = 3):
        fan_in, rows = inputs * size**2, square_windows(image, size, stride)
        variance = self.sigma_w**2 / fan_in
        return Convolution(fan_in, outputs, variance, self._bias, rows=rows, window=(size, size))

    def _block(
        self, tape: Tape, x: Node, layer: int, inputs: int, outputs: int, image: tuple[int, int], stride: int
    ) -> Node:
        name, norm = f"blocks.{layer}", NORMS[self.norm]
        small = (image[0] // stride, image[1] // stride)
        h = tape.apply(self._relu, tape.apply(norm(), x, parameters=f"{name}.norm1"))
        h = tape.apply(self._convolution(inputs, outputs, image, stride), h, parameters=f"{name}.conv1")
        h = tape.apply(self._relu, tape.apply(norm(), h, parameters=f"{name}.norm2"))
        h = tape.apply(self._convolution(outputs, outputs, small), h, parameters=f"{name}.conv2")
        if stride != 1 or inputs != outputs:
            shortcut = self._convolution(inputs, outputs, image, stride, size=1)
            x = tape.apply(shortcut, x, parameters=f"{name}.shortcut")
        return tape.apply(Residual(skip=self.mu), x, h, name=name, depth=layer)

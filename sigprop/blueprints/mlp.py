"""MLP blueprint: `h' = W phi(h) + b + mu h`, plain or with a norm; the kernel's tokens are input samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sigprop.blueprints.base import Setting, Tape, depth_of, require_positive_int, require_range
from sigprop.blueprints.repeated import Layer, RepeatedBlueprint
from sigprop.errors import require
from sigprop.graph.graph import Node
from sigprop.theory import activations, exchangeable_signal
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.batch_norm import BatchNorm
from sigprop.theory.ops.layer_norm import LayerNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.residual import Residual

PLACEMENTS = ("none", "preactivation", "activation", "batch")


@dataclass(frozen=True)
class MLP(RepeatedBlueprint):
    """Settings of an MLP in the notation of apjn: `Var W = sigma_w^2 / fan_in`, `Var b = sigma_b^2`."""

    name: ClassVar[str] = "mlp"

    depth: int = 50
    width: int = 500
    inputs: int = 784
    outputs: int = 10
    samples: int = 2
    activation: str = "relu"
    norm_placement: str = "none"
    mu: Setting = 0.0
    sigma_w: Setting = 2.0**0.5
    sigma_b: Setting = 0.0
    input_variance: Setting = 1.0
    input_correlation: Setting = 0.0

    def __post_init__(self) -> None:
        for key in ("depth", "width", "inputs", "outputs", "samples"):
            require_positive_int(key, getattr(self, key))
        require(self.norm_placement in PLACEMENTS, "norm_placement", self.norm_placement, " or ".join(PLACEMENTS))
        for key in ("mu", "sigma_w", "sigma_b", "input_variance"):
            require_range(key, getattr(self, key), 0.0, float("inf"), "a finite number of at least 0")
        activations.get(self.activation)

    def start(self, tape: Tape) -> Node:
        signal = exchangeable_signal(
            self.input_variance, self.input_correlation, tokens=self.samples, width=self.inputs
        )
        return tape.apply(self._linear(self.inputs, self.width, "embedding"), tape.source(signal), name="input")

    def finish(self, tape: Tape, x: Node) -> Node:
        head = self._linear(self.width, self.outputs, "readout")
        return tape.apply(head, tape.apply(self._activation, x), name="head", depth=self.depth)

    @property
    def _activation(self) -> Activation:
        return Activation(activations.get(self.activation))

    def _linear(self, fan_in: int, fan_out: int, role: str = "hidden") -> Linear:
        return Linear(fan_in, fan_out, self.sigma_w**2 / fan_in, self.sigma_b**2, role)

    def block(self, tape: Tape, x: Node, layer: Layer, name: str) -> Node:
        h = x
        if self.norm_placement in ("preactivation", "batch"):
            norm = BatchNorm() if self.norm_placement == "batch" else LayerNorm()
            x = tape.apply(norm, x, parameters=f"{name}.norm")
        x = tape.apply(self._activation, x)
        if self.norm_placement == "activation":
            x = tape.apply(LayerNorm(), x, parameters=f"{name}.norm")
        x = tape.apply(self._linear(self.width, self.width), x, parameters=f"{name}.linear")
        if not isinstance(self.mu, float) or self.mu:
            x = tape.apply(Residual(skip=self.mu), h, x)
        return tape.named(x, name, depth_of(layer))

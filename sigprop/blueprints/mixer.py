"""MLP-Mixer blueprint: mlps over patches and over channels in turn, LayerNorm, residual strength mu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from sigprop.blueprints.base import Setting, Tape, depth_of, require_positive_int, require_range
from sigprop.blueprints.repeated import Layer, RepeatedBlueprint
from sigprop.errors import require
from sigprop.graph.graph import Node
from sigprop.theory import activations, exchangeable_signal
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.layer_norm import LayerNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.positions_to_channels import ChannelsToPositions, PositionsToChannels
from sigprop.theory.ops.residual import Residual, TokenResidual
from sigprop.theory.ops.token_map import DrawnTokenLinear, TokenLinear, TokenMap


@dataclass(frozen=True)
class Mixer(RepeatedBlueprint):
    """Settings of an MLP-Mixer; `Var W = sigma_w^2 / fan_in`, `Var b = sigma_b^2` everywhere.

    With a `seed` the token mixing matrices are drawn rather than averaged over (see `DrawnTokenLinear`): slower, a
    different result for every seed, and needed where mu < 1.
    """

    name: ClassVar[str] = "mixer"

    depth: int = 30
    width: int = 128
    image: int = 32
    channels: int = 3
    patch: int = 4
    token_hidden: int = 256
    channel_hidden: int = 512
    classes: int = 10
    activation: str = "gelu"
    mu: Setting = 1.0
    sigma_w: Setting = 1.0
    sigma_b: Setting = 0.0
    input_correlation: Setting = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for key in ("depth", "width", "image", "channels", "patch", "token_hidden", "channel_hidden", "classes"):
            require_positive_int(key, getattr(self, key))
        require(self.image % self.patch == 0, "patch", self.patch, f"a divisor of the image size {self.image}")
        for key in ("mu", "sigma_w", "sigma_b"):
            require_range(key, getattr(self, key), 0.0, float("inf"), "a finite number of at least 0")
        activations.get(self.activation)

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2

    def start(self, tape: Tape) -> Node:
        values = self.channels * self.patch**2
        pixels = exchangeable_signal(1.0, self.input_correlation, tokens=self.tokens, width=values)
        source = tape.source(pixels if self.seed is None else pixels.dense())
        return tape.apply(self._linear(values, self.width, "embedding"), source, name="patch_embedding")

    def finish(self, tape: Tape, x: Node) -> Node:
        x = tape.apply(LayerNorm(), x, name="final_norm", depth=self.depth)
        head = self._linear(self.width, self.classes, "readout")
        return tape.apply(
            head, tape.apply(TokenMap.mean(tape.signal(x).kernel.tokens), x), name="head", depth=self.depth
        )

    def _linear(self, fan_in: int, fan_out: int, role: str = "hidden") -> Linear:
        return Linear(fan_in, fan_out, self.sigma_w**2 / fan_in, self.sigma_b**2, role)

    def block(self, tape: Tape, x: Node, layer: Layer, name: str) -> Node:
        x = self._mix_tokens(tape, x, layer, name)
        h = tape.apply(LayerNorm(), x, parameters=f"{name}.channel_norm")
        h = tape.apply(self._linear(self.width, self.channel_hidden), h, parameters=f"{name}.channel_mlp.up")
        h = tape.apply(Activation(activations.get(self.activation)), h)
        h = tape.apply(
            self._linear(self.channel_hidden, self.width),
            h,
            name=f"{name}.channel_mlp",
            depth=depth_of(layer),
            parameters=f"{name}.channel_mlp.down",
        )
        return tape.apply(Residual(skip=self.mu), x, h, name=name, depth=depth_of(layer))

    def _mix_tokens(self, tape: Tape, x: Node, layer: Layer, name: str) -> Node:
        function, site = activations.get(self.activation), {"name": f"{name}.token_mlp", "depth": depth_of(layer)}
        up, down = (
            self._mixing(*sizes) for sizes in ((self.tokens, self.token_hidden), (self.token_hidden, self.tokens))
        )
        normalized = tape.apply(LayerNorm(), x, parameters=f"{name}.token_norm")
        junction: Residual = Residual(skip=self.mu)
        if self.seed is None:
            hidden = self._averaged(tape, up, normalized, f"{name}.token_mlp.up")
            out = self._averaged(tape, down, tape.apply(Activation(function), hidden), f"{name}.token_mlp.down", **site)
        else:
            seed = 1_000_003 * self.seed + 2 * depth_of(layer)
            first, second = DrawnTokenLinear.draw(up, seed), DrawnTokenLinear.draw(down, seed + 1)
            hidden = tape.apply(first, normalized, parameters=f"{name}.token_mlp.up")
            out = tape.apply(
                second, tape.apply(Activation(function), hidden), parameters=f"{name}.token_mlp.down", **site
            )
            inside = tape.signal(hidden)
            slopes = function.derivative_mean(inside.covariance.diagonal, inside.mean)
            cross = TokenResidual.covariance(tape.signal(x), tape.signal(normalized), first, slopes, second)
            junction = TokenResidual(skip=self.mu, cross=cross)
        return tape.apply(junction, x, out, name=f"{name}.token_residual", depth=depth_of(layer))

    def _mixing(self, tokens_in: int, tokens_out: int) -> TokenLinear:
        variance = self.sigma_w**2 / tokens_in
        return TokenLinear(tokens_in, tokens_out, variance, self.sigma_b**2, channels=self.width)

    def _averaged(self, tape: Tape, op: TokenLinear, x: Node, parameters: str, **site: Any) -> Node:
        """A linear map over tokens: these become channels, are mapped, and become tokens again."""
        rows = torch.arange(op.fan_in)[None]
        taken = tape.apply(PositionsToChannels(rows, op.fan_in, mixes=True), x)
        return tape.apply(ChannelsToPositions(op.fan_out), tape.apply(op, taken, parameters=parameters), **site)

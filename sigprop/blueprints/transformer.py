"""Transformer blueprint: encoder, decoder or encoder-decoder, with site names of the reference model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sigprop.blueprints import embeddings
from sigprop.blueprints.base import (
    TOPS,
    PerLayer,
    Setting,
    Tape,
    at_layer,
    depth_of,
    require_layers,
    require_positive_int,
    require_range,
)
from sigprop.blueprints.inits import InitScheme, get_init
from sigprop.blueprints.repeated import Layer, RepeatedBlueprint
from sigprop.errors import require
from sigprop.graph.graph import Node
from sigprop.theory import Gradient, activations
from sigprop.theory.ops import loss, sources
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.attention import Attention
from sigprop.theory.ops.dropout import Dropout
from sigprop.theory.ops.layer_norm import LayerNorm, RMSNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.product import Product
from sigprop.theory.ops.residual import Residual

KINDS = ("encoder", "decoder", "encoder_decoder")
PLACEMENTS = ("pre", "post", "sandwich", "none")
NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
STATES = ("auto", "exchangeable", "dense")
GATED = {"swiglu": "silu", "geglu": "gelu"}
POSITIONS = ("learned", "sinusoidal", "none")


@dataclass(frozen=True)
class Transformer(RepeatedBlueprint):
    """Settings of a Transformer. `skip_scale` and `branch_scale` take one number or one per layer; `key_value_heads` is
    the number of heads unless given."""

    name: ClassVar[str] = "transformer"

    kind: str = "encoder"
    depth: int = 12
    width: int = 256
    heads: int = 4
    key_value_heads: int = 0
    hidden: int | None = None
    tokens: int = 128
    target_tokens: int | None = None
    vocabulary: int = 32000
    norm_placement: str = "pre"
    norm: str = "layer_norm"
    activation: str = "relu"
    positions: str = "learned"
    segments: bool = False
    dropout: Setting = 0.0
    init: str | InitScheme = "xavier"
    bias_variance: Setting | None = None
    query_key_gain: Setting = 1.0
    query_key_norm: bool = False
    score_scale: str = "1/sqrt(d)"
    skip_scale: PerLayer = 1.0
    branch_scale: PerLayer = 1.0
    input_correlation: Setting | None = None
    ids: Tensor | None = None
    top: str = "cross_entropy"
    state: str = "auto"

    def __post_init__(self) -> None:
        for key in ("depth", "width", "heads", "tokens", "vocabulary"):
            require_positive_int(key, getattr(self, key))
        if self.key_value_heads == 0:
            object.__setattr__(self, "key_value_heads", self.heads)
        require(self.kind in KINDS, "kind", self.kind, " or ".join(KINDS))
        require(self.norm_placement in PLACEMENTS, "norm_placement", self.norm_placement, " or ".join(PLACEMENTS))
        require(self.norm in NORMS, "norm", self.norm, " or ".join(NORMS))
        require(self.positions in POSITIONS, "positions", self.positions, " or ".join(POSITIONS))
        require(self.state in STATES, "state", self.state, " or ".join(STATES))
        require(self.top in TOPS, "top", self.top, " or ".join(TOPS))
        require(self.score_scale in ("1/sqrt(d)", "1/d"), "score_scale", self.score_scale, "1/sqrt(d) or 1/d")
        require(self.width % self.heads == 0, "heads", self.heads, f"a divisor of width {self.width}")
        require(
            self.key_value_heads > 0 and self.heads % self.key_value_heads == 0,
            "key_value_heads",
            self.key_value_heads,
            f"a divisor of heads {self.heads}",
        )
        require_range("dropout", self.dropout, 0.0, 1.0, "a probability from 0 up to but below 1")
        require_range("query_key_gain", self.query_key_gain, 0.0, float("inf"), "a finite number of at least 0")
        if self.bias_variance is not None:
            require_range("bias_variance", self.bias_variance, 0.0, float("inf"), "a finite number of at least 0")
        for key in ("skip_scale", "branch_scale"):
            require_layers(key, getattr(self, key), self.depth)
        get_init(self.init)
        activations.get(GATED.get(self.activation, self.activation))

    # Shapes.

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def key_width(self) -> int:
        return self.head_width * self.key_value_heads

    @property
    def hidden_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def context(self) -> int:
        """Rows of the table of positions."""
        return max(self.tokens, self.target_tokens or 0)

    @property
    def embedding_kinds(self) -> int:
        return 1 + (self.positions != "none") + self.segments

    def hidden_second_moment(self, variance: float) -> Tensor:
        """Second moment after the activation (and gate) when its inputs have the given variance."""
        function = activations.get(GATED.get(self.activation, self.activation))
        second = function.second_moment(torch.tensor(variance, dtype=torch.float64))
        return second * variance if self.activation in GATED else second

    # The chain.

    def forward(self, tape: Tape) -> Node:
        if self.kind != "encoder_decoder":
            return super().forward(tape)
        memory = self._stack(tape, self._embed(tape, self.tokens, "encoder."), "encoder.", causal=False)
        start = self._embed(tape, self.target_tokens or self.tokens, "decoder.")
        return self._head(tape, self._stack(tape, start, "decoder.", causal=True, memory=memory))

    def start(self, tape: Tape) -> Node:
        return self._embed(tape, self.tokens, "")

    def block(self, tape: Tape, x: Node, layer: Layer, name: str) -> Node:
        return self._block(tape, x, layer, name, self.kind == "decoder", None)

    def finish(self, tape: Tape, x: Node) -> Node:
        return self._head(tape, self._final_norm(tape, x, ""))

    def _head(self, tape: Tape, x: Node) -> Node:
        head = Linear(self.width, self.vocabulary, get_init(self.init).head(self), role="readout")
        return tape.apply(head, x, name="head", depth=self.depth)

    def top_gradient(self, tape: Tape, output: Node) -> Gradient:
        logits = tape.signal(output)
        if self.top == "white_noise":
            return loss.white_noise(logits)
        if self.ids is not None:
            return loss.cross_entropy(logits, targets=self.ids.roll(-1))
        return loss.cross_entropy(logits, coincidence=sources.zipf_coincidence(self.vocabulary))

    def _embed(self, tape: Tape, tokens: int, prefix: str) -> Node:
        x = self._embedding_sum(tape, tokens)
        if self._has_dropout:
            return tape.apply(Dropout(self.dropout), x, name=f"{prefix}embedding")
        return tape.named(x, f"{prefix}embedding", 0)

    def _embedding_sum(self, tape: Tape, tokens: int) -> Node:
        return embeddings.token_sum(self, tape, tokens)

    @property
    def is_dense(self) -> bool:
        """Whether the state has all pairs of tokens."""
        per_token = self.kind != "encoder" or self.ids is not None or self.positions == "sinusoidal"
        return self.state == "dense" or (self.state == "auto" and per_token)

    def _stack(self, tape: Tape, x: Node, prefix: str, causal: bool, memory: Node | None = None) -> Node:
        for layer in range(self.depth):
            x = self._block(tape, x, layer, f"{prefix}blocks.{layer}", causal, memory)
        return self._final_norm(tape, x, prefix)

    def _final_norm(self, tape: Tape, x: Node, prefix: str) -> Node:
        if self.norm_placement not in ("pre", "sandwich"):
            return x
        return tape.apply(NORMS[self.norm](), x, name=f"{prefix}final_norm", depth=self.depth)

    def _block(self, tape: Tape, x: Node, layer: Layer, name: str, causal: bool, memory: Node | None) -> Node:
        def attention(inner: Node) -> Node:
            return self._attention(tape, inner, inner, layer, f"{name}.attention", causal)

        def cross_attention(inner: Node) -> Node:
            assert memory is not None
            return self._attention(tape, inner, memory, layer, f"{name}.cross_attention", causal=False)

        x = self._attach(tape, x, attention, layer, f"{name}.attention", f"{name}.attention_residual")
        if memory is not None:
            x = self._attach(tape, x, cross_attention, layer, f"{name}.cross_attention", "")
        return self._attach(
            tape, x, lambda inner: self._mlp(tape, inner, layer, f"{name}.mlp"), layer, f"{name}.mlp", name
        )

    def _attach(self, tape: Tape, x: Node, branch: Callable[[Node], Node], layer: Layer, name: str, site: str) -> Node:
        """One branch on the residual stream, with the norm where `norm_placement` puts it."""
        norm = NORMS[self.norm]()
        junction = Residual(at_layer(self.skip_scale, layer), at_layer(self.branch_scale, layer))
        inner = tape.apply(norm, x, parameters=f"{name}_norm") if self.norm_placement in ("pre", "sandwich") else x
        out = branch(inner)
        if self.norm_placement == "sandwich":
            out = tape.apply(norm, out, parameters=f"{name}_output_norm")
        if self.norm_placement == "post":
            inside = site.endswith("_residual")  # the sum; a block is what leaves its last norm
            summed = tape.apply(junction, x, out, name=site if inside else "", depth=depth_of(layer))
            named = {} if inside else {"name": site, "depth": depth_of(layer)}
            return tape.apply(norm, summed, parameters=f"{name}_norm", **named)
        return tape.apply(junction, x, out, name=site, depth=depth_of(layer))

    def _attention(self, tape: Tape, x: Node, source: Node, layer: Layer, name: str, causal: bool) -> Node:
        variances = get_init(self.init).attention(self, layer, tape.signal(source))
        width, narrow = self.width, self.key_width
        query = tape.apply(self._linear(width, width, variances.query), x, parameters=f"{name}.query")
        key = tape.apply(self._linear(width, narrow, variances.key), source, parameters=f"{name}.key")
        value = tape.apply(self._linear(width, narrow, variances.value), source, parameters=f"{name}.value")
        if self.query_key_norm:
            query, key = (tape.apply(self._head_norm(), node) for node in (query, key))
        core = Attention(
            self.head_width,
            scale=1.0 / self.head_width if self.score_scale == "1/d" else None,
            shared_width=self.width,
            groups=self.heads // self.key_value_heads,
            dropout=self.dropout,
            is_causal=causal,
        )
        mixed = tape.apply(core, query, key, value, parameters=f"{name}.scores")
        output = self._linear(width, width, variances.output)
        return self._finish(tape, tape.apply(output, mixed, parameters=f"{name}.output"), layer, name)

    def _linear(self, fan_in: int, fan_out: int, variance: Setting) -> Linear:
        """A matrix of a block, with a bias where `bias_variance` is given."""
        return Linear(fan_in, fan_out, variance, self.bias_variance)

    def _head_norm(self) -> RMSNorm:
        return RMSNorm(affine=False)

    def _mlp(self, tape: Tape, x: Node, layer: Layer, name: str) -> Node:
        variances = get_init(self.init).mlp(self, layer, tape.signal(x))
        width, hidden = self.width, self.hidden_width
        function = Activation(activations.get(GATED.get(self.activation, self.activation)))
        up = tape.apply(self._linear(width, hidden, variances.up), x, parameters=f"{name}.up")
        if self.activation in GATED:
            gate = tape.apply(self._linear(width, hidden, variances.up), x, parameters=f"{name}.gate")
            inner = tape.apply(Product(), tape.apply(function, gate), up)
        else:
            inner = tape.apply(function, up)
        out = tape.apply(self._linear(hidden, width, variances.down), inner, parameters=f"{name}.down")
        return self._finish(tape, out, layer, name)

    def _finish(self, tape: Tape, out: Node, layer: Layer, name: str) -> Node:
        """Dropout at the end of a branch; the branch's output is a site."""
        if not self._has_dropout:
            return tape.named(out, name, depth_of(layer))
        return tape.apply(Dropout(self.dropout), out, name=name, depth=depth_of(layer))

    @property
    def _has_dropout(self) -> bool:
        return isinstance(self.dropout, Tensor) or self.dropout > 0

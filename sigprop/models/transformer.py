"""Transformer: encoder, decoder or encoder-decoder, with the choices that matter for signal propagation.

A block is a list of branches (attention, cross attention, mlp), each attached to the stream `x` by one rule:

    pre       x <- s x + b f(norm(x))
    post      x <- norm(s x + b f(x))
    sandwich  x <- s x + b output_norm(f(norm(x)))
    none      x <- s x + b f(x)

with skip scale `s` and branch scale `b` per layer. Pre and sandwich end with a final norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigprop.errors import require
from sigprop.models.layers import Residual, activation, norm, per_layer, reference

KINDS = ("encoder", "decoder", "encoder_decoder")
PLACEMENTS = ("pre", "post", "sandwich", "none")
POSITIONS = ("learned", "sinusoidal", "rotary")


@dataclass(frozen=True)
class TransformerConfig:
    """Shape and choices of a Transformer. `hidden` (the mlp's width) defaults to four times `width`."""

    kind: str = "decoder"
    vocabulary: int = 256
    context: int = 256
    width: int = 256
    depth: int = 8
    heads: int = 4
    hidden: int | None = None
    norm_placement: str = "pre"
    norm: str = "layer_norm"
    activation: str = "gelu"
    positions: str = "learned"
    skip_scale: float | Sequence[float] = 1.0
    branch_scale: float | Sequence[float] = 1.0
    learnable_scales: bool = False
    fused_qkv: bool = False
    tied_head: bool = False
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require(self.kind in KINDS, "kind", self.kind, " or ".join(KINDS))
        require(self.norm_placement in PLACEMENTS, "norm_placement", self.norm_placement, " or ".join(PLACEMENTS))
        require(self.positions in POSITIONS, "positions", self.positions, " or ".join(POSITIONS))
        require(self.width % self.heads == 0, "heads", self.heads, f"a divisor of width {self.width}")
        require(0.0 <= self.dropout < 1.0, "dropout", self.dropout, "a probability below 1")
        if self.positions == "rotary":
            even = self.width // self.heads % 2 == 0
            require(even, "heads", self.heads, "an even head size for rotary positions")


class SinusoidalPositions(nn.Module):
    """Fixed table: sine, then cosine, of `t / 10000^(2i/width)`, each on one half of the channels."""

    table: Tensor

    def __init__(self, context: int, width: int):
        super().__init__()
        angles = _angles(torch.arange(context), width)
        self.register_buffer("table", torch.cat((angles.sin(), angles.cos()), dim=-1), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        return self.table[positions]


def _angles(positions: Tensor, width: int) -> Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, device=positions.device) / width)
    return positions[:, None] * frequencies


def rotate(x: Tensor) -> Tensor:
    """Rotary positions: turn channel pairs `(i, i + head_size/2)` by an angle growing with position."""
    angles = _angles(torch.arange(x.shape[-2], device=x.device), x.shape[-1])
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Attention(nn.Module):
    """Multi-head attention with scores scaled by `1/sqrt(head_size)`; cross attention when given a memory."""

    def __init__(self, config: TransformerConfig, causal: bool, cross: bool = False):
        super().__init__()
        width, bias = config.width, config.bias
        self.heads = config.heads
        self.causal = causal
        self.rotary = config.positions == "rotary" and not cross
        self.dropout = config.dropout
        self.fused = config.fused_qkv and not cross
        if self.fused:
            self.qkv = nn.Linear(width, 3 * width, bias=bias)
        else:
            self.query = nn.Linear(width, width, bias=bias)
            self.key = nn.Linear(width, width, bias=bias)
            self.value = nn.Linear(width, width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        self.output_dropout = nn.Dropout(config.dropout) if config.dropout else None

    def forward(self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        source = x if memory is None else memory
        if self.fused:
            query, key, value = self.qkv(x).chunk(3, dim=-1)
        else:
            query, key, value = self.query(x), self.key(source), self.value(source)
        query, key, value = self._split(query), self._split(key), self._split(value)
        if self.rotary:
            query, key = rotate(query), rotate(key)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=self._mask(mask, x.shape[1]),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal and mask is None,
        )
        out = self.output(mixed.transpose(1, 2).flatten(2))
        return out if self.output_dropout is None else self.output_dropout(out)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _mask(self, mask: Tensor | None, length: int) -> Tensor | None:
        """Padding (batch, source) and causality as one boolean mask, true where a query may look."""
        if mask is None:
            return None
        allowed = mask.bool()[:, None, None, :]
        if self.causal:
            allowed = allowed & torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
        return allowed


class FeedForward(nn.Module):
    """`down(phi(up(x)))`, or `down(silu(gate(x)) * up(x))` for swiglu."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        hidden = config.hidden or 4 * config.width
        gated = config.activation == "swiglu"
        self.gate = nn.Linear(config.width, hidden, bias=config.bias) if gated else None
        self.up = nn.Linear(config.width, hidden, bias=config.bias)
        self.activation = activation("silu" if gated else config.activation)
        self.down = nn.Linear(hidden, config.width, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout) if config.dropout else None

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        out = self.down(self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up)
        return out if self.dropout is None else self.dropout(out)


class Block(nn.Module):
    """Attention, optional cross attention and mlp on one residual stream."""

    def __init__(
        self,
        config: TransformerConfig,
        causal: bool,
        cross: bool = False,
        skip_scale: float = 1.0,
        branch_scale: float = 1.0,
    ):
        super().__init__()
        self.placement = config.norm_placement
        branches: dict[str, nn.Module] = {"attention": Attention(config, causal)}
        if cross:
            branches["cross_attention"] = Attention(config, causal=False, cross=True)
        branches["mlp"] = FeedForward(config)
        for name, branch in branches.items():
            if self.placement != "none":
                self.add_module(f"{name}_norm", norm(config.norm, config.width))
            self.add_module(name, branch)
            if self.placement == "sandwich":
                self.add_module(f"{name}_output_norm", norm(config.norm, config.width))
            self.add_module(f"{name}_residual", Residual(skip_scale, branch_scale, config.learnable_scales))
        self.has_cross = cross

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        x = self._attach(x, "attention", mask)
        if self.has_cross:
            x = self._attach(x, "cross_attention", memory_mask, memory)
        return self._attach(x, "mlp")

    def _attach(self, x: Tensor, name: str, *inputs: Tensor | None) -> Tensor:
        branch, residual = self.get_submodule(name), self.get_submodule(f"{name}_residual")
        if self.placement == "none":
            return residual(x, branch(x, *inputs))
        branch_norm = self.get_submodule(f"{name}_norm")
        if self.placement == "post":
            return branch_norm(residual(x, branch(x, *inputs)))
        out = branch(branch_norm(x), *inputs)
        if self.placement == "sandwich":
            out = self.get_submodule(f"{name}_output_norm")(out)
        return residual(x, out)


def make_blocks(config: TransformerConfig, causal: bool, cross: bool = False) -> nn.ModuleList:
    """`depth` blocks with the skip and branch scale of each."""
    skips = per_layer("skip_scale", config.skip_scale, config.depth)
    branches = per_layer("branch_scale", config.branch_scale, config.depth)
    return nn.ModuleList(
        Block(config, causal, cross, skip, branch) for skip, branch in zip(skips, branches, strict=True)
    )


class Stack(nn.Module):
    """Blocks and the final norm: one half of an encoder-decoder."""

    def __init__(self, config: TransformerConfig, causal: bool, cross: bool = False):
        super().__init__()
        self.blocks = make_blocks(config, causal, cross)
        self.final_norm = final_norm(config)

    def forward(self, x: Tensor, *inputs: Tensor | None) -> Tensor:
        for block in self.blocks:
            x = block(x, *inputs)
        return x if self.final_norm is None else self.final_norm(x)


def final_norm(config: TransformerConfig) -> nn.Module | None:
    return norm(config.norm, config.width) if config.norm_placement in ("pre", "sandwich") else None


class _Embedded(nn.Module):
    """Token and position embeddings, and the output head."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)
        if config.positions == "learned":
            self.position_embedding = nn.Embedding(config.context, config.width)
        elif config.positions == "sinusoidal":
            self.position_embedding = SinusoidalPositions(config.context, config.width)
        else:
            self.position_embedding = None
        self.embedding_dropout = nn.Dropout(config.dropout) if config.dropout else None

    def _make_head(self) -> nn.Linear:
        head = nn.Linear(self.config.width, self.config.vocabulary, bias=False)
        if self.config.tied_head:
            head.weight = self.token_embedding.weight
        return head

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.token_embedding(tokens)
        if self.position_embedding is not None:
            x = x + self.position_embedding(torch.arange(tokens.shape[1], device=tokens.device))
        return x if self.embedding_dropout is None else self.embedding_dropout(x)


class Transformer(_Embedded):
    """Encoder or decoder: token ids (batch, tokens) to logits (batch, tokens, vocabulary).

    `attention_mask` (batch, tokens) is 1 for a token and 0 for padding.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        require(config.kind != "encoder_decoder", "kind", config.kind, "encoder or decoder; see EncoderDecoder")
        self.blocks = make_blocks(config, causal=config.kind == "decoder")
        self.final_norm = final_norm(config)
        self.head = self._make_head()

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, attention_mask)
        return self.head(x if self.final_norm is None else self.final_norm(x))


class EncoderDecoder(_Embedded):
    """Source and target token ids to logits of the target (batch, target tokens, vocabulary)."""

    def __init__(self, config: TransformerConfig):
        super().__init__(config)
        self.encoder = Stack(config, causal=False)
        self.decoder = Stack(config, causal=True, cross=True)
        self.head = self._make_head()

    def forward(self, tokens: Tensor, target_tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        memory = self.encoder(self.embed(tokens), attention_mask)
        return self.head(self.decoder(self.embed(target_tokens), None, memory, attention_mask))


@reference("transformer", TransformerConfig)
def transformer(**settings) -> Transformer | EncoderDecoder:
    """Build a Transformer from the settings of `TransformerConfig`."""
    config = TransformerConfig(**settings)
    return EncoderDecoder(config) if config.kind == "encoder_decoder" else Transformer(config)

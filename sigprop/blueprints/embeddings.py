"""Where a Transformer blueprint starts: tables of rows, positions and image patches, added up."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from sigprop.blueprints.base import Tape
from sigprop.blueprints.inits import get_init
from sigprop.graph.graph import Node
from sigprop.theory import Evidence, Kernel, Signal, Status, exchangeable_signal
from sigprop.theory.ops import sources
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.residual import Residual

if TYPE_CHECKING:
    from sigprop.blueprints.transformer import Transformer
    from sigprop.blueprints.vit import ViT

ZIPF = Evidence(Status.ASYMPTOTIC, "tokens drawn from Zipf's law")


def token_sum(blueprint: Transformer, tape: Tape, tokens: int) -> Node:
    """Token, position and segment embeddings; with `input_correlation` a sum of which only that is known."""
    if blueprint.input_correlation is not None:
        variance = get_init(blueprint.init).embedding(blueprint) * blueprint.embedding_kinds
        signal = exchangeable_signal(variance, blueprint.input_correlation, tokens=tokens, width=blueprint.width)
        return tape.source(_shaped(blueprint, signal))
    parts = [_tokens(blueprint, tape, tokens), *_positions(blueprint, tape, tokens)]
    if blueprint.segments:
        parts.append(_table(blueprint, tape, "segment_embedding", sources.two_segments(tokens), 2))
    return _sum(tape, parts)


def patch_sum(blueprint: ViT, tape: Tape) -> Node:
    """A linear map of image patches, and positions."""
    values, tokens = blueprint.patch_values, blueprint.tokens
    if blueprint.pixels is not None:
        image = sources.patches(blueprint.pixels)
    else:
        image = sources.noise_patches(blueprint.input_correlation, tokens, values)
    variance = get_init(blueprint.init).embedding(blueprint) / values
    linear = Linear(values, blueprint.width, variance, role="input")
    patches = tape.apply(linear, tape.source(_shaped(blueprint, image)), parameters="patch_embedding")
    return _sum(tape, [patches, *_positions(blueprint, tape, tokens)])


def _sum(tape: Tape, parts: list[Node]) -> Node:
    return reduce(lambda total, part: tape.apply(Residual(), total, part), parts)


def _tokens(blueprint: Transformer, tape: Tape, tokens: int) -> Node:
    if blueprint.ids is not None:
        return _table(blueprint, tape, "token_embedding", sources.equal_ids(blueprint.ids), blueprint.vocabulary)
    same = sources.zipf_tokens(blueprint.vocabulary, tokens)
    return _table(blueprint, tape, "token_embedding", same, blueprint.vocabulary, evidence=ZIPF)


def _positions(blueprint: Transformer, tape: Tape, tokens: int) -> list[Node]:
    if blueprint.positions == "none":
        return []
    if blueprint.positions == "sinusoidal":
        return [tape.source(_shaped(blueprint, sources.sinusoidal_positions(tokens, blueprint.width)))]
    same = sources.one_per_position(tokens)
    return [_table(blueprint, tape, "position_embedding", same, blueprint.context, role="positional")]


def _table(
    blueprint: Transformer, tape: Tape, name: str, same: Kernel, rows: int, role: str = "embedding", **settings: Any
) -> Node:
    variance, width = get_init(blueprint.init).embedding(blueprint), blueprint.width
    same = same.dense() if blueprint.is_dense else same.exchangeable()
    op = sources.ParameterSource(same, variance, (rows, width), width, role=role, **settings)
    return tape.apply(op, parameters=name)


def _shaped(blueprint: Transformer, signal: Signal) -> Signal:
    return signal.dense() if blueprint.is_dense else signal.exchangeable()

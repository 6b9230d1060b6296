"""Weight variances of a Transformer block, by scheme.

A scheme sees the state at the input of each branch, because DeepScale sets the values' variance from the token
correlation that arrives there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sigprop.errors import InputError, UnknownNameError
from sigprop.theory import Signal

if TYPE_CHECKING:
    from sigprop.blueprints.transformer import Transformer

Number = float | Tensor
Layer = int | slice


@dataclass(frozen=True)
class AttentionVariances:
    query: Number
    key: Number
    value: Number
    output: Number


@dataclass(frozen=True)
class MLPVariances:
    up: Number
    down: Number


class InitScheme:
    """Variance `1/fan_in`, and a word for each place where a scheme differs."""

    def matrix(self, fan_in: int, fan_out: int) -> float:
        return 1.0 / fan_in

    def embedding(self, blueprint: Transformer) -> Number:
        return 1.0

    def attention(self, blueprint: Transformer, layer: Layer, x: Signal) -> AttentionVariances:
        width, key_width = blueprint.width, blueprint.key_width
        query, key = self.matrix(width, width), self.matrix(width, key_width)
        gain = blueprint.query_key_gain
        return AttentionVariances(query * gain, key * gain, key, self.matrix(width, width))

    def mlp(self, blueprint: Transformer, layer: Layer, x: Signal) -> MLPVariances:
        width, hidden = blueprint.width, blueprint.hidden_width
        return MLPVariances(self.matrix(width, hidden), self.matrix(hidden, width))

    def head(self, blueprint: Transformer) -> Number:
        return self.matrix(blueprint.width, blueprint.vocabulary)


class Kaiming(InitScheme):
    """Variance `2/fan_in`."""

    def matrix(self, fan_in: int, fan_out: int) -> float:
        return 2.0 / fan_in


class Xavier(InitScheme):
    """Variance `2/(fan_in + fan_out)`."""

    def matrix(self, fan_in: int, fan_out: int) -> float:
        return 2.0 / (fan_in + fan_out)


class XavierPerHead(Xavier):
    """Xavier with the value matrix treated head by head, as in the theory behind dslm's `C1 = 2.2`."""

    def attention(self, blueprint: Transformer, layer: Layer, x: Signal) -> AttentionVariances:
        base = super().attention(blueprint, layer, x)
        head = self.matrix(blueprint.width, blueprint.head_width)
        gain = blueprint.query_key_gain
        return AttentionVariances(head * gain, head * gain, head, base.output)


class Fixed(InitScheme):
    """Every weight with one standard deviation, 0.02 unless said."""

    def __init__(self, std: float = 0.02):
        self.std = std

    def matrix(self, fan_in: int, fan_out: int) -> float:
        return self.std**2

    def embedding(self, blueprint: Transformer) -> Number:
        return self.std**2


class GPT2(Fixed):
    """Standard deviation 0.02; the last weight of every branch divided by the root of the number of branches."""

    def attention(self, blueprint: Transformer, layer: Layer, x: Signal) -> AttentionVariances:
        base = super().attention(blueprint, layer, x)
        return AttentionVariances(base.query, base.key, base.value, base.output / (2 * blueprint.depth))

    def mlp(self, blueprint: Transformer, layer: Layer, x: Signal) -> MLPVariances:
        base = super().mlp(blueprint, layer, x)
        return MLPVariances(base.up, base.down / (2 * blueprint.depth))


class DeepScale(InitScheme):
    """Unit variance out of every branch (dslm, pseudo-code N; the correlation is read before the update).

    `Var W_v = Var W_o = (1/d) sqrt((1-p)/r)`, `Var W_up = Var W_down = (1/d) sqrt((1-p)/2)` for ReLU with hidden
    width 4d; for other activations and widths `W_down` is set from the predicted second moment.
    Goes with skip `sqrt(1 - 2/N)` and branch `sqrt(2/N)`.
    """

    def embedding(self, blueprint: Transformer) -> Number:
        return (1.0 - blueprint.dropout) / blueprint.embedding_kinds

    def attention(self, blueprint: Transformer, layer: Layer, x: Signal) -> AttentionVariances:
        if blueprint.key_value_heads != blueprint.heads:
            raise InputError("init = 'deepscale' is defined for as many key/value heads as heads; use the unit solver")
        _, _, correlation = x.summary()
        floor = correlation.clamp_min(1.0 / x.kernel.tokens)
        value = (((1.0 - blueprint.dropout) / floor) ** 0.5) / blueprint.width
        qk = blueprint.query_key_gain / blueprint.width
        return AttentionVariances(qk, qk, value, value)

    def mlp(self, blueprint: Transformer, layer: Layer, x: Signal) -> MLPVariances:
        width, hidden = blueprint.width, blueprint.hidden_width
        up = math.sqrt((1.0 - float(torch.as_tensor(blueprint.dropout).max())) / 2.0) / width
        second = blueprint.hidden_second_moment(width * up)
        return MLPVariances(up, (1.0 - blueprint.dropout) / (hidden * second))


INITS: dict[str, InitScheme] = {
    "lecun": InitScheme(),
    "kaiming": Kaiming(),
    "xavier": Xavier(),
    "xavier_per_head": XavierPerHead(),
    "fixed": Fixed(),
    "gpt2": GPT2(),
    "deepscale": DeepScale(),
}


def get_init(init: str | InitScheme) -> InitScheme:
    if isinstance(init, InitScheme):
        return init
    if init not in INITS:
        raise UnknownNameError("init", init, INITS)
    return INITS[init]

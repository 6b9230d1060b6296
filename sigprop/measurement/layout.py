"""How a tensor is read as sequences of tokens: which axes are tokens, and which tokens are padding.

The rule, for a tensor whose first axis counts the examples of the batch:

- convolutions and channel-first norms (Conv, BatchNorm, GroupNorm, pooling): every axis after the channels;
- the batch's own number of tokens, where one axis after the first has it (four axes or more);
- three axes: the second;
- two: none where the first counts the examples, else the first, as one sequence or as all sequences joined;
- four or five axes otherwise: images, every axis after the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.compat import AdaptiveAvgPoolNd, AvgPoolNd, BatchNorm, ConvNd, InstanceNorm, MaxPoolNd
from sigprop.errors import InputError

TokenAxes = int | tuple[int, ...]
AxesRule = Callable[[str, Tensor], TokenAxes | None]

CHANNEL_FIRST = (
    ConvNd,
    BatchNorm,
    nn.GroupNorm,
    InstanceNorm,
    MaxPoolNd,
    AvgPoolNd,
    AdaptiveAvgPoolNd,
)
CHANNEL_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)


@dataclass
class TokenLayout:
    """What the batch says about tokens, and the user's override of the rule."""

    examples: int | None = None
    tokens: tuple[int, ...] = ()
    masks: list[Tensor] = field(default_factory=list)
    override: TokenAxes | AxesRule | None = None
    _fitted: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict)

    def axes(self, name: str, x: Tensor, module: nn.Module | None = None) -> tuple[int, ...]:
        """The token axes of a tensor; empty when it has none."""
        chosen = self.override(name, x) if callable(self.override) else self.override
        if chosen is not None:
            return _checked(name, x, chosen)
        return self._rule(x, module)

    def _rule(self, x: Tensor, module: nn.Module | None) -> tuple[int, ...]:
        shape = x.shape
        number = len(shape)
        if isinstance(module, CHANNEL_FIRST):
            return tuple(range(2, number))
        if number <= 3:
            return (1,) if number == 3 else ()
        if isinstance(module, CHANNEL_LAST):
            return tuple(range(1, number - 1))
        known = [axis for axis in range(1, number) if shape[axis] in self.tokens]
        return (known[0],) if known else tuple(range(2, number))

    def view(self, name: str, x: Tensor, module: nn.Module | None = None) -> Tensor:
        """The tensor as (sequences, tokens, channels)."""
        axes = self.axes(name, x, module)
        if not axes:
            return self._flat_view(x, module)
        if axes == (1,) and x.dim() == 3:
            return x
        if axes[0] == 2 and len(axes) == x.dim() - 2:
            return x.flatten(2).mT
        sequence = 1 if 0 in axes else 0
        channels = [axis for axis in range(x.dim()) if axis != sequence and axis not in axes]
        ordered = x.permute(sequence, *axes, *channels)
        count = 1
        for axis in axes:
            count *= x.shape[axis]
        return ordered.reshape(x.shape[sequence], count, -1)

    def _flat_view(self, x: Tensor, module: nn.Module | None) -> Tensor:
        """No token axis: one token per example, one sequence, or the rows of all sequences one after another."""
        rows = x.shape[0]
        if x.dim() != 2 or not self.examples or rows == self.examples:
            return x.reshape(rows, 1, -1)
        if rows in self.tokens or rows % self.examples or isinstance(module, nn.Embedding):
            return x[None]
        return x.reshape(self.examples, -1, x.shape[1])

    def mask(self, name: str, view: Tensor) -> Tensor | None:
        """The padding mask (sequences, tokens) that fits a viewed tensor; true for a real token."""
        if not self.masks:
            return None
        fitting = [mask for mask in self.masks if mask.shape == view.shape[:2]]
        if not fitting:
            return None
        chosen = fitting[-1] if "decoder" in name else fitting[0]
        key = (id(chosen), view.device)
        if key not in self._fitted:
            self._fitted[key] = chosen.to(view.device)
        return self._fitted[key]

    def require_mask_fitted(self) -> None:
        """Raise when a mask was given and no tensor has its sequences and tokens."""
        if self.masks and not self._fitted:
            shape = tuple(self.masks[0].shape)
            raise InputError(
                f"mask of shape {shape} fits no site: needs the (sequences, tokens) of the model's tensors"
            )


def _checked(name: str, x: Tensor, chosen: TokenAxes) -> tuple[int, ...]:
    axes = (chosen,) if isinstance(chosen, int) else tuple(chosen)
    if any(not -x.dim() <= axis < x.dim() for axis in axes):
        raise InputError(f"token_axes = {chosen!r} does not exist at {name}: the tensor has shape {tuple(x.shape)}")
    return tuple(axis % x.dim() for axis in axes)


def layout_of(batch: Any, mask: Tensor | None = None, override: TokenAxes | AxesRule | None = None) -> TokenLayout:
    """Read the number of examples and tokens and the padding masks from the batch."""
    named = dict(batch) if isinstance(batch, Mapping) else {}
    tensors = list(named.values()) if named else list(batch) if isinstance(batch, (tuple, list)) else [batch]
    tensors = [item for item in tensors if isinstance(item, Tensor) and item.dim() > 0]
    tokens = [item.shape[1] for item in tensors if item.dim() == 2 and not item.is_floating_point()]
    tokens += [item.shape[1] for item in tensors if item.dim() == 3 and item.is_floating_point()]
    keys = ("attention_mask", "decoder_attention_mask")
    masks = [mask] if mask is not None else [named[key] for key in keys if isinstance(named.get(key), Tensor)]
    for item in masks:
        if item.dim() != 2 and mask is not None:
            raise InputError(f"mask has shape {tuple(item.shape)}: needs (sequences, tokens), 1 for a real token")
    flat = [item.to(torch.bool) for item in masks if item.dim() == 2]
    return TokenLayout(tensors[0].shape[0] if tensors else None, tuple(dict.fromkeys(tokens)), flat, override)

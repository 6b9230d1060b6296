"""What a pass of a model costs: operations counted as they run, never seconds."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from torch import nn
from torch.utils.flop_counter import flop_registry

from sigprop.batches import tensors_in
from sigprop.compat import TorchDispatchMode, without_overload

PER_ENTRY = 8
"""Operations that one entry of a result stands for, where no formula counts them."""


class WorkCounter(TorchDispatchMode):
    """While active, counts the operations of everything that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        result = func(*args, **(kwargs or {}))
        count = flop_registry.get(without_overload(func))
        if "flash_attention_for_cpu" in func.__name__:
            self.operations += _attention(func.__name__, args)
        if count is not None:
            with suppress(Exception):  # a formula that does not take what was called: counted by its result alone
                self.operations += int(count(*args, **(kwargs or {}), out_val=result))
        self.operations += PER_ENTRY * sum(item.numel() for _, item in tensors_in(result))
        return result


def _attention(name: str, args: tuple) -> int:
    """Fused attention on a CPU, which torch has no formula for: two products forward, five backward."""
    query, key, value = args[1:4] if "backward" in name else args[:3]
    products = 5 if "backward" in name else 2
    return products * query.numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1]) // query.shape[-1]


def parameter_count(model: nn.Module) -> int:
    return sum(math.prod(parameter.shape) for parameter in model.parameters())


def batch_entries(batch: Any) -> int:
    return sum(item.numel() for _, item in tensors_in(batch))

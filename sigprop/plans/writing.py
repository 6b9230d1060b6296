"""A plan written on a model: all of it or nothing, whole tensors or sharded ones.

What a plan changes is put back when applying it fails, or is interrupted.

Sharded parameters (FSDP2, tensor parallel) get the numbers of one process, on any mesh: every rank runs through the
same stream of numbers and keeps its own rows of each piece, so that no rank ever holds more than a piece of the whole
tensor. The CPU generator fills 16 numbers at a time: pieces of a multiple of 16 entries give the numbers that one call
for the whole tensor gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sigprop import compat
from sigprop.measurement.guard import ModuleState


class Saved:
    """Values of parameters, saved one by one before they are written."""

    def __init__(self) -> None:
        self._values: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(self, parameter: torch.Tensor) -> None:
        self._values.append((parameter, parameter.detach().clone()))

    def write(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """New values for a tensor, sharded or not."""
        self.keep(target)
        fill(target, values)

    def put_back(self) -> None:
        with torch.no_grad():
            for parameter, values in self._values:
                parameter.copy_(values)


def fill(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy whole values into a tensor that may be sharded."""
    mesh = getattr(target, "device_mesh", None)
    if mesh is None:
        target.copy_(values)
        return
    from torch.distributed.tensor import distribute_tensor

    placed = values.to(device=mesh.device_type, dtype=target.dtype)
    target.copy_(distribute_tensor(placed, mesh, target.placements))  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def all_or_nothing(model: nn.Module, generator: torch.Generator | None) -> Iterator[Saved]:
    """Run a change of the model; on any exception its hooks, own attributes, parameters and the generator go back."""
    saved = Saved()
    modules = [ModuleState(module) for module in model.modules()]
    numbered = None if generator is None else generator.get_state()
    numbers = torch.get_rng_state()
    try:
        yield saved
    except BaseException:
        saved.put_back()
        for state in modules:
            state.restore()
        if generator is not None and numbered is not None:
            generator.set_state(numbered)
        torch.set_rng_state(numbers)
        raise


STREAMED = ("constant", "normal", "uniform")
"""Initializations whose entries are made one after the other. Orthogonal matrices and truncated normals, which torch
makes again where they fall outside, are made as a whole on every rank."""
PIECE = 1 << 20
BLOCK = 16


def is_sharded(parameter: Tensor) -> bool:
    return getattr(parameter, "device_mesh", None) is not None


def fill_pieces(parameter: Any, make: Callable[[tuple[int, ...]], Tensor], zero_row: int | None = None) -> None:
    """Let every rank keep its part of what `make` gives, piece after piece along the first axis."""
    shape = tuple(parameter.shape)
    local = parameter.to_local()
    _, offset = compat.local_shape_and_offset(parameter.shape, parameter.device_mesh, parameter.placements)
    begin, end = (offset[0], offset[0] + local.shape[0]) if local.numel() else (0, 0)
    first = 0
    for rows in _pieces(shape):
        values = make((rows, *shape[1:]))
        if zero_row is not None and first <= zero_row < first + rows:
            values[zero_row - first] = 0.0
        low, high = max(begin, first), min(end, first + rows)
        if low < high:
            own = values[low - first : high - first]
            for axis in range(1, len(shape)):
                own = own.narrow(axis, offset[axis], local.shape[axis])
            local[low - begin : high - begin].copy_(own)
        first += rows


def _pieces(shape: tuple[int, ...]) -> list[int]:
    """Rows of each piece: whole blocks of the generator, and no last piece shorter than one."""
    width = math.prod(shape[1:])
    step = BLOCK // math.gcd(BLOCK, width)
    rows = max(step, PIECE // max(width, 1) // step * step)
    count, rest = divmod(shape[0], rows)
    if count and rest * width < BLOCK:
        return [*[rows] * (count - 1), rows + rest]
    return [rows] * count + ([rest] if rest else [])


def common_generator(model: nn.Module) -> torch.Generator | None:
    """The random numbers of the first rank, for all; None where nothing is sharded."""
    if not any(map(is_sharded, model.parameters())):
        return None
    state = torch.get_rng_state()
    device = torch.device("cuda") if torch.distributed.get_backend() == "nccl" else torch.device("cpu")
    shared = state.to(device)
    torch.distributed.broadcast(shared, 0)
    generator = torch.Generator()
    generator.set_state(shared.cpu())
    return generator

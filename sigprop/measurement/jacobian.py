"""Partial Jacobians of any model between sites, by random probes.

    J(a, b) = |d h_b / d h_a|_F^2 / entries(h_b) = E_v |v^T d h_b / d h_a|^2 / entries(h_b),   v = +1 or -1,

over the whole batch. Between consecutive blocks this is the growth factor chi_J. Reference: Doshi, He, Gromov,
Critical Initialization of Wide and Deep Neural Networks using Partial Jacobians, NeurIPS 2023, section 2.

The profile cuts the graph at every block output, so that one backward pass carries the probes of all blocks, each
through its own block only. From one layer to all later ones a forward-mode pass carries one probe through all.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sigprop.batches import copied, tensors_in
from sigprop.errors import InputError, require
from sigprop.isolation import Interrupts
from sigprop.measurement.batch import call
from sigprop.measurement.cuts import Cuts, module_names, repeated_blocks
from sigprop.measurement.guard import untouched
from sigprop.measurement.probes import bases, pulled_back, signs

EXACT_ENTRIES = 256
PROBES = 8


@dataclass(frozen=True)
class PartialJacobian:
    """J from `source` to `target`; the standard error is over probes, zero when exact.

    Where the signal has overflowed the value is not finite, and the standard error is nan.
    """

    source: str
    target: str
    value: float
    standard_error: float
    exact: bool = False


def jacobian(
    model: nn.Module, batch: Any, between: tuple[str, str], probes: int | None = None, seed: int = 0
) -> PartialJacobian:
    """J between the outputs of two modules, through every path from the first to the second.

    Without `probes` it is exact when the target has at most 256 entries in the batch, else from 8 probes.
    """
    source, target = module_names(model, between)
    with _prepared(model, batch) as interrupts, Cuts(model, [source], [target]) as cuts, interrupts.let_through():
        call(model, copied(batch))
        return _local(cuts, [(source, target)], probes, seed)[0]


def jacobian_profile(
    model: nn.Module,
    batch: Any,
    blocks: Iterable[str] | None = None,
    start: str | None = None,
    probes: int | None = None,
    seed: int = 0,
) -> list[PartialJacobian]:
    """Growth from each block to the next (chi_J), or, with `start`, J from that module to every later block.

    `blocks` are names or patterns; by default the model's repeated blocks.
    """
    names = module_names(model, repeated_blocks(model) if blocks is None else blocks)
    if start is not None:
        return _from_start(model, batch, module_names(model, [start])[0], names, _checked(probes), seed)
    with _prepared(model, batch) as interrupts, Cuts(model, names, names) as cuts, interrupts.let_through():
        call(model, copied(batch))
        order = cuts.order
        if len(order) < 2:
            raise InputError(f"a profile needs two blocks that ran: got {', '.join(order) or 'none'}")
        return _local(cuts, list(pairwise(order)), probes, seed)


@contextmanager
def _prepared(model: nn.Module, batch: Any) -> Iterator[Interrupts]:
    """The model guarded, gradients on, signals held."""
    tensors = [tensor for _, tensor in tensors_in(batch)]
    with (
        untouched(model.modules(), tensors) as interrupts,
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        yield interrupts


def _local(cuts: Cuts, pairs: list[tuple[str, str]], probes: int | None, seed: int) -> list[PartialJacobian]:
    """All pairs from the same backward passes; every pair has a graph of its own, or there is one pair."""
    inputs = [cuts.leaf(source) for source, _ in pairs]
    outputs = [cuts.output(target) for _, target in pairs]
    entries = [output.numel() for output in outputs]
    exact = probes is None and max(entries) <= EXACT_ENTRIES
    count = max(entries) if exact else _checked(probes)
    vectors = bases(outputs) if exact else signs(outputs, count, seed)
    table = torch.cat(list(pulled_back(outputs, inputs, vectors))).tolist()
    found = []
    for column, ((source, target), size) in enumerate(zip(pairs, entries, strict=True)):
        values = [row[column] / size for row in table]
        found.append(_estimate(source, target, [sum(values)] if exact else values, exact))
    return found


def _from_start(
    model: nn.Module, batch: Any, start: str, names: list[str], probes: int, seed: int
) -> list[PartialJacobian]:
    """One forward-mode pass per probe: |J u|^2 at every block for a random direction u at the start."""
    found: dict[str, list[Tensor]] = {}
    for index in range(probes):
        with _prepared(model, batch) as interrupts, forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            with Cuts(model, [start], names, tangent_seed=seed + index) as cuts, interrupts.let_through():
                call(model, copied(batch))
            later = cuts.order[cuts.order.index(start) + 1 :] if start in cuts.order else []
            if not later:
                raise InputError(f"no block runs after {start!r}; blocks: {', '.join(cuts.order)}")
            for name in later:
                output = cuts.output(name)
                tangent = forward_ad.unpack_dual(output).tangent
                square = torch.zeros((), dtype=torch.float64) if tangent is None else _square(tangent)
                found.setdefault(name, []).append(square / output.numel())
    return [_estimate(start, name, torch.stack(values).tolist(), False) for name, values in found.items()]


def _checked(probes: int | None) -> int:
    require(probes is None or probes > 0, "probes", probes, "at least 1")
    return PROBES if probes is None else probes


def _estimate(source: str, target: str, values: list[float], exact: bool) -> PartialJacobian:
    """Mean and standard error; a value that is not finite is passed on, with no error."""
    mean = sum(values) / len(values)
    if not math.isfinite(mean) or (len(values) == 1 and not exact):
        return PartialJacobian(source, target, mean, math.nan, exact)
    error = 0.0 if exact else statistics.stdev(values) / math.sqrt(len(values))
    return PartialJacobian(source, target, mean, error, exact)


def _square(x: Tensor) -> Tensor:
    return x.detach().double().square().sum()

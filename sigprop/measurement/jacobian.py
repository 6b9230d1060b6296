"""Partial Jacobians of any model between sites, by random probes.

    J(a, b) = |d h_b / d h_a|_F^2 / entries(h_b) = E_v |v^T d h_b / d h_a|^2 / entries(h_b),   v = +1 or -1,

over the whole batch. Between consecutive blocks this is the growth factor chi_J. Reference: Doshi, He, Gromov,
Critical Initialization of Wide and Deep Neural Networks using Partial Jacobians, NeurIPS 2023, section 2.

The profile cuts the graph at every block output, so that one backward pass carries the probes of all blocks, each
through its own block only. From one layer to all later ones a forward-mode pass carries one probe through all.
"""

from __future__ import annotations

import fnmatch
import math
import statistics
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sigprop.batches import copied, tensors_in
from sigprop.compat import foreach_norm
from sigprop.errors import InputError, UnknownNameError, UnsupportedError, require
from sigprop.isolation import Interrupts, seed_of
from sigprop.measurement.batch import call, signals_in
from sigprop.measurement.guard import untouched

CHUNK_ENTRIES = 1 << 25

Vectors = Iterator[list[Tensor]]
"""Chunks; a chunk has one tensor for each output, (vectors, *shape of the output)."""


def signs(outputs: Sequence[Tensor], count: int, seed: int) -> Vectors:
    """`count` vectors of random signs; every vector is drawn at once for all outputs of one kind."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for index, output in enumerate(outputs):
        kinds.setdefault((output.device, output.dtype), []).append(index)
    generators = {device: torch.Generator(device).manual_seed(seed_of("probes", seed)) for device, _ in kinds}
    for size in _chunks(outputs, count):
        vectors: dict[int, Tensor] = {}
        for (device, dtype), members in kinds.items():
            lengths = [outputs[index].numel() for index in members]
            drawn = torch.empty(size, sum(lengths), dtype=dtype, device=device)
            drawn.bernoulli_(0.5, generator=generators[device]).mul_(2.0).sub_(1.0)
            for index, part in zip(members, drawn.split(lengths, dim=1), strict=True):
                vectors[index] = part.unflatten(1, outputs[index].shape)
        yield [vectors[index] for index in range(len(outputs))]


def bases(outputs: Sequence[Tensor]) -> Vectors:
    """Every unit vector of every output; a short output has zeros after its last."""
    count = max(output.numel() for output in outputs)
    rows = [torch.eye(count, o.numel(), dtype=o.dtype, device=o.device).unflatten(1, o.shape) for o in outputs]
    start = 0
    for size in _chunks(outputs, count):
        yield [row[start : start + size] for row in rows]
        start += size


def _chunks(outputs: Sequence[Tensor], count: int) -> Iterator[int]:
    """How many vectors go together, so that their gradients fit."""
    most = max(1, CHUNK_ENTRIES // sum(output.numel() for output in outputs))
    for start in range(0, count, most):
        yield min(most, count - start)


def pulled_back(outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Vectors) -> Iterator[Tensor]:
    """For each chunk the squared norms (vectors, inputs) of vector times Jacobian, as float64."""
    for chunk in vectors:
        gradients = _gradients(outputs, inputs, chunk)
        rows = [row for gradient in gradients for row in gradient.unbind()]
        norms = foreach_norm(rows, 2, dtype=torch.float64)
        yield torch.stack(norms).square().unflatten(0, (len(inputs), -1)).T


def _gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor], chunk: list[Tensor]) -> list[Tensor]:
    """For each input (vectors, *shape); zero where an output does not depend on it."""
    try:
        found = _batched(outputs, inputs, chunk)
    except RuntimeError:  # a backward formula that cannot be batched
        passes = [_grad(outputs, inputs, vector) for vector in zip(*chunk, strict=True)]
        found = [None if rows[0] is None else torch.stack(rows) for rows in zip(*passes, strict=True)]
    count = len(chunk[0])
    return [x.new_zeros(count, *x.shape) if g is None else g for g, x in zip(found, inputs, strict=True)]


def _batched(outputs: Sequence[Tensor], inputs: Sequence[Tensor], chunk: list[Tensor]) -> Sequence[Tensor | None]:
    """All vectors in one backward pass."""
    if len(chunk[0]) == 1:
        single = _grad(outputs, inputs, [vectors[0] for vectors in chunk])
        return [None if gradient is None else gradient[None] for gradient in single]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        return _grad(outputs, inputs, chunk, is_grads_batched=True)


def _grad(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], vectors: Sequence[Tensor], **options: bool
) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(outputs, inputs, vectors, retain_graph=True, allow_unused=True, **options)


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
                square = torch.zeros((), dtype=torch.float64) if tangent is None else tangent.double().square().sum()
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


class Cuts:
    """While active, the first signal of each `sources` module is replaced by a leaf, or by a dual tensor.

    `output(name)` is what a module in `targets` computed, `leaf(name)` what the rest of the model continued with.
    """

    def __init__(self, model: nn.Module, sources: list[str], targets: list[str], tangent_seed: int | None = None):
        self.model = model
        self.sources = set(sources)
        self.targets = set(targets)
        self.tangent_seed = tangent_seed
        self.order: list[str] = []
        self._outputs: dict[str, Tensor] = {}
        self._leaves: dict[str, Tensor] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Cuts:
        for name in self.sources | self.targets:
            handle = self.model.get_submodule(name).register_forward_hook(self._hook(name))
            self._stack.callback(handle.remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def output(self, name: str) -> Tensor:
        return _present(self._outputs, name)

    def leaf(self, name: str) -> Tensor:
        return _present(self._leaves, name)

    def _hook(self, name: str):
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            signals = signals_in(output)
            if not signals:
                raise InputError(f"{name} returns no floating-point tensor to differentiate")
            if name in self._outputs:
                raise UnsupportedError(f"{name} runs more than once; choose sites that run once")
            signal = signals[0][1]
            self.order.append(name)
            self._outputs[name] = signal
            if name not in self.sources:
                return None
            self._leaves[name] = leaf = self._cut(signal)
            return _replaced(output, signal, leaf)

        return hook

    def _cut(self, signal: Tensor) -> Tensor:
        if self.tangent_seed is None:
            return signal.detach().requires_grad_()
        generator = torch.Generator(signal.device).manual_seed(seed_of("tangent", self.tangent_seed))
        direction = torch.randn(signal.shape, generator=generator, device=signal.device)
        return forward_ad.make_dual(signal.detach(), direction.to(signal.dtype))


def _present(table: dict[str, Tensor], name: str) -> Tensor:
    if name not in table:
        raise InputError(f"{name} did not run on this batch; choose a module that does")
    return table[name]


def _replaced(value: Any, old: Tensor, new: Tensor) -> Any:
    """The same structure with one tensor exchanged."""
    if value is old:
        return new
    if isinstance(value, Mapping):
        made = type(value)()
        for key, item in value.items():
            made[key] = _replaced(item, old, new)  # type: ignore[index]
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replaced(item, old, new) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(item, old, new) for item in value)
    return value


def module_names(model: nn.Module, patterns: Iterable[str]) -> list[str]:
    """Names of modules that the patterns match, in the order of the model."""
    known = [name for name, _ in model.named_modules() if name]
    found: dict[str, None] = {}
    for pattern in patterns:
        matching = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not matching:
            raise UnknownNameError("module", pattern, known)
        found.update(dict.fromkeys(matching))
    return list(found)


def repeated_blocks(model: nn.Module) -> list[str]:
    """The children of the list of like modules that holds the most parameters."""
    best: tuple[int, list[str]] = (-1, [])
    for name, module in model.named_modules():
        children = list(module.named_children())
        repeated = len(children) > 1 and len({type(child) for _, child in children}) == 1
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and repeated:
            size = sum(parameter.numel() for parameter in module.parameters())
            if size > best[0]:
                best = (size, [f"{name}.{key}" if name else key for key, _ in children])
    if not best[1]:
        raise InputError("the model has no list of like blocks; name them with blocks=")
    return best[1]

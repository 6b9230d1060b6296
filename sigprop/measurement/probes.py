"""Vectors to multiply a Jacobian with from the left, and the backward passes that do it for many at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sigprop.compat import foreach_norm
from sigprop.isolation import seed_of

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

"""Sum, and sum of squares, of all entries of tensors on a CPU, such as parameters.

Rows of 256 entries are summed in float32 and the rows in float64, in pieces that stay in the cache; small tensors
together. Where float32 does not suffice, because the mean dominates or squares leave its range, all is float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from sigprop.measurement.float32_moments import LARGEST, SMALLEST

Sums = tuple[float, float]

ROW, PIECE, SMALL = 256, 1 << 10, 1 << 14
"""Entries of a row, rows of a piece, entries of a small tensor."""


def entry_sums(tensors: Sequence[Tensor], squares_only: bool = False) -> list[Sums]:
    """Sum and sum of squares of every tensor; `squares_only` leaves the sums of large ones out."""
    found: dict[int, Sums] = {}
    small = [place for place, x in enumerate(tensors) if x.dtype == torch.float32 and x.numel() <= SMALL]
    for place, sums in zip(small, _small_sums([tensors[place] for place in small]), strict=True):
        if sums is not None:
            found[place] = sums
    for place, x in enumerate(tensors):
        if place not in found:
            found[place] = (0.0, entry_squares(x)) if squares_only else _large_sums(x)
    return [found[place] for place in range(len(tensors))]


def entry_squares(x: Tensor) -> float:
    """Sum of squares of all entries."""
    if x.dtype == torch.float32:
        squares = np.square(_row_norms(x), dtype=np.float64)
        if SMALLEST <= squares.max() / ROW <= LARGEST:
            return float(squares.sum())
    return _exact_sums(x)[1]


def _large_sums(x: Tensor) -> Sums:
    if x.dtype == torch.float32:
        totals = np.empty(-(-x.numel() // ROW), dtype=np.float32)
        squares = np.square(_row_norms(x, totals), dtype=np.float64)
        total, square = float(totals.sum(dtype=np.float64)), float(squares.sum())
        if _suffices(total, square, squares.max(), x.numel()):
            return total, square
    return _exact_sums(x)


def _row_norms(x: Tensor, totals: np.ndarray | None = None) -> np.ndarray:
    """Norm of every row; their sums are written to `totals`."""
    norms = np.empty(-(-x.numel() // ROW), dtype=np.float32)
    for rows, part in _pieces(x):
        torch.linalg.vector_norm(part, dim=1, out=torch.from_numpy(norms[rows]))
        if totals is not None:
            torch.sum(part, 1, out=torch.from_numpy(totals[rows]))
    return norms


def _pieces(x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Pieces of `PIECE` rows, and what is left over as a shorter row."""
    flat = x.reshape(-1)
    whole = flat.numel() // ROW
    rows = flat[: whole * ROW].view(-1, ROW)
    for start in range(0, whole, PIECE):
        piece = rows[start : start + PIECE]
        yield slice(start, start + len(piece)), piece
    if whole * ROW < flat.numel():
        yield slice(whole, whole + 1), flat[None, whole * ROW :]


def _exact_sums(x: Tensor) -> Sums:
    total, square = 0.0, 0.0
    for piece in x.reshape(-1).split(ROW * PIECE):
        values = piece.double()
        total += values.sum().item()
        square += torch.dot(values, values).item()
    return total, square


def _small_sums(tensors: Sequence[Tensor]) -> Iterator[Sums | None]:
    """Each in rows of its own; None where float32 does not suffice."""
    if not tensors:
        return
    lengths = np.array([-(-x.numel() // ROW) for x in tensors])
    rows = torch.zeros(int(lengths.sum()), ROW)
    for x, part in zip(tensors, rows.view(-1).split((lengths * ROW).tolist()), strict=True):
        part[: x.numel()] = x.reshape(-1)
    starts = np.cumsum(lengths) - lengths
    squares = np.square(torch.linalg.vector_norm(rows, dim=1).numpy(), dtype=np.float64)
    totals = np.add.reduceat(rows.sum(1).numpy().astype(np.float64), starts).tolist()
    most, squares = (reduce.reduceat(squares, starts).tolist() for reduce in (np.maximum, np.add))
    for x, total, square, largest in zip(tensors, totals, squares, most, strict=True):
        yield (total, square) if _suffices(total, square, largest, x.numel()) or not bool(x.any()) else None


def _suffices(total: float, square: float, largest: float, entries: int) -> bool:
    """Whether float32 does: squares of rows are in its range, and the mean is at most twice the standard deviation."""
    return SMALLEST <= largest / ROW <= LARGEST and total**2 <= 0.8 * square * entries

"""What real numbers tell of their distribution: those of a parameter, and those that the constructor makes twice.

Every test compares a statistic with its value for independent entries, within `SURE` standard errors: means and mean
squares of rows and of columns, products of neighbours (of entries and of their squares), cosines between rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from sigprop.distributions.distribution import (
    CENTRED,
    INDEPENDENT,
    LARGE,
    ORTHOGONAL,
    STRUCTURED,
    UNKNOWN,
    Distribution,
)
from sigprop.distributions.distribution import SURE as AGREES
from sigprop.errors import SigpropError
from sigprop.isolation import undisturbed

SURE = 5.5
FEWEST = 24
FEWEST_REPEATED = 6
"""Entries of which repeated numbers tell: no draw has them."""
SIDE = 512
FEW_ROWS = 32
"""Rows that are looked at first: where some are not orthogonal, all are not."""


def measured_distribution(tensor: Tensor) -> Distribution:
    """The distribution of a real tensor's entries, and what they share."""
    kind = kind_of(tensor)
    if kind != STRUCTURED:
        return Distribution.measured(tensor, kind)
    return Distribution.table(tensor.detach().clone() if tensor.numel() <= LARGE else tensor)


def kind_of(tensor: Tensor) -> str:
    """`independent`, `orthogonal` or `structured`; constants and what is too small to judge count as independent."""
    if not tensor.is_floating_point() or tensor.numel() < FEWEST_REPEATED or tensor.dim() == 0:
        return INDEPENDENT
    matrix = tensor.detach().reshape(tensor.shape[0], -1)[:SIDE, :SIDE].double()
    if matrix.shape[1] > 1:
        varied = (matrix[:, 1:] != matrix[:, :1]).any(1)
        matrix = matrix if varied.all() else matrix[varied]  # padding rows are constants of their own
    if matrix.numel() < FEWEST_REPEATED:
        return INDEPENDENT
    numbers = matrix.flatten() if matrix.all() else matrix[matrix != 0]
    numbers = numbers if tensor.dtype == torch.float64 else numbers.float()
    different = _different(numbers)
    if 2 * different < len(numbers) and 2 * different < _room(numbers):
        return STRUCTURED if bool((numbers != numbers[0]).any()) or len(numbers) < matrix.numel() else INDEPENDENT
    if matrix.numel() < FEWEST:
        return INDEPENDENT
    centred = matrix - matrix.mean()
    level = float(centred.square().mean())
    if level <= 1e-14 * float(matrix.square().mean()):
        return INDEPENDENT
    unit = (centred / math.sqrt(level)).float()  # six digits are plenty for sums of independent numbers
    tailed = float(unit.square().square().mean())
    if min(unit.shape) >= 2 and _orthogonal(matrix):
        return ORTHOGONAL if tailed < 4.0 or min(unit.shape) < 8 else STRUCTURED
    return STRUCTURED if any(abs(value) > SURE for value in _deviations(unit, tailed)) else INDEPENDENT


def _kind_of_both(one: Tensor, other: Tensor) -> str:
    """Of two initializations of a parameter."""
    kinds = {kind_of(one), kind_of(other)}
    if float((one == other).float().mean()) > 0.5 and STRUCTURED not in kinds:
        return STRUCTURED  # more than half of it is the same whatever the seed
    return STRUCTURED if STRUCTURED in kinds else ORTHOGONAL if ORTHOGONAL in kinds else INDEPENDENT


def kind_of_derived(values: Tensor) -> str:
    """Of a function of independent weights. Rows of one length, as weight normalization makes them, do no harm; sums of
    zero over each row do, and so do rows or columns that lie along others."""
    values = values.detach().squeeze()
    if values.dim() < 2 or min(len(values), values[0].numel()) < 8:
        return INDEPENDENT
    matrix = values.reshape(len(values), -1)[:SIDE].double()
    unit = matrix - matrix.mean()
    unit = unit / unit.square().mean().sqrt().clamp_min(1e-300)
    rows, columns = unit.shape
    of_means = float(matrix.mean(1).square().mean() / matrix.square().mean().clamp_min(1e-300)) * columns
    if of_means < 1e-3:
        return CENTRED
    if abs(of_means - 1.0) > SURE * math.sqrt(2.0 / rows):
        return STRUCTURED
    return STRUCTURED if any(abs(value) > SURE for value in _cosines(unit)) else INDEPENDENT


def _different(numbers: Tensor) -> int:
    """How many different numbers there are. All, where a sample has none twice: did each number stand there twice, a
    sample of 8 sqrt(n) would have 64 equal pairs."""
    count = len(numbers)
    few = math.ceil(8 * math.sqrt(count))
    if count > 4 * few and _counted(numbers[_sample(count, few)]) == few:
        return count
    return _counted(numbers)


@lru_cache(maxsize=64)
def _sample(count: int, few: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(count))[:few]


def _room(numbers: Tensor) -> int:
    """How many different numbers independent normal draws would show: fewer than there are on the grid of a short type,
    in which a model may have been saved."""
    if not numbers.std() > 0:  # one number many times is no draw
        return len(numbers)
    for kind in (torch.bfloat16, torch.float16):
        if torch.equal(numbers.to(kind).to(numbers.dtype), numbers):
            levels = (torch.arange(len(numbers), dtype=torch.float64) + 0.5) / len(numbers)
            normal = numbers.double().mean() + numbers.double().std() * torch.special.ndtri(levels)
            return _counted(normal.to(kind).float())
    return len(numbers)


def _counted(numbers: Tensor) -> int:
    ordered = np.sort(numbers.numpy())
    return 1 + int((ordered[1:] != ordered[:-1]).sum()) if len(ordered) else 0


def _orthogonal(matrix: Tensor) -> bool:
    """Rows (or columns) at right angles and of one length, as no independent draw has them."""
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return _at_right_angles(short[:FEW_ROWS]) and _at_right_angles(short)


def _at_right_angles(short: Tensor) -> bool:
    gram = short @ short.T
    level = gram.diagonal().mean()
    if len(gram) < 4 or level <= 0:
        return False
    return bool((gram - level * torch.eye(len(gram), dtype=gram.dtype)).abs().max() < 1e-4 * level)


def _deviations(unit: Tensor, tailed: float) -> Iterator[float]:
    """Standardized deviations from what independent entries of unit variance give. Rows of one length, as normalized
    weights have them, do no harm."""
    spread = max(tailed - 1.0, 0.1)
    for side in (unit, unit.T):
        rows, columns = side.shape
        if rows >= 8 and columns >= 8:
            of_means = side.mean(1).square().mean() * columns
            yield float((of_means - 1.0) / math.sqrt(2.0 / rows))
            of_squares = (side.square().mean(1) - 1.0).square().mean() * columns / spread
            yield max(float((of_squares - 1.0) / math.sqrt((2.0 + 4.0 * tailed / columns) / rows)), 0.0)
        if columns >= 8:
            products = side[:, 1:] * side[:, :-1]
            yield float(products.sum() / math.sqrt(products.numel()))
            squares = (side[:, 1:].square() - 1.0) * (side[:, :-1].square() - 1.0)
            yield float(squares.sum() / math.sqrt(squares.numel()) / spread)
    yield from _cosines(unit)


def _cosines(unit: Tensor) -> Iterator[float]:
    short = unit if unit.shape[0] <= unit.shape[1] else unit.T
    rows, columns = short.shape
    if rows < 8 or columns < 8:
        return
    squares = (short @ short.T / columns).square()
    off = (squares.sum() - squares.diagonal().sum()) / (rows * (rows - 1))
    yield float((off * columns - 1.0) / math.sqrt(4.0 / (rows * (rows - 1))) / (1.0 + rows / columns))


# -- The real constructor, called where it is small enough: what it draws and what it fills by a formula
#
# A model is first built without its weights (`recorder`). Where that could not follow what was done to a parameter, and
# for small models always, the constructor is called twice with different seeds. What differs is random, with the
# distribution that both draws show; what is equal is a constant or a table, known by its numbers.


ALWAYS = 4_000_000
"""Parameters up to which the constructor is called in any case."""
AT_MOST = 60_000_000
"""Parameters up to which it is called where the recorder could not follow it."""
SEEDS = (1_234_567, 7_654_321)

Factory = Callable[[], nn.Module]
Known = Distribution | Tensor
"""What is known of a storage: how it is drawn, or the numbers it holds."""


def constructed(factory: Factory, seed: int) -> nn.Module:
    """What a factory makes from one seed; random states of the process are put back."""
    with undisturbed() as interrupts, interrupts.let_through():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed)
        return factory()


def refined(recorded: dict[str, Known], parameters: dict[str, Tensor], factory: Factory) -> dict[str, Known]:
    """The distributions of parameters by name, corrected by what the real constructor does where that is affordable.

    Numbers instead of a distribution: given, those of the one draw that was recorded; returned, a table that a formula
    fills.
    """
    total = sum(parameter.numel() for parameter in parameters.values())
    unknown = any(isinstance(entries, Distribution) and entries.kind == UNKNOWN for entries in recorded.values())
    if total > (AT_MOST if unknown else ALWAYS):
        return dict(recorded)
    try:
        first, second = (dict(constructed(factory, seed).named_parameters()) for seed in SEEDS)
    except SigpropError:
        raise
    except Exception:  # what only a constructor without weights can do stays as it was recorded
        return dict(recorded)
    found: dict[str, Known] = dict(recorded)
    for name, entries in recorded.items():
        one, other = first.get(name), second.get(name)
        if one is not None and other is not None and one.shape == other.shape == parameters[name].shape:
            found[name] = _known(entries, one.detach(), other.detach())
    return found


def _known(recorded: Known, one: Tensor, other: Tensor) -> Known:
    """What two draws say of a parameter; the recorded distribution where they agree with it, since it is exact."""
    if not (one.is_floating_point() and one.numel()):
        return recorded
    if torch.equal(one, other):
        return one.clone() if bool((one != one.flatten()[:1]).any()) else Distribution.constant(float(one.flatten()[0]))
    kind = _kind_of_both(one, other)
    if isinstance(recorded, Distribution) and recorded.kind == kind != STRUCTURED and agrees(recorded, one, other):
        return recorded
    return Distribution.measured(torch.cat((one.flatten(), other.flatten())), kind)


def agrees(distribution: Distribution, *draws: Tensor) -> bool:
    """Whether draws have the mean and the second moment of a distribution, within `AGREES` standard errors."""
    values = torch.cat([draw.detach().double().flatten() for draw in draws])
    count = values.numel()
    spread = math.sqrt(distribution.variance / count)
    tail = float((distribution.quantiles - distribution.mean).pow(4).mean())
    scatter = math.sqrt(max(tail - distribution.variance**2, 0.0) / count)
    mean = abs(float(values.mean()) - distribution.mean)
    second = abs(float((values - distribution.mean).square().mean()) - distribution.variance)
    return (
        mean <= AGREES * spread + 1e-6 * abs(distribution.mean)
        and second <= AGREES * scatter + 1e-5 * distribution.variance
    )

"""Rows of a profile from the states of a traced model.

Rows of the blocks that were not followed, between those of the followed ones.

Positive columns follow a power of the block's number, counted from one, between its two neighbours; means and
correlations a straight line in its logarithm. How far that is right the followed blocks tell: each is foretold by its
own neighbours, which are twice as far apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from sigprop.capture.layout import BATCH, KEY, Layout
from sigprop.capture.record import Field
from sigprop.capture.repeated import RunOfBlocks
from sigprop.capture.roles import find_roles
from sigprop.capture.tracing import TracedModel
from sigprop.graph.evaluate import Evaluation, Start
from sigprop.graph.graph import Node
from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.results.stated_errors import COLUMNS as POSITIVE
from sigprop.results.stated_errors import stated_by_theory, tell
from sigprop.sites import depths
from sigprop.theory import EXACT, Evidence, Gradient, Signal, Status

Axes = tuple[tuple[int, bool], ...]
"""For each axis of positions its size and whether it is the batch."""


def token_correlation(signal: Signal, layout: Layout) -> float:
    """Of a traced state, by the profile's definition: pairs of different tokens of one sequence."""
    return summary(signal.kernel.values, signal.mean, axes_of(layout))[2]


def axes_of(layout: Layout) -> Axes:
    return tuple((axis.size, axis.role == BATCH) for axis in layout.order)


def padding_masks(batch: Any) -> list[Tensor]:
    """Masks `(sequences, tokens)` of the batch that leave something out, true for a real token; see `measure`."""
    named = dict(batch) if isinstance(batch, Mapping) else {}
    found = [named.get(key) for key in ("attention_mask", "decoder_attention_mask")]
    return [mask.bool() for mask in found if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all())]


def fitting_mask(masks: list[Tensor], name: str, axes: Axes) -> Tensor | None:
    """The mask of a site's positions: that whose sequences and tokens it has, in this order."""
    sizes = [size for size, _ in axes]
    fitting = [mask for mask in masks if sizes == [n for n in mask.shape if n > 1] and (not axes or not axes[-1][1])]
    return None if not fitting else fitting[-1] if "decoder" in name else fitting[0]


def summary(kernel: Tensor, mean: Tensor, axes: Axes, mask: Tensor | None = None) -> tuple[float, float, float]:
    """Mean, variance and token correlation over the positions of a mask; pairs are taken within each sequence."""
    same = _same_sequence(axes)
    if mask is not None:
        kept = mask.flatten().nonzero()[:, 0]
        kernel, mean, same = kernel[kept][:, kept], mean[kept], same[kept][:, kept]
    overall = mean.mean()
    centred = kernel - overall * (mean[:, None] + mean) + overall**2 if overall else kernel
    level = centred.diagonal().clamp_min(0.0)
    usable = (level > 1e-13 * (kernel.diagonal() + overall**2)).double()
    inverse = usable / level.clamp_min(1e-300).sqrt()
    pairs = usable @ same @ usable
    correlation = float(inverse @ (centred * same) @ inverse / pairs) if pairs > 0 else float("nan")
    return float(overall), float(level.mean()), correlation


@lru_cache(maxsize=4)
def _same_sequence(axes: Axes) -> Tensor:
    """1 for pairs of different positions of one sequence."""
    index = torch.zeros([size for size, _ in axes] or [1], dtype=torch.long)
    for place, (size, is_batch) in enumerate(axes):
        if is_batch:
            shape = [-1 if other == place else 1 for other in range(len(axes))]
            index = index * size + torch.arange(size).reshape(shape)
    sequence = index.flatten()
    return (sequence[:, None] == sequence).double().fill_diagonal_(0.0)


LARGEST = 1024
"""Positions of a tensor between others that are followed for its row alone."""
FEW = 32
"""Channels up to which their own average counts: beyond it is at most 3 % of a variance."""


class SiteRows:
    """Rows of the sites: signals at once, gradients as the backward pass comes by."""

    def __init__(self, found: TracedModel, states: Evaluation, start: Start):
        self._states, self._repeats = states, found.capture.repeats
        self.sites: list[SiteRow] = []
        self._waiting: dict[Node, list[tuple[SiteRow, Field, Evidence]]] = {}
        self._kept: dict[Field, Gradient] = {}
        self._masks = padding_masks(found.batch)
        self._last: tuple[Any, tuple[float, float, float], Any] | None = None
        sites = [(n, x) for n, x in found.sites if not any(axis.role == KEY for dim in x.layout.dims for axis in dim)]
        for (name, item), depth in zip(sites, depths(name for name, _ in sites), strict=True):
            if item.layout.positions > LARGEST and not item.is_made:
                count = f"{item.layout.positions:,} positions, more than the {LARGEST:,} of a tensor between others"
                self.sites.append(SiteRow(name, depth, status="assumed", reason=f"not followed: {count}"))
                continue
            with found.capture.lock:
                signal = states.signal(item.node)
            mean, variance, correlation = self._summary(name, signal, signal.mean, item.layout)
            variance = max(variance - _of_the_average(signal), 0.0)
            row = SiteRow(name, depth, mean, variance, correlation)
            tell(row, signal.evidence, "variance")
            self.sites.append(row)
            if item.requires_grad:
                self._waiting.setdefault(item.node, []).append((row, item, signal.evidence))
        drawn = found.capture.drawn
        self._bypassed = {site for function in drawn for site in function.sites_between}.union(start.passed)

    def take_gradient(self, node: Node, gradient: Gradient) -> None:
        for row, item, evidence in self._waiting.get(node, ()):
            self._fill(row, item, evidence, gradient)
            if item in self._bypassed:
                self._kept[item] = gradient

    def finish(self) -> list[SiteRow]:
        """Add the gradients that passed sites without their nodes."""
        for found in self._waiting.values():
            for row, item, evidence in found:
                passed, kept = self._states.passed.get(item), self._kept.get(item)
                if passed is not None:
                    self._fill(row, item, evidence, passed if kept is None else passed + kept)
        return self.sites

    def _fill(self, row: SiteRow, item: Field, evidence: Evidence, gradient: Gradient) -> None:
        none = torch.zeros_like(gradient.kernel.values[0])
        _, level, row.grad_token_correlation = self._summary(row.name, gradient, none, item.layout)
        row.grad_variance = level / self._repeats.get(item, 1)
        tell(row, evidence.join(gradient.evidence), "grad_variance")

    def _summary(self, name: str, state: Signal | Gradient, mean: Tensor, layout: Layout) -> tuple[float, float, float]:
        """That of the site before where both have one state, as a module and its last layer do."""
        axes = axes_of(layout)
        mask = fitting_mask(self._masks, name, axes)
        key = (state, axes, mask)
        if self._last is None or any(
            one is not two and one != two for one, two in zip(self._last[0], key, strict=True)
        ):
            self._last = (key, summary(state.kernel.values, mean, axes, mask), state)
        return self._last[1]


def _of_the_average(signal: Signal) -> float:
    """Variance over networks of the average over all entries, about which each network's variance is taken.

    Of independent channels `1 / d` of the average covariance of two positions, of others by what they have along all
    ones: it counts where channels are few, as in a gate of one channel whose tokens have much in common.
    """
    if signal.width > FEW:
        return 0.0
    along = float(torch.as_tensor(signal.common.uniform)) / signal.width
    return max(float(signal.covariance.total() / signal.kernel.tokens**2) * along, 0.0)


def parameter_rows(found: TracedModel, states: Evaluation) -> list[ParameterRow]:
    energy, evidence = states.energy, states.evidence
    roles = find_roles(found, [item for item in found.capture.records if isinstance(item, Field)])
    rows = []
    for name, weight in found.weights.items():
        row = ParameterRow(name, weight.shape, roles[name].role, weight.distribution.variance**0.5)
        received = name in energy and weight.requires_grad
        tell(row, evidence.get(name, EXACT), *(["grad_second_moment"] if received else []))
        if received:
            row.grad_second_moment = energy[name] / math.prod(weight.shape)
        rows.append(row)
    return rows


# -- Rows of the blocks that were not followed, between those of the followed ones


Row = TypeVar("Row", SiteRow, ParameterRow)
ENDS = (".", "@", "[")


def with_skipped_rows(profile: Profile, run: RunOfBlocks) -> Profile:
    """The profile with the rows of a run's skipped blocks, and a word on how far they are right."""
    sites, parameters = _Blocks(profile.sites, run), _Blocks(profile.parameters, run)
    filled: list[SiteRow] = []
    for row in profile.sites:
        number = sites.starting(row)
        if number is not None:
            filled += [made for skipped in run.skipped_before(number) for made in sites.between(skipped)]
        filled.append(row)
    made = {row.name: row for number in run.skipped for row in parameters.between(number)}
    known = {row.name: row for row in profile.parameters}
    made = {name: replace(row, init_std=known[name].init_std) for name, row in made.items()}
    rows = [made.get(row.name, row) for row in profile.parameters]
    return Profile(filled, rows, profile.meta | {"blocks": _told(run, sites.surprises() + parameters.surprises())})


def _told(run: RunOfBlocks, surprises: list[float]) -> str:
    few = f"{len(run.numbers)} of the {len(run.alike.blocks)} alike blocks of {run.alike.name or 'the model'} followed"
    if len(surprises) < 2:
        return few
    median, most = statistics.median(surprises), statistics.quantiles(surprises, n=10)[-1]
    return f"{few}; their neighbours foretell them within {median:.1%} (median) and {most:.1%} (nine of ten)"


class _Blocks:
    """Rows of the followed blocks of a run, by number and name inside the block."""

    def __init__(self, rows: list[Any], run: RunOfBlocks):
        self._run = run
        self._rows: dict[int, dict[str, Any]] = {number: {} for number in run.numbers}
        self._places: dict[str, tuple[int, str]] = {}
        names = {run.alike.block_name(number): number for number in run.numbers}
        for row in rows:
            for end in (row.name.find(mark, len(run.alike.name) + 1) for mark in ENDS):
                number = names.get(row.name[:end] if end > 0 else row.name)
                if number is not None:
                    inside = row.name[len(run.alike.block_name(number)) :]
                    self._rows[number][inside] = row
                    self._places[row.name] = (number, inside)
                    break

    def starting(self, row: Any) -> int | None:
        """The number of the followed block whose first row this is."""
        number, inside = self._places.get(row.name, (None, ""))
        return number if number is not None and next(iter(self._rows[number])) == inside else None

    def between(self, number: int) -> list[Any]:
        """Rows of a block that was not followed."""
        below, above = self._run.neighbours(number)
        return [
            _between(
                row, self._rows[above][inside], f"{self._run.alike.block_name(number)}{inside}", below, number, above
            )
            for inside, row in self._rows[below].items()
            if inside in self._rows[above]
        ]

    def surprises(self) -> list[float]:
        """Of followed blocks with skipped ones beside them: relative errors of what their neighbours foretell."""
        found, numbers = [], self._run.numbers
        for below, number, above in zip(numbers, numbers[1:], numbers[2:], strict=False):
            if above - below == 2:
                continue
            for inside, row in self._rows[number].items():
                ends = [self._rows[at].get(inside) for at in (below, above)]
                if None in ends:
                    continue
                told = _between(*ends, row.name, below, number, above)  # type: ignore[arg-type]
                pairs = [(getattr(told, c), getattr(row, c)) for c in POSITIVE if c in type(row).COLUMNS]
                found += [abs(math.log(one / two)) for one, two in pairs if one > 0.0 and two > 0.0]
        return found


def _between(one: Row, other: Row, name: str, below: int, number: int, above: int) -> Row:
    part = math.log((number + 1) / (below + 1)) / math.log((above + 1) / (below + 1))
    columns = {
        column: _mean(getattr(one, column), getattr(other, column), part, column in POSITIVE)
        for column in type(one).COLUMNS
        if isinstance(getattr(one, column), float)
    }
    evidence = Evidence(Status.FITTED, f"between blocks {below} and {above}, which were followed")
    for row in (one, other):
        evidence = evidence.join(Evidence(Status[row.status.upper()], row.reason))
    status = str(evidence.status)
    made = replace(one, name=name, **columns, status=status, reason=evidence.reason)
    stated = stated_by_theory(**dict.fromkeys(one.stated_errors, evidence))
    made.stated_errors = {key: max(value, one.stated_errors[key]) for key, value in stated.items()}
    if isinstance(made, SiteRow) and isinstance(other, SiteRow):
        (made.depth,) = depths([name])
        made.extras = {key: _mean(value, other.extras[key], part, False) for key, value in made.extras.items()}
    return made


def _mean(one: float, other: float, part: float, positive: bool) -> float:
    if positive and one > 0.0 and other > 0.0:
        return one ** (1.0 - part) * other**part
    return (1.0 - part) * one + part * other

"""What a difference does: A and B measured and predicted, and A with one group of its parameters as in B."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sigprop.checks.diff.elsewhere import described, moments_of
from sigprop.checks.diff.matching import Matching, Pair, copied_into, entries_of
from sigprop.checks.diff.sides import Side
from sigprop.errors import SigpropError
from sigprop.measurement import measure
from sigprop.prediction import predict
from sigprop.results import Profile, SiteRow
from sigprop.results.difference import InitDiff, SiteDiff, Swap

MOST_SWAPS = 5
ENTRIES = 1 << 14
ROUNDING = 2e-3
"""Relative difference of a mean square that other kernels and summation orders make, with a margin."""
FLOOR = 1e-30
BEYOND = math.log(1e6)
"""Of a ratio whose one side is zero."""
LARGE = 30_000_000
"""Parameters above which a swapped model is run forward only."""


def explained(
    model: nn.Module, groups: dict[str, list[Pair]], words: dict[str, tuple[str, str]], batch: Any, loss: Any
) -> tuple[list[Swap], Profile, Profile]:
    """Every group that differs with the share it explains, largest first; A, and A with all groups as in B."""
    backward = sum(parameter.numel() for parameter in model.parameters()) <= LARGE
    run: Callable[..., Profile] = lambda back=True: measure(model, batch, loss, backward=back, progress=False)  # noqa: E731
    before = run()
    with held_as_in_b([pair for pairs in groups.values() for pair in pairs]):
        after = run()
    columns = ("variance", "grad_variance", "loss") if backward else ("variance",)
    whole = distance(before, after, columns)
    swaps = []
    for place, key in enumerate(sorted(groups, key=lambda key: -strength(groups[key]))):
        made = after if len(groups) == 1 else None
        if made is None and place < MOST_SWAPS:
            with held_as_in_b(groups[key]):
                made = run(backward)
        share = math.nan if made is None or not whole else 1.0 - distance(made, after, columns) / whole
        lost = math.nan if made is None else made.meta.get("loss_value", math.nan)
        swaps.append(Swap(key, tuple(pair.a.name for pair in groups[key]), *words[key], share, lost))
    return sorted(swaps, key=lambda item: (math.isnan(item.explained), -item.explained)), before, after


def strength(pairs: list[Pair]) -> float:
    """How far apart two groups look: the largest logarithm of a ratio of sizes, over even subsamples."""
    ratios = []
    for pair in pairs:
        values = [part.values.detach().reshape(-1) for part in (pair.a, pair.b)]
        a, b = (float(item[:: max(1, item.numel() // ENTRIES)].double().square().mean().sqrt()) for item in values)
        ratios.append(abs(math.log((a + FLOOR) / (b + FLOOR))) if math.isfinite(a) and math.isfinite(b) else math.inf)
    return max(ratios)


@contextmanager
def held_as_in_b(pairs: list[Pair]) -> Iterator[None]:
    """A's parameters with B's numbers; put back at the end, bit by bit."""
    kept = [(pair.a.entry.values, pair.a.entry.values.clone()) for pair in pairs]
    try:
        for pair in pairs:
            copied_into(pair)
        yield
    finally:
        with torch.no_grad():
            for values, before in reversed(kept):
                values.copy_(before)


def distance(one: Profile, other: Profile, columns: tuple[str, ...]) -> float:
    """Root mean square, over sites, of the logarithms of ratios of variance and gradient; and that of the losses."""
    rows = {row.name: row for row in other.sites}
    squares = []
    for row in one.sites:
        for column in columns[:2]:
            a, b = getattr(row, column), getattr(rows.get(row.name), column, math.nan)
            if math.isfinite(a) and math.isfinite(b) and (a > 0) + (b > 0):
                squares.append(min(abs(math.log((a + FLOOR) / (b + FLOOR))), BEYOND) ** 2)
    total = sum(squares) / len(squares) if squares else 0.0
    losses = [profile.meta.get("loss_value", math.nan) for profile in (one, other)]
    if "loss" in columns and all(math.isfinite(loss) and loss > 0 for loss in losses):
        total += math.log(losses[0] / losses[1]) ** 2
    return math.sqrt(total)


def site_rows(
    a: Profile, b: Profile, predicted: list[Profile | None], partners: dict[str, tuple[list[str], list[str]]]
) -> list[SiteDiff]:
    """Sites of A beside those of B, by name or as `same_modules` says."""
    names = {
        one: other
        for ones, others in partners.values()
        if len(ones) == len(others)
        for one, other in zip(ones, others, strict=True)
    }
    others = {row.name: row for row in b.sites}
    theory = [{row.name: row for row in profile.sites} if profile else {} for profile in predicted]
    rows = []
    for row in a.sites:
        partner: SiteRow | None = others.get(row.name) or others.get(names.get(row.name, ""))
        if partner is not None and row.variance == row.variance:
            said = [
                found.get(key).variance if key in found else math.nan  # type: ignore[union-attr]
                for found, key in zip(theory, (row.name, partner.name), strict=True)
            ]
            rows.append(
                SiteDiff(row.name, row.variance, partner.variance, row.grad_variance, partner.grad_variance, *said)
            )
    return rows


def predicted(model: Any, batch: Any, loss: Any) -> Profile | None:
    """By theory alone; None where it cannot follow."""
    try:
        return predict(model, batch, verify=0, loss=loss)
    except (SigpropError, RuntimeError):
        return None


def computes_the_same(a: nn.Module, pairs: list[Pair], moments_b: dict[str, list[float]], batch: Any) -> str:
    """Empty where A with all numbers of B gives what B gives; else the first module that does not."""
    with held_as_in_b(pairs):
        found = moments_of(a, batch)
    partners = same_modules(pairs)
    for name in found:
        ones, others = partners.get(name, ([], []))
        answers = [
            (found[one], moments_b[other])
            for one in ones
            for other in others
            if one in found and other in moments_b and (not one, not other) == (not name, not name)
        ]
        if answers and not any(_agree(*answer) for answer in answers):
            one, other = answers[0]
            told = f"{name or 'the output'} has mean square {one[0]:.4g} in A, {other[0]:.4g} in B"
            return f"the code differs: with the same weights {told}"
    return ""


def same_modules(pairs: list[Pair]) -> dict[str, tuple[list[str], list[str]]]:
    """For every module of A the modules, of A and of B, that hold exactly its parameters.

    Modules around others may be cut differently (`attention` with its projection or without), so that a name says
    little; several that hold the same are a module and its wrappers.
    """
    groups: dict[frozenset[int], tuple[list[str], list[str]]] = {}
    for side in (0, 1):
        held: dict[str, set[int]] = {}
        for number, pair in enumerate(pairs):
            for name in (pair.a, pair.b)[side].entry.names:
                parts = name.split(".")[:-1]
                for end in range(len(parts) + 1):
                    held.setdefault(".".join(parts[:end]), set()).add(number)
        for name, numbers in held.items():
            groups.setdefault(frozenset(numbers), ([], []))[side].append(name)
    return {name: group for group in groups.values() if group[1] for name in group[0]}


def _agree(one: list[float], other: list[float]) -> bool:
    """Whether two lists of mean squares are equal but for rounding; of other lengths they cannot be compared."""
    pairs = zip(one, other)  # noqa: B905
    return len(one) != len(other) or all(
        math.isclose(*pair, rel_tol=ROUNDING, abs_tol=1e-12) or pair[0] != pair[0] for pair in pairs
    )


def add_signals(
    found: InitDiff,
    left: Side,
    right: Side,
    matching: Matching,
    groups: dict[str, list[Pair]],
    words: dict[str, tuple[str, str]],
    batch: Any,
    loss: Any,
) -> None:
    """Measured and predicted, and what explains the difference; copies of both are run, nothing of the user's."""
    if batch is None:
        found.meta["not_run"] = "no batch was given and none could be made"
        return
    assert left.model is not None
    complete = [
        all("uninit" not in text and "not a number" not in text for text in side)
        for side in ([row.a for row in found.parameters], [row.b for row in found.parameters])
    ]
    if not all(complete):
        found.meta["not_run"] = f"{'AB'[complete.index(False)]} holds values that are not numbers"
        return
    try:
        twin, pairs = _twin(left, matching)
        if groups:
            inside = {key: [pairs[id(pair)] for pair in items] for key, items in groups.items()}
            found.swaps, before, after = explained(twin, inside, words, batch, loss)
        else:
            before = after = measure(twin, batch, loss, progress=False)
        same = _code(found, left, right, matching, twin, list(pairs.values()), batch)
        if not same and right.model is not None:
            after = measure(right.model, batch, loss, progress=False)
        found.meta |= {
            f"loss_{key}": item.meta["loss_value"]
            for key, item in (("a", before), ("b", after))
            if "loss_value" in item.meta
        }
        if not found.equal:
            theory = [
                predicted(side.factory or side.model, batch, loss) if side.model is not None else None
                for side in (left, right)
            ]
            found.sites = site_rows(before, after, theory, same_modules(matching.pairs))
    except (SigpropError, RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        found.meta["not_run"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _code(
    found: InitDiff,
    left: Side,
    right: Side,
    matching: Matching,
    twin: nn.Module,
    pairs: list[Pair],
    batch: Any,
) -> bool:
    """With the same numbers, do both compute the same? Not asked where parts or sizes differ, or rows are fused."""
    whole = not (matching.only_a or matching.only_b) and all(pair.how in ("name", "place") for pair in pairs)
    if not whole or any(pair.shapes_differ for pair in pairs):
        return False
    moments = right.moments
    if moments is None and right.model is not None:
        moments = moments_of(copy.deepcopy(right.model), batch)
    if not moments:
        found.meta |= {"not_run_b": right.not_run} if right.not_run else {}
        return False
    told = computes_the_same(twin, pairs, moments, batch)
    if told:
        found.structure.append(told)
    return not told


def _twin(left: Side, matching: Matching) -> tuple[nn.Module, dict[int, Pair]]:
    """A copy of A with pairs that point into it."""
    twin = copy.deepcopy(left.model)
    assert twin is not None
    entries = {entry.name: entry for entry in entries_of(described(twin)["parameters"])}
    pairs = {
        id(pair): Pair(type(pair.a)(entries[pair.a.entry.name], pair.a.get, pair.a.rows), pair.b, pair.how)
        for pair in matching.pairs
    }
    return twin, pairs

"""`diff`: is this initialization the same as that one, and if not, which tensor explains the difference?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

from sigprop.batches import first_batch
from sigprop.checks.diff import causes, sides
from sigprop.checks.diff.matching import Matching, Pair, matched, pattern
from sigprop.checks.diff.sampling import EntrySample, Tested, compared, sample_of
from sigprop.errors import InputError, SigpropError
from sigprop.inputs import made_up_batch
from sigprop.isolation import undisturbed
from sigprop.results.difference import InitDiff, ParameterDiff

SHARED = 0.2
"""Of the parameters of the larger model, below which two models have nothing to compare."""
FALSE_ALARM = 1e-6
"""Chance that two equal initializations are called different, over all tests of one comparison together."""


def diff(
    a: Any,
    b: Any = None,
    batch: Any = None,
    *,
    loss: Any = None,
    meta: bool = False,
    python: str | None = None,
    packages: Sequence[str] = (),
    settings: dict[str, Any] | None = None,
    signals: bool = True,
    seed: int = 0,
) -> InitDiff:
    """Compare two initializations, decided by sampling error alone.

    a, b: modules, functions that build one, Hugging Face configs, or what the command line takes. `b` may be left out
        where `meta`, `python` or `packages` says how the other one is built.
    batch: what both are run on, as for `measure`; random token ids or noise when None.
    meta: build B on the meta device, give it memory and call `reset_parameters`.
    python: build B with this interpreter (it needs torch, not sigprop).
    packages: build B with these versions (`["transformers==4.57"]`), installed by pip into an environment of their own.
    settings: of both, where they are names or files.
    signals: also measure and predict both, and say which group of parameters explains the difference.
    seed: of A where it is built; B takes the next, so that equal numbers are no evidence.
    """
    if b is None and not (meta or python or packages):
        another = "--meta, --python or --with (meta=, python=, packages=)"
        raise InputError(f"diff needs a second model, or another build of the first: {another}")
    names = _labels(a, b, meta, python, packages)
    with undisturbed() as interrupts, interrupts.let_through():
        left = sides.here(a, settings, seed, False, names[0])
        given = first_batch(batch) if batch is not None else left.batch
        if given is None and left.model is not None:
            given = _random_batch(left.model)
        other = a if b is None else b
        if python or packages:
            interpreter = python or sides.interpreter_with(list(packages))
            right = sides.in_interpreter(interpreter, other, settings, seed + 1, meta, names[1], given)
        else:
            right = sides.here(other, settings, seed + 1, meta, names[1])
        return _compared(left, right, given, loss if loss is not None else left.loss, signals)


def _labels(a: Any, b: Any, meta: bool, python: str | None, packages: Sequence[str]) -> tuple[str, str]:
    names = [
        str(item) if isinstance(item, (str, Path)) else getattr(item, "__name__", type(item).__name__).strip("<>")
        for item in (a, a if b is None else b)
    ]
    ways = ("meta" * meta, f"in {python}" if python else "", f"with {' '.join(packages)}" if packages else "")
    how = ", ".join(way for way in ways if way)
    return names[0], f"{names[1]} ({how})" if how else names[1]


def _random_batch(model: nn.Module) -> Any:
    try:
        return made_up_batch(model, sides.TOKENS)
    except SigpropError:
        return None


def _compared(left: sides.Side, right: sides.Side, batch: Any, loss: Any, signals: bool) -> InitDiff:
    matching = matched(left.entries, right.entries)
    if len(matching.pairs) < SHARED * max(len(left.entries), len(right.entries)):
        raise InputError(
            f"{left.name} and {right.name} share {len(matching.pairs)} of {len(left.entries)} and {len(right.entries)} "
            "parameters, by name or by shape and place: needs two builds of one architecture"
        )
    rows, groups, words = _rows(matching)
    found = InitDiff(rows, structure=_structure(left, right, matching))
    found.meta |= {"kind": "diff", "a": left.name, "b": right.name, "false_alarm": FALSE_ALARM}
    found.meta |= {f"versions_{key}": side.versions for key, side in (("a", left), ("b", right)) if side.versions}
    if signals:
        causes.add_signals(found, left, right, matching, groups, words, batch, loss)
    if not found.swaps:
        found.swaps = [
            causes.Swap(key, tuple(pair.a.name for pair in pairs), *words[key])
            for key, pairs in sorted(groups.items(), key=lambda item: -causes.strength(item[1]))
        ]
    return found


# -- parameters


def _rows(
    matching: Matching,
) -> tuple[list[ParameterDiff], dict[str, list[Pair]], dict[str, tuple[str, str]]]:
    samples = [(sample_of(pair.a.values), sample_of(pair.b.values)) for pair in matching.pairs]
    verdicts = [compared(*pair) for pair in samples]
    families = {
        (pattern(pair.a.name), test)
        for pair, item in zip(matching.pairs, verdicts, strict=True)
        for test in item.scores
    }
    level = FALSE_ALARM / max(sum(len(item.chances) for item in verdicts) + len(families), 1)
    sure = float(stats.norm.isf(level / 2.0))
    alone = [item.smallest[1] < level for item in verdicts]
    together = _together(
        [each for each, apart in zip(zip(matching.pairs, verdicts, strict=True), alone, strict=True) if not apart]
    )
    rows: list[ParameterDiff] = []
    groups: dict[str, list[Pair]] = defaultdict(list)
    words: dict[str, tuple[str, str]] = {}
    for pair, (one, other), verdict in zip(matching.pairs, samples, verdicts, strict=True):
        test, chance = verdict.smallest
        group, of_group = pattern(pair.a.name), together.get(pattern(pair.a.name), ("", 1.0))
        why = pair.how
        if chance >= level > of_group[1]:
            test, chance, why = of_group[0], of_group[1], "all layers together"
        equal = chance >= level and not pair.shapes_differ
        if pair.shapes_differ:
            test, why = "size" if chance >= level else test, "shapes differ"
        rows.append(
            ParameterDiff(
                pair.a.name,
                pair.b.name,
                tuple(pair.a.values.shape),
                tuple(pair.b.values.shape),
                one.words,
                other.words,
                equal,
                test,
                chance,
                sure * verdict.resolution,
                why,
            )
        )
        if not equal:
            groups[group].append(pair)
            words.setdefault(group, _words(one, other, pair, test))
    return (
        rows,
        {_group_name(key, pairs, matching.pairs): pairs for key, pairs in groups.items()},
        {_group_name(key, groups[key], matching.pairs): told for key, told in words.items()},
    )


def _group_name(key: str, pairs: list[Pair], every: list[Pair]) -> str:
    """The pattern where all layers differ; the names themselves where some do."""
    if len(pairs) == sum(pattern(pair.a.name) == key for pair in every):
        return key if len(pairs) > 1 else pairs[0].a.name
    return ", ".join(pair.a.name for pair in pairs[:3]) + (f" and {len(pairs) - 3} more" if len(pairs) > 3 else "")


def _words(one: EntrySample, other: EntrySample, pair: Pair, test: str) -> tuple[str, str]:
    if pair.shapes_differ:
        sizes = ("x".join(map(str, part.values.shape)) for part in (pair.a, pair.b))
        return tuple(f"{size}, {item.words}" for size, item in zip(sizes, (one, other), strict=True))  # type: ignore[return-value]
    if test in ("shape", "tails"):
        return tuple(f"{item.words} (kurtosis {item.kurtosis:.3g})" for item in (one, other))  # type: ignore[return-value]
    if test == "zeros":
        return tuple(f"{item.words} ({item.zeros:.2g} of it zero)" for item in (one, other))  # type: ignore[return-value]
    if test in ("outliers", "at a bound"):
        return tuple(  # type: ignore[return-value]
            f"{item.words} (largest {item.largest / (item.std or 1.0):.3g} std, {item.bound:.2g} of it at a bound)"
            for item in (one, other)
        )
    return one.words, other.words


def _together(judged: list[tuple[Pair, Tested]]) -> dict[str, tuple[str, float]]:
    """For groups of layers of which none differs by itself, the p-value of what they show together (Stouffer)."""
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for pair, verdict in judged:
        for test, score in verdict.scores.items():
            scores[pattern(pair.a.name), test].append(score)
    found: dict[str, tuple[str, float]] = {}
    for (group, test), values in scores.items():
        if len(values) > 1:
            chance = float(2.0 * stats.norm.sf(abs(sum(values)) / math.sqrt(len(values))))
            if chance < found.get(group, ("", 1.1))[1]:
                found[group] = (test, chance)
    return found


# -- structure


def _structure(left: sides.Side, right: sides.Side, matching: Matching) -> list[str]:
    told = []
    for side, entries in (("A", matching.only_a), ("B", matching.only_b)):
        families = list(dict.fromkeys(pattern(item.name) for item in entries))
        if families:
            told.append(f"only {side} has {', '.join(families[:6])}{' ...' * (len(families) > 6)}")
    return told + _ties(matching.pairs) + _copies(matching.pairs) + _buffers(left.buffers, right.buffers)


def _ties(pairs: list[Pair]) -> list[str]:
    """Pairs of A's parameters that share one tensor on one side alone."""
    told = []
    by_a, by_b = ({id(getattr(pair, side).entry): pair for pair in pairs} for side in "ab")
    names = {name: pair for pair in pairs for name in pair.b.entry.names}
    for pair in by_a.values():
        others = {id(names[name].b.entry) for name in pair.a.entry.names if name in names}
        if len(others) > 1:
            told.append(f"{' = '.join(pair.a.entry.names)} is one tensor in A and {len(others)} in B")
    names = {name: pair for pair in pairs for name in pair.a.entry.names}
    for pair in by_b.values():
        others = {id(names[name].a.entry) for name in pair.b.entry.names if name in names}
        if len(others) > 1:
            told.append(f"{' = '.join(pair.b.entry.names)} is one tensor in B and {len(others)} in A")
    return told


def _copies(pairs: list[Pair]) -> list[str]:
    """Random parameters that hold identical numbers on one side alone, as layers made by deepcopy do."""
    identical: list[set[tuple[str, str]]] = []
    for side in "ab":
        seen: dict[tuple, str] = {}
        found = set()
        for pair in pairs:
            values = getattr(pair, side).values
            flat = values.detach().reshape(-1)[:: max(1, values.numel() // 8)][:8]
            if values.numel() < 8 or bool((flat == flat[0]).all()):
                continue
            key = (tuple(values.shape), *flat.tolist())
            if key in seen:
                found.add((seen[key], pair.a.name))
            seen.setdefault(key, pair.a.name)
        identical.append(found)
    told = []
    for side, own, other in (("A", *identical), ("B", *identical[::-1])):
        only = sorted(own - other)
        if only:
            more = f" and {len(only) - 1} more pairs" if len(only) > 1 else ""
            told.append(f"{only[0][0]} and {only[0][1]}{more} hold identical numbers in {side} alone")
    return told


def _buffers(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    told = []
    for name in a:
        if name not in b or a[name].shape != b[name].shape or not a[name].numel():
            continue
        one, other = a[name], b[name].to(a[name].dtype)
        if torch.allclose(one.double(), other.double(), rtol=1e-4, atol=1e-7, equal_nan=True):
            continue
        samples = [sample_of(item) if item.is_floating_point() else None for item in (one, other)]
        if samples[0] is None or samples[1] is None or compared(*samples).smallest[1] < FALSE_ALARM / len(a):  # type: ignore[arg-type]
            words = [item.words if item is not None else "other numbers" for item in samples]
            told.append(f"buffer {name}: {words[0]} in A, {words[1]} in B")
    return told

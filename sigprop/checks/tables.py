"""The tables of a report: curves by depth, margins, the folded tree of modules, the folded list of parameters."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from torch import nn

from sigprop.checks.gauges import GAUGES
from sigprop.checks.streams import Stream
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.compat import own_modules, own_parameters
from sigprop.errors import SigpropError
from sigprop.results import Profile
from sigprop.results.report import SEVERITIES, Curve, Finding, Margin, ModuleNode, ParameterLine

COLUMNS = ("variance", "token_correlation", "grad_variance")
SCORES = ("variance", "entropy", "largest_weight")
NUMBER = re.compile(r"\d+")
POSITIVE = ("variance", "grad_variance")
WIDEST = 100.0
"""Variance of a logarithm that is drawn as it is: two standard deviations are e^20."""
MOST_CHILDREN = 40
MOST_LINES = 300
MARGINS = (
    "stream_growth",
    "gradient_explodes",
    "sensitivity",
    "rank_collapse",
    "attention_saturated",
    "initial_loss",
    "rounding",
)


def curves(subject: Subject, prescribed: Profile | None) -> list[Curve]:
    """The longest stream by depth: as predicted, as measured, and as predicted under the prescription. Errors are those
    of a single initialization, which is what was measured."""
    profiles = (("predicted", subject.predicted), ("measured", subject.measured), ("prescribed", prescribed))
    found = []
    stream = max(subject.streams, key=lambda item: len(item.names), default=Stream((), False))
    others = [{row.name: row for row in profile.sites} for profile in _others(subject, stream)]
    for kind, profile in profiles:
        if profile is None:
            continue
        for column in COLUMNS:
            points = []
            for row in stream.rows(profile):
                values = [getattr(table[row.name], column) for table in others if row.name in table]
                error = _deviation(values, getattr(row, column)) if kind == "predicted" else math.nan
                points.append((getattr(row, column), error))
            found.append(_curve(column, kind, points))
        scores = [row for row in profile.sites if "entropy" in row.extras]
        for column in SCORES:
            values = [row.variance if column == "variance" else row.extras.get(column, math.nan) for row in scores]
            name = f"score_{column}" if column == "variance" else column
            found.append(_curve(name, kind, [(value, math.nan) for value in values]))
    return [curve for curve in found if any(map(math.isfinite, curve.values))]


def _others(subject: Subject, stream: Stream) -> list[Profile]:
    """Other initializations, where the one that was measured is not what was predicted."""
    experiment, measured = subject.evaluation, {row.name: row for row in stream.rows(subject.measured)}
    pairs = [(row, measured[row.name]) for row in stream.rows(subject.predicted) if row.name in measured]
    ratios = [
        getattr(one, column) / getattr(other, column)
        for one, other in pairs
        for column in POSITIVE
        if getattr(one, column) > 0 and getattr(other, column) > 0
    ]
    apart = any(abs(math.log(ratio)) > math.log(limit("banded")) for ratio in ratios if math.isfinite(ratio))
    if experiment is None or subject.trained or not apart:
        return []
    try:
        return experiment.others
    except SigpropError as error:
        subject.notes.append(f"no other initializations: {str(error).splitlines()[0]}")
        return []


def _deviation(values: Sequence[float], mean: float) -> float:
    """Standard deviation between initializations; of positive numbers by their logarithms."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    if min(values) <= 0 or mean <= 0:
        return statistics.stdev(values)
    return mean * math.expm1(min(statistics.variance(map(math.log, values)), WIDEST)) ** 0.5


def _curve(column: str, kind: str, points: Sequence[tuple[float, float]]) -> Curve:
    errors = tuple(error for _, error in points)
    kept = errors if any(map(math.isfinite, errors)) else ()
    return Curve(column, kind, tuple(range(1, len(points) + 1)), tuple(value for value, _ in points), kept)


def margins(subject: Subject) -> list[Margin]:
    """The main quantities against the limits at which a finding is made."""
    found = []
    for name in MARGINS:
        gauge = GAUGES[name]
        value = gauge.read(subject, subject.profile) if subject.profile is not None else math.nan
        if math.isfinite(value):
            low = gauge.low > 0 and 0 < value < 1
            found.append(Margin(gauge.quantity, value, gauge.low if low else gauge.high, not gauge.healthy(value)))
    return found


# -- modules


def module_tree(subject: Subject, findings: list[Finding]) -> ModuleNode:
    """Children of one class that are alike in all they hold, and in health, are one node."""
    worst = _health_by_name(findings)
    return _node("", subject.model, worst, set())


def _health_by_name(findings: list[Finding]) -> dict[str, str]:
    """The worst severity of each module that a finding names, by its own name or by a parameter's."""
    worst: dict[str, str] = {}
    for finding in findings:
        named = [*finding.sites, *finding.parameters] if finding.severity != "note" else []
        owners = {name.partition("[")[0].partition("@")[0].removesuffix(".scores") for name in named}
        for name in owners:
            for module in (name, name.rpartition(".")[0]):
                if module not in worst or SEVERITIES.index(finding.severity) < SEVERITIES.index(worst[module]):
                    worst[module] = finding.severity
    return worst


def _node(name: str, module: nn.Module, worst: dict[str, str], seen: set[int]) -> ModuleNode:
    """`seen`: parameters that were counted already, so that a tied table counts once."""
    own = worst.get(name, "ok") if name else "ok"
    inner = [
        _node(f"{name}.{key}" if name else key, child, worst, seen)
        for key, child in own_modules(module).items()
        if child
    ]
    own_ones = [item for item in own_parameters(module).values() if item is not None and id(item) not in seen]
    seen |= set(map(id, own_ones))
    count = sum(item.numel() for item in own_ones)
    count += sum(child.parameters * child.times for child in inner)
    return ModuleNode(name, type(module).__name__, own, 1, count, _folded(inner))


def _folded(nodes: list[ModuleNode]) -> tuple[ModuleNode, ...]:
    """Neighbours that are alike as one, named by the first and the last."""
    runs: list[list[ModuleNode]] = []
    for node in nodes:
        if runs and _alike(runs[-1][0]) == _alike(node):
            runs[-1].append(node)
        else:
            runs.append([node])
    made = [run[0] if len(run) == 1 else _run(run) for run in runs]
    if len(made) > MOST_CHILDREN:
        rest = made[MOST_CHILDREN - 1 :]
        total = sum(node.parameters * node.times for node in rest)
        made = [*made[: MOST_CHILDREN - 1], ModuleNode(f"{len(rest)} more", "", "ok", 1, total)]
    return tuple(made)


def _run(run: list[ModuleNode]) -> ModuleNode:
    last = run[-1].name.rpartition(".")[2]
    first = run[0]
    return ModuleNode(f"{first.name} … {last}", first.kind, first.health, len(run), first.parameters, first.children)


def _alike(node: ModuleNode) -> tuple:
    return (NUMBER.sub("*", node.name), node.kind, node.health, node.parameters, tuple(map(_alike, node.children)))


# -- parameters


def parameter_lines(subject: Subject, findings: list[Finding]) -> list[ParameterLine]:
    """Families of parameters: alike up to the numbers in their names, of one shape and one health."""
    bad: dict[str, str] = {}
    for finding in reversed(findings):
        if finding.severity != "note":
            bad |= dict.fromkeys((name.partition("[")[0] for name in finding.parameters), finding.severity)
    profile = subject.profile
    gradients = {} if profile is None else {row.name: row.grad_second_moment for row in profile.parameters}
    roles = {} if subject.structure is None else {item.name: item.role for item in subject.structure}
    groups: dict[tuple, list[str]] = {}
    for row in subject.draws:
        health = bad.get(row.name, bad.get(row.family, "ok"))
        groups.setdefault((row.family, row.shape, health), []).append(row.name)
    lines = []
    for (family, shape, health), names in groups.items():
        first, last = subject.draws[names[0]], subject.draws[names[-1]]
        gradient = tuple(gradients.get(name, math.nan) for name in (names[0], names[-1]))
        name = names[0] if len(names) == 1 else family
        lines.append(
            ParameterLine(name, shape, roles.get(names[0], ""), len(names), (first.std, last.std), gradient, health)  # type: ignore[arg-type]
        )
    return lines[:MOST_LINES]

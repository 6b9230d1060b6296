"""The tables of a report: curves by depth, margins, the folded tree of modules, the folded list of parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from torch import nn

from sigprop.checks.gauges import GAUGES
from sigprop.checks.subject import Subject
from sigprop.compat import own_modules, own_parameters
from sigprop.results import Profile
from sigprop.results.report import SEVERITIES, Curve, Finding, Margin, ModuleNode, ParameterLine

COLUMNS = ("variance", "token_correlation", "grad_variance")
SCORES = ("variance", "entropy", "largest_weight")
NUMBER = re.compile(r"\d+")
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
    """The longest stream by depth: as predicted, as measured, and as predicted under the prescription."""
    profiles = (("predicted", subject.predicted), ("measured", subject.measured), ("prescribed", prescribed))
    found = []
    stream = max(subject.streams, key=lambda item: len(item.names), default=None)
    for kind, profile in profiles:
        if profile is None:
            continue
        rows = stream.rows(profile) if stream is not None else []
        for column in COLUMNS:
            found.append(_curve(column, kind, [(getattr(row, column), row.errors.get(column)) for row in rows]))
        scores = [row for row in profile.sites if "entropy" in row.extras]
        for column in SCORES:
            values = [
                (row.variance if column == "variance" else row.extras.get(column, math.nan), None) for row in scores
            ]
            found.append(_curve(f"score_{column}" if column == "variance" else column, kind, values))
    return [curve for curve in found if any(map(math.isfinite, curve.values))]


def _curve(column: str, kind: str, points: Sequence[tuple[float, float | None]]) -> Curve:
    errors = tuple(math.nan if error is None else error for _, error in points)
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

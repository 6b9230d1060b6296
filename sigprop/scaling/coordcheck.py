"""`coord_check`: train a few steps at several widths (and depths) and judge how every size scales.

Expected along width, with sizes relative to the smallest build: activations 1 at every site; their change
after a step m^{-r} (r = 0 for muP); logits and attention scores may shrink at the start but not grow; the
size of each weight and of its first update as the width rule says. A check fails when an exponent's
interval lies more than `tolerance` away from what is expected, and the parameter, learning rate or
forward multiplier behind it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from sigprop.errors import InputError, require
from sigprop.losses import LossChoice
from sigprop.results.coordinates import CoordinateReport, Exponent
from sigprop.scaling.expectations import Expectations, Rows, expected_rows
from sigprop.scaling.factories import PlanMaker, build_seeded, compare_known, make_plan
from sigprop.scaling.judge import judge
from sigprop.scaling.record import Run
from sigprop.scaling.runs import Training, worth_stacking
from sigprop.scaling.training import make_step
from sigprop.scaling.verdict import find_culprits
from sigprop.theory.exponents import read_optimizer

Shape = tuple[int, ...]


def _tracked(shapes: list[Shape], progress: bool) -> Iterable[Shape]:
    """With a progress bar, where one is asked for."""
    if not progress:
        return shapes
    from rich.console import Console
    from rich.progress import track

    return track(shapes, "coordinate check", console=Console(stderr=True), transient=True)


def coord_check(
    build: Callable[..., nn.Module],
    widths: Sequence[int],
    depths: Sequence[int] | None = None,
    *,
    batch: Any,
    loss: LossChoice = None,
    plan: str | PlanMaker | None = "mup",
    expect: str = "mup",
    optimizer: str = "adamw",
    depth_rule: str = "none",
    lr: float | None = None,
    steps: int = 3,
    seeds: int = 3,
    tolerance: float = 0.2,
    vectorize: bool | None = None,
    progress: bool = False,
) -> CoordinateReport:
    """Judge `build(width)` (or `build(width, depth)` where depths are given) over the widths, then the depths.

    `plan`: what is applied before training: a rule's name, a function (model, base) -> Plan, or None for the
    model as it is. `expect`: the rule whose exponents are asked for. All widths share the seeds. `vectorize`: train
    the seeds together; None chooses by device and size (`report.meta["trained"]` says what was done, and why).
    """
    widths, depths = sorted(set(widths)), sorted(set(depths or []))
    require(len(widths) > 1 or len(depths) > 1, "widths", widths, "two or more different widths (or depths)")
    require(steps >= 1 and seeds >= 1, "steps, seeds", (steps, seeds), "at least one of each")
    along = {"width": [(width, *depths[:1]) for width in widths], "depth": [(widths[0], depth) for depth in depths]}
    along = {axis: shapes for axis, shapes in along.items() if len(shapes) > 1}
    shapes = sorted({shape for line in along.values() for shape in line}, reverse=True)
    base = build_seeded(build, shapes[-1], 0)
    step_fn = make_step(batch, loss)
    gradient_follows = read_optimizer(optimizer).gradient
    roles: dict[str, str] = {}
    rows: dict[Shape, Rows] = {}
    runs: dict[Shape, list[Run]] = {}
    trained: dict[str, list[Shape]] = {}
    for shape in _tracked(shapes, progress):
        first = build_seeded(build, shape, 0)
        dims = compare_known(first, base, roles)
        roles = roles or {item.name: item.role for item in dims}
        if shape != shapes[-1] and all(item.shape == item.base_shape and item.depth == 1.0 for item in dims):
            raise InputError(f"the builds of {shapes[-1]} and {shape} are the same: the factory ignores its argument")
        rows[shape] = expected_rows(first, base, dims, expect, depth_rule, optimizer)
        training = Training(make_plan(plan, first, base, dims, optimizer, depth_rule), step_fn, optimizer, lr, steps)
        models = (first if seed == 0 else build_seeded(build, shape, seed) for seed in range(seeds))
        together = worth_stacking(first, seeds) if vectorize is None else vectorize
        found, way = training.run(models, together)
        runs[shape] = [run.as_rates() for run in found] if gradient_follows else found
        trained.setdefault(way, []).append(shape)
    exponents: list[Exponent] = []
    for axis, line in along.items():
        scales = widths if axis == "width" else depths
        expected = Expectations.of_rows([rows[shape] for shape in line], scales, expect, depth_rule, axis == "depth")
        exponents += judge([runs[shape] for shape in line], axis, expected, tolerance)
    meta = {"expect": expect, "optimizer": optimizer, "steps": steps, "seeds": seeds, "tolerance": tolerance}
    meta["trained"] = {way: sorted(done) for way, done in trained.items()}
    names = [name for name, _ in base.named_modules()]
    return CoordinateReport(exponents, find_culprits(exponents, names), widths, depths, meta)

"""`coord_check`: train a few steps at several widths (and depths) and judge how every size scales.

Expected along width, with sizes relative to the smallest build: activations 1 at every site; their change
after a step m^{-r} (r = 0 for muP); logits and attention scores may shrink at the start but not grow; the
size of each weight and of its first update as the width rule says. A check fails when an exponent's
interval lies more than `tolerance` away from what is expected, and the parameter, learning rate or
forward multiplier behind it is named. Hundreds of intervals are judged, so that some fail by chance: what fails is
trained again with twice as many other seeds, and only what fails there too, in intervals that hold all at once, is
accused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sigprop.errors import InputError, require
from sigprop.losses import LossChoice
from sigprop.plans.scaling.expectations import Expectations, Rows, expected_rows, query_owners
from sigprop.plans.scaling.factories import Given, PlanMaker, build_seeded, compare_known, make_plan
from sigprop.plans.scaling.judge import judge
from sigprop.plans.scaling.model_and_base import read_model_and_base
from sigprop.plans.scaling.record import RecordedRun
from sigprop.plans.scaling.runs import OwnOptimizer, Training, worth_stacking
from sigprop.plans.scaling.training import make_step
from sigprop.plans.scaling.verdict import find_culprits, in_order_of_ending
from sigprop.results.coordinates import CoordinateReport, Exponent
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
    own_optimizer: OwnOptimizer | None = None,
    depth_rule: str = "none",
    lr: float | None = None,
    weight_decay: float = 0.0,
    roles: Mapping[str, str] | None = None,
    branches: Sequence[str] | None = None,
    attention: str | None = None,
    steps: int = 3,
    seeds: int = 3,
    tolerance: float = 0.2,
    vectorize: bool | None = None,
    progress: bool = False,
) -> CoordinateReport:
    """Judge `build(width)` (or `build(width, depth)` where depths are given) over the widths, then the depths.

    `plan`: what is applied before training: a rule's name, a function (model, base) -> Plan, or None for the
    model as it is. `expect`: the rule whose exponents are asked for. `roles`, `branches` and `attention` as in
    `parametrize`, for the plan and for what is expected. `own_optimizer`: a function from a build to its optimizer, for
    a parametrization of your own (`plan=None`); `optimizer` then says which rule it follows. `weight_decay` trains with
    decay, whose part of each update is judged with it. All widths share the seeds. `vectorize`: train the seeds
    together; None chooses by device and size (`report.meta["trained"]` says what was done, and why).
    """
    widths, depths = sorted(set(widths)), sorted(set(depths or []))
    require(len(widths) > 1 or len(depths) > 1, "widths", widths, "two or more different widths (or depths)")
    require(steps >= 1 and seeds >= 1, "steps, seeds", (steps, seeds), "at least one of each")
    along = {"width": [(width, *depths[:1]) for width in widths], "depth": [(widths[0], depth) for depth in depths]}
    along = {axis: shapes for axis, shapes in along.items() if len(shapes) > 1}
    check = _Check(
        build, along, widths, depths, batch, loss, plan, expect, optimizer, depth_rule, lr, weight_decay, roles,
        branches, attention, steps, tolerance, vectorize, progress, own_optimizer,
    )  # fmt: skip
    exponents = check.run(range(seeds), level=0.95)
    suspects = [item.key for item in exponents if not item.passed]
    if suspects and seeds > 1:
        again = {item.key: item for item in check.run(range(seeds, 3 * seeds), level=1 - 0.05 / len(suspects))}
        exponents = [item if item.passed else again.get(item.key, item) for item in exponents]
    meta = {"expect": expect, "optimizer": optimizer, "steps": steps, "seeds": seeds, "tolerance": tolerance}
    meta["trained"] = {way: sorted(set(done)) for way, done in check.trained.items()}
    meta |= {"suspects": len(suspects), "weight_decay": weight_decay}
    culprits = find_culprits(exponents, check.modules, check.queries)
    return CoordinateReport(exponents, culprits, widths, depths, meta)


@dataclass
class _Check:
    """One set of builds, trained and judged as often as asked, with other seeds each time."""

    build: Callable[..., nn.Module]
    along: dict[str, list[Shape]]
    widths: list[int]
    depths: list[int]
    batch: Any
    loss: LossChoice
    plan: str | PlanMaker | None
    expect: str
    optimizer: str
    depth_rule: str
    lr: float | None
    weight_decay: float
    roles: Mapping[str, str] | None
    branches: Sequence[str] | None
    attention: str | None
    steps: int
    tolerance: float
    vectorize: bool | None
    progress: bool
    own_optimizer: OwnOptimizer | None = None
    modules: list[str] = field(default_factory=list)
    queries: dict[str, str] = field(default_factory=dict)
    trained: dict[str, list[Shape]] = field(default_factory=dict)

    def run(self, seeds: range, level: float) -> list[Exponent]:
        shapes = sorted({shape for line in self.along.values() for shape in line}, reverse=True)
        base = build_seeded(self.build, shapes[-1], 0)
        self.modules = in_order_of_ending(base)
        step_fn = make_step(self.batch, self.loss)
        known: dict[str, str] = {}
        rows: dict[Shape, Rows] = {}
        runs: dict[Shape, list[RecordedRun]] = {}
        for shape in _tracked(shapes, self.progress):
            first = build_seeded(self.build, shape, seeds[0])
            pair = read_model_and_base(first, base, self.batch)
            dims = compare_known(first, base, known, self.roles, pair)
            known = known or {item.name: item.role for item in dims}
            if shape != shapes[-1] and all(item.shape == item.base_shape and item.depth == 1.0 for item in dims):
                raise InputError(
                    f"the builds of {shapes[-1]} and {shape} are the same: the factory ignores its argument"
                )
            given = Given(self.depth_rule, self.branches, self.attention, pair)
            rows[shape] = expected_rows(first, base, dims, self.expect, self.optimizer, given)
            self.queries |= query_owners(first, self.expect, given)
            made = make_plan(self.plan, first, base, dims, self.optimizer, given)
            training = Training(
                made, step_fn, self.optimizer, self.lr, self.steps, self.weight_decay, self.own_optimizer
            )
            models = (first if seed == seeds[0] else build_seeded(self.build, shape, seed) for seed in seeds)
            stacked = worth_stacking(first, len(seeds)) if self.vectorize is None else self.vectorize
            found, way = training.run(models, stacked)
            follows = read_optimizer(self.optimizer).gradient
            runs[shape] = [run.as_rates() for run in found] if follows else found
            self.trained.setdefault(way, []).append(shape)
        exponents: list[Exponent] = []
        for axis, line in self.along.items():
            scales = self.widths if axis == "width" else self.depths
            expected = Expectations.of_rows(
                [rows[shape] for shape in line], scales, self.expect, self.depth_rule, axis == "depth"
            )
            exponents += judge([runs[shape] for shape in line], axis, expected, self.tolerance, level, self.queries)
        return exponents

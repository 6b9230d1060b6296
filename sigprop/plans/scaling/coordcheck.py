"""`coord_check`: train a few steps at several widths (and depths) and judge how every size scales.

docs/evidence/scaling.md says how an exponent is judged. What fails by the first seeds is trained again with twice as
many others, and only what fails there too, in intervals that hold all at once, is accused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from sigprop.errors import InputError, require, require_names
from sigprop.losses import LossChoice
from sigprop.plans.exponents import read_optimizer
from sigprop.plans.scaling.beside import Rules
from sigprop.plans.scaling.expectations import Expectations, Rows, expected_rows, query_owners
from sigprop.plans.scaling.judge import find_culprits, in_order_of_ending, judge
from sigprop.plans.scaling.model_and_base import read_model_and_base
from sigprop.plans.scaling.record import RecordedRun
from sigprop.plans.scaling.training import (
    OwnOptimizer,
    PlanMaker,
    Training,
    build_seeded,
    compare_known,
    make_plan,
    make_step,
)
from sigprop.plans.scaling.width_rules import width_rule
from sigprop.results.coordinates import CoordinateReport, Exponent
from sigprop.structure import few_examples

Shape = tuple[int, ...]


@dataclass(frozen=True)
class CoordOptions:
    """Options of `coord_check`.

    plan: what is applied before training: a rule's name, a function (model, base) -> Plan, or None for the model as
        it is.
    expect: the rule whose exponents are asked for.
    optimizer: its name; with `own_optimizer` the rule that this one goes by.
    own_optimizer: a function from a build to its optimizer, for a parametrization of your own (`plan=None`).
    depth_rule, lr: the depth rule, and the learning rate at the smallest build.
    weight_decay: trains with decay, whose part of each update is judged with it.
    roles, branches, attention: as in `compose`, for the plan and for what is expected.
    steps, seeds: of each training, and initializations of each build; all widths share the seeds.
    tolerance: the largest deviation of an exponent that passes.
    progress: a progress bar.
    """

    plan: str | PlanMaker | None = "mup"
    expect: str = "mup"
    optimizer: str = "adamw"
    own_optimizer: OwnOptimizer | None = None
    depth_rule: str = "none"
    lr: float | None = None
    weight_decay: float = 0.0
    roles: Mapping[str, str] | None = None
    branches: Sequence[str] | None = None
    attention: str | None = None
    steps: int = 3
    seeds: int = 3
    tolerance: float = 0.2
    progress: bool = False

    def __post_init__(self) -> None:
        require(self.steps >= 1 and self.seeds >= 1, "steps, seeds", (self.steps, self.seeds), "at least one of each")

    @property
    def rules(self) -> Rules:
        """What is expected of every build."""
        return Rules(width_rule(self.expect), self.depth_rule, self.attention, self.branches)

    def told(self) -> dict[str, Any]:
        """What a report says of them."""
        names = ("expect", "optimizer", "steps", "seeds", "tolerance", "weight_decay")
        return {name: getattr(self, name) for name in names}


def coord_check(
    build: Callable[..., nn.Module],
    widths: Sequence[int],
    depths: Sequence[int] | None = None,
    *,
    batch: Any,
    loss: LossChoice = None,
    **options: Any,
) -> CoordinateReport:
    """Judge `build(width)` (or `build(width, depth)` where depths are given) over the widths, then the depths.

    batch, loss: what every build is trained on, as for `measure`; for token ids without a loss the next token.
    The other arguments are those of `CoordOptions`.
    """
    widths, depths = sorted(set(widths)), sorted(set(depths or []))
    require(len(widths) > 1 or len(depths) > 1, "widths", widths, "two or more different widths (or depths)")
    require_names([item.name for item in fields(CoordOptions)], options, "option of coord_check")
    asked = CoordOptions(**options)
    check = _Check(build, widths, depths, batch, loss, asked)
    exponents = check.run(range(asked.seeds), level=0.95)
    suspects = [item.key for item in exponents if not item.passed]
    if suspects and asked.seeds > 1:
        level = 1 - 0.05 / len(suspects)
        again = {item.key: item for item in check.run(range(asked.seeds, 3 * asked.seeds), level)}
        exponents = [item if item.passed else again.get(item.key, item) for item in exponents]
    culprits = find_culprits(exponents, check.modules, check.queries)
    return CoordinateReport(exponents, culprits, widths, depths, asked.told() | {"suspects": len(suspects)})


@dataclass
class _Check:
    """One set of builds, trained and judged as often as asked, with other seeds each time."""

    build: Callable[..., nn.Module]
    widths: list[int]
    depths: list[int]
    batch: Any
    loss: LossChoice
    asked: CoordOptions
    modules: list[str] = field(default_factory=list)
    queries: dict[str, str] = field(default_factory=dict)

    def run(self, seeds: range, level: float) -> list[Exponent]:
        along = {"width": [(width, *self.depths[:1]) for width in self.widths]}
        along["depth"] = [(self.widths[0], depth) for depth in self.depths]
        along = {axis: shapes for axis, shapes in along.items() if len(shapes) > 1}
        shapes = sorted({shape for line in along.values() for shape in line}, reverse=True)
        base = build_seeded(self.build, shapes[-1], 0)
        self.modules = in_order_of_ending(base)
        known: dict[str, str] = {}
        rows: dict[Shape, Rows] = {}
        runs: dict[Shape, list[RecordedRun]] = {}
        for shape in _tracked(shapes, self.asked.progress):
            rows[shape], runs[shape] = self._trained(shape, base, shape == shapes[-1], known, seeds)
        exponents: list[Exponent] = []
        for axis, line in along.items():
            scales = self.widths if axis == "width" else self.depths
            expected = Expectations.of_rows([rows[shape] for shape in line], scales, self.asked.rules, axis == "depth")
            tables = [runs[shape] for shape in line]
            exponents += judge(tables, axis, expected, self.asked.tolerance, level, self.queries)
        return exponents

    def _trained(
        self, shape: Shape, base: nn.Module, is_base: bool, known: dict[str, str], seeds: range
    ) -> tuple[Rows, list[RecordedRun]]:
        """What is expected of one build, and its trainings; `known` keeps the roles that the largest has shown."""
        asked = self.asked
        first = build_seeded(self.build, shape, seeds[0])
        pair = read_model_and_base(first, base, few_examples(self.batch))
        pair = pair if pair.known else read_model_and_base(first, base, self.batch)
        dims = compare_known(first, base, known, asked.roles, pair)
        known.update({} if known else {item.name: item.role for item in dims})
        if not is_base and all(item.shape == item.base_shape and item.depth == 1.0 for item in dims):
            raise InputError(f"the build of {shape} is the same as the smallest: the factory ignores its argument")
        self.queries |= query_owners(first, pair, asked.rules)
        made = make_plan(asked.plan, first, base, dims, asked.optimizer, pair, asked.rules)
        step_fn = make_step(self.batch, self.loss)
        training = Training(
            made, step_fn, asked.optimizer, asked.lr, asked.steps, asked.weight_decay, asked.own_optimizer
        )
        models = (first if seed == seeds[0] else build_seeded(self.build, shape, seed) for seed in seeds)
        rows = expected_rows(first, base, dims, asked.optimizer, pair, asked.rules)
        runs = [training.run(model) for model in models]
        return rows, [run.as_rates() for run in runs] if read_optimizer(asked.optimizer).gradient else runs


def _tracked(shapes: list[Shape], progress: bool) -> Iterable[Shape]:
    """With a progress bar, where one is asked for."""
    if not progress:
        return shapes
    from rich.console import Console
    from rich.progress import track

    return track(shapes, "coordinate check", console=Console(stderr=True), transient=True)

"""`coord_check`: train a few steps at several widths (and depths) and judge how every size scales.

Expected along width, with sizes relative to the smallest build: activations 1 at every site; their change
after a step m^{-r} (r = 0 for muP); logits and attention scores may shrink at the start but not grow; the
size of each weight and of its first update as the width rule says. A check fails when an exponent's
interval lies more than `tolerance` away from what is expected, and the parameter, learning rate or
forward multiplier behind it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn

from sigprop.errors import require
from sigprop.results import Plan
from sigprop.results.coordinates import CoordinateReport, Exponent
from sigprop.scaling.dimensions import compare
from sigprop.scaling.expectations import Expectations
from sigprop.scaling.fit import fit_exponent
from sigprop.scaling.parametrize import parametrize
from sigprop.scaling.record import Recorder, Run
from sigprop.scaling.training import make_optimizers, make_step
from sigprop.scaling.verdict import find_culprits
from sigprop.theory.exponents import read_optimizer

ROUNDING = 1e-6
PlanMaker = Callable[[nn.Module, nn.Module], "Plan | None"]


def coord_check(
    build: Callable[..., nn.Module],
    widths: Sequence[int],
    depths: Sequence[int] | None = None,
    *,
    batch: Any,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    plan: str | PlanMaker | None = "mup",
    expect: str = "mup",
    optimizer: str = "adamw",
    depth_rule: str = "none",
    lr: float | None = None,
    steps: int = 3,
    seeds: int = 3,
    tolerance: float = 0.25,
    progress: bool = False,
) -> CoordinateReport:
    """Judge `build(width)` (or `build(width, depth)` where depths are given) over the widths, then the depths.

    `plan`: what is applied before training: a rule's name, a function (model, base) -> Plan, or None for the
    model as it is. `expect`: the rule whose exponents are asked for. All widths share the seeds.
    """
    widths, depths = sorted(set(widths)), sorted(set(depths or []))
    require(len(widths) > 1 or len(depths) > 1, "widths", widths, "two or more different widths (or depths)")
    require(steps >= 1 and seeds >= 1, "steps, seeds", (steps, seeds), "at least one of each")
    shapes = [(width, depths[0]) if depths else (width,) for width in widths]
    deep = [(widths[0], depth) for depth in depths] if len(depths) > 1 else []
    skeletons = {shape: _skeleton(build, shape) for shape in dict.fromkeys([*shapes, *deep])}
    exponents: list[Exponent] = []
    expected = {}
    if len(shapes) > 1:
        expected["width"] = Expectations.of_builds(
            [skeletons[shape] for shape in shapes], widths, expect, depth_rule, optimizer
        )
    if deep:
        models = [skeletons[shape] for shape in deep]
        expected["depth"] = Expectations.of_builds(models, depths, expect, depth_rule, optimizer, along_depth=True)
    make_plan = plan_maker(plan, optimizer, depth_rule, skeletons[shapes[-1]])
    base = build_seeded(build, shapes[0], 0)
    runs: dict[tuple, list[Run]] = {}
    with Progress(transient=True, disable=not progress) as bar:
        task = bar.add_task("coordinate check", total=len(skeletons) * seeds)
        for shape in skeletons:
            runs[shape] = []
            for seed in range(seeds):
                model = build_seeded(build, shape, seed)
                runs[shape].append(
                    _train(model, make_plan(model, base), make_step(batch, loss_fn), optimizer, lr, steps)
                )
                bar.advance(task)
    for axis, along in (("width", shapes), ("depth", deep)):
        if axis in expected:
            exponents += _exponents(along, runs, axis, expected[axis], tolerance)
    largest = skeletons[(deep or shapes)[-1]]
    meta = {"expect": expect, "optimizer": optimizer, "steps": steps, "seeds": seeds, "tolerance": tolerance}
    return CoordinateReport(exponents, find_culprits(exponents, largest), widths, depths, meta)


def plan_maker(plan: str | PlanMaker | None, optimizer: str, depth_rule: str, wide: nn.Module) -> PlanMaker:
    """A function (model, base) -> Plan; the base itself takes its roles from the comparison with `wide`."""
    if plan is None:
        return lambda model, base: None
    if not isinstance(plan, str):
        return plan
    name = plan

    def make(model: nn.Module, base: nn.Module) -> Plan:
        known = {item.name: item.role for item in compare(wide, base)}
        roles = {item.name: known[item.name] for item in compare(model, base) if item.name in known}
        alike = all(item.fan_in == item.fan_out == item.depth == 1.0 for item in compare(model, base))
        return parametrize(
            model, name, base=base, optimizer=optimizer, depth=depth_rule, roles=roles if alike else None
        )

    return make


def build_seeded(build: Callable[..., nn.Module], shape: tuple[int, ...], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(*shape)


def _skeleton(build: Callable[..., nn.Module], shape: tuple[int, ...]) -> nn.Module:
    """The model without values, where its factory can be run on the meta device."""
    try:
        with torch.device("meta"):
            return build_seeded(build, shape, 0)
    except (NotImplementedError, RuntimeError):
        return build_seeded(build, shape, 0)


def _train(model: nn.Module, plan: Plan | None, step_fn: Callable, optimizer: str, lr: float | None, steps: int) -> Run:
    if plan is not None:
        plan.apply_(model)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        recorder = Recorder(model, step_fn)
        sizes = recorder.run(make_optimizers(optimizer, model, plan, lr), steps)
    return Run(_as_rates(sizes) if read_optimizer(optimizer).gradient else sizes, recorder.channels)


def _as_rates(sizes: dict[tuple[str, str, int], float]) -> dict[tuple[str, str, int], float]:
    """Updates divided by the gradients that they follow."""
    found = {}
    for (quantity, name, step), size in sizes.items():
        gradient = sizes.get(("gradient", name, 0), 0.0)
        if quantity != "update":
            found[quantity, name, step] = size
        elif gradient > 0:
            found["rate", name, step] = size / gradient
    return found


def _exponents(
    shapes: list[tuple[int, ...]], runs: dict[tuple, list[Run]], axis: str, expected: Expectations, tolerance: float
) -> list[Exponent]:
    """Fit every recorded quantity over the shapes and compare it with what the rule expects."""
    tables = [[run.by_pattern() if axis == "depth" else run for run in runs[shape]] for shape in shapes]
    everywhere = [key for key in tables[0][0].sizes if all(key in run.sizes for table in tables for run in table)]
    channels = [table[0].channels for table in tables]
    noise = _noise([run for table in tables for run in table])
    found = []
    for quantity, name, step in everywhere:
        sizes = np.array([[run.sizes[quantity, name, step] for run in table] for table in tables]).T
        if not (sizes > 0).all() and quantity in ("weight", "update", "rate", "gradient"):
            continue
        exponent, low, high = fit_exponent(expected.scales, sizes)
        means = tuple(float(value) for value in sizes.mean(axis=0))
        finite = len({channel.get(name) for channel in channels}) == 1
        if quantity in ("update", "rate") and name in noise:
            wanted, at_most = None, None
        else:
            wanted, at_most = expected.of(quantity, name, step, finite)
        passed = _passes(low, high, wanted, at_most, tolerance)
        found.append(Exponent(name, quantity, step, axis, means, exponent, low, high, wanted, passed, at_most))
    return found


def _noise(runs: list[Run]) -> set[str]:
    """Parameters whose gradient vanishes up to rounding (a key's bias): their normalized update means nothing."""
    found: set[str] = set()
    for run in runs:
        gradients = {name: size for (kind, name, step), size in run.sizes.items() if (kind, step) == ("gradient", 0)}
        found |= {name for name, size in gradients.items() if size < ROUNDING * max(gradients.values())}
    return found


def _passes(low: float, high: float, expected: float | None, at_most: float | None, tolerance: float) -> bool:
    if np.isnan(low):
        return expected is None and at_most is None
    if expected is not None:
        return low <= expected + tolerance and high >= expected - tolerance
    return at_most is None or low <= at_most + tolerance

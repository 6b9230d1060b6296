"""A plan's optimizers: parameter groups by multipliers, and torch's optimizers on them.

Groups carry torch's `param_names`. Gains and biases are not decayed unless asked for. Muon trains the matrices inside a
model, convolutions and stacks of experts among them, and AdamW the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from sigprop.errors import InputError, UnknownNameError, UnsupportedError, require
from sigprop.plans import own_scale
from sigprop.plans.application import match
from sigprop.plans.matrix_optimizers import AdamH, Muon, MuonH, NorMuon, groups_of, matrix_sizes
from sigprop.plans.multipliers import muon_scale
from sigprop.plans.suggestion import suggested_lr
from sigprop.results.parameters import ROLES, WIDTH_CLASSES

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan
    from sigprop.plans.rows import ParameterPlan

Epsilon = float | tuple[float | None, float]
TORCH_EPSILON = 1e-8
ADAFACTOR_EPSILON = (None, 1e-3)
DIGITS = 12
MATRIX_ONLY = ("muon", "normuon", "muonh", "adamh")
"""Optimizers that train the matrices inside, and leave the rest to AdamW."""
WITH_RUN = ("adam", "adamw", *MATRIX_ONLY)
"""Optimizers whose AdamW takes the betas and epsilon of a run."""
ELSEWHERE = ("soap", "shampoo")
"""Optimizers whose settings a plan knows, of packages beside torch."""


def param_groups(
    plan: Plan,
    model: nn.Module,
    lr: Any,
    weight_decay: float,
    eps: Epsilon | None,
    roles: Sequence[str] | None,
    optimizer: str | None,
    decay_vectors: bool,
    merge: float,
    options: dict[str, Any],
) -> list[dict[str, Any]]:
    """One group per distinct (lr, weight decay, epsilon); frozen parameters are left out."""
    rates = _rates(lr)
    require(weight_decay >= 0, "weight_decay", weight_decay, "a number that is not negative")
    require(0 <= merge < 1, "merge", merge, "a relative difference from 0 up to but below 1")
    for role in roles or ():
        if role not in ROLES and role not in WIDTH_CLASSES.values():
            raise UnknownNameError("role", role, {*ROLES, *WIDTH_CLASSES.values()})
    own = str(plan.meta.get("optimizer", "adamw"))
    trained = {trained_by(own, row.role, row.shape) for row in plan.parameters}
    if optimizer is not None and optimizer not in trained:
        raise InputError(f"this plan is for {' and '.join(sorted(trained))}, not for {optimizer}: make one for it")
    if eps is None and any(row.eps != 1.0 for row in plan.parameters):
        eps = ADAFACTOR_EPSILON if plan.meta.get("optimizer") == "adafactor" else TORCH_EPSILON
    groups: dict[tuple[float, ...], dict[str, Any]] = {}
    for row, parameter in match(plan, model):
        own_rate = _rate_of(rates, row, trained_by(own, row.role, row.shape))
        if not parameter.requires_grad or (optimizer is not None and trained_by(own, row.role, row.shape) != optimizer):
            continue
        if roles is not None and row.role not in roles and WIDTH_CLASSES.get(row.role) not in roles:
            continue
        decays = weight_decay and (decay_vectors or not row.is_vector)
        factors = (row.lr, row.weight_decay if decays else 0.0, row.eps if eps is not None else 1.0)
        key = (*_key(factors, merge), float(own_rate))
        if key not in groups:
            rate, decay, floor = key[:3] if merge else factors
            made = {"params": [], "param_names": [], "lr": own_rate * rate, "weight_decay": weight_decay * decay}
            groups[key] = made | ({} if eps is None else {"eps": _multiplied(eps, floor)}) | options
        groups[key]["params"].append(parameter)
        groups[key]["param_names"].append(row.name)
    return list(groups.values())


def _rates(lr: Any) -> dict[str, Any]:
    """Base rates by role, width class or optimizer, with `default` for the rest."""
    given = dict(lr) if isinstance(lr, Mapping) else {"default": lr}
    known = {*ROLES, *WIDTH_CLASSES.values(), "default", "adamw", *MATRIX_ONLY}
    for key, rate in given.items():
        if key not in known:
            raise UnknownNameError("role of a learning rate", key, known)
        require(bool(rate > 0) and math.isfinite(rate), "lr", float(rate), "a positive number")
    require("default" in given, "lr", sorted(given), "also a rate for `default`, the parameters not named")
    return given


def _rate_of(rates: dict[str, Any], row: ParameterPlan, optimizer: str) -> Any:
    keys = (row.role, WIDTH_CLASSES.get(row.role, ""), optimizer, "default")
    return next(rates[key] for key in keys if key in rates)


def trained_by(optimizer: str, role: str, shape: tuple[int, ...]) -> str:
    """The optimizer of one parameter: Muon takes the matrices inside, AdamW what it leaves."""
    kind = optimizer.partition(":")[0]
    if kind not in MATRIX_ONLY:
        return optimizer
    return kind if len(shape) > 1 and WIDTH_CLASSES.get(role) == "hidden" else "adamw"


def algorithm_of(optimizer: str, role: str, shape: tuple[int, ...]) -> str:
    """The rule that a parameter's multipliers follow: the plan's own with its scale, or AdamW's."""
    return optimizer if trained_by(optimizer, role, shape) == optimizer.partition(":")[0] else "adamw"


def _key(rates: tuple[float, float, float], merge: float) -> tuple[float, ...]:
    """Rounded settings; decay and epsilon as products with the rate, which folded scales leave as they are."""
    lr, *others = rates
    if not merge or lr <= 0.0:
        return tuple(_rounded(value, merge) for value in rates)
    rate = _rounded(lr, merge)
    return rate, *(_rounded(value * lr, merge) / rate for value in others)


def _rounded(value: float, merge: float) -> float:
    """To twelve digits, or to the nearest of a geometric series whose steps are within `merge` of one another."""
    if value <= 0.0:
        return value
    if merge == 0.0:
        return float(f"{value:.{DIGITS}g}")
    step = math.log1p(merge)
    return math.exp(step * round(math.log(value) / step))


def _multiplied(eps: Epsilon, factor: float) -> Epsilon:
    """Adafactor's first epsilon is a floor for gradients and stays; its second is one for the weight's size."""
    return (eps[0], eps[1] * factor) if isinstance(eps, tuple) else eps * factor


def make_optimizers(
    plan: Plan, model: nn.Module, lr: Any, weight_decay: float | None, eps: Epsilon | None, **options: Any
) -> list[torch.optim.Optimizer]:
    """The optimizers that the plan was made for: one, on few groups (`own_scale`), or Muon and AdamW."""
    name = str(plan.meta.get("optimizer", "adamw"))
    lr = suggested_lr(plan).rates if lr is None else lr
    run = plan.meta.get("run", {})
    weight_decay = float(run.get("weight_decay", 0.0)) if weight_decay is None else weight_decay
    eps = run.get("eps") if eps is None and name.partition(":")[0] in WITH_RUN else eps
    if "betas" in run and name.partition(":")[0] in WITH_RUN:
        options = {"betas": tuple(run["betas"])} | options
    kind, _, scale = name.partition(":")
    usual = _rates(lr)["default"]

    def groups(optimizer: str | None = None) -> list[dict[str, Any]]:
        return plan.param_groups(model, lr, weight_decay, eps, optimizer=optimizer)

    if kind in MATRIX_ONLY:
        hidden, rest = _scaled(_by_shape(groups(kind), model), scale), groups("adamw")
        trains: Any = {"muon": Muon, "normuon": NorMuon, "muonh": MuonH, "adamh": AdamH}[kind]
        own = {"lr": usual, "weight_decay": weight_decay}
        if kind != "adamh":
            own["adjust_lr_fn"] = "original" if kind == "muon" and scale != "rms" else "match_rms_adamw"
        if kind == "muon" and all(parameter.ndim == 2 for group in hidden for parameter in group["params"]):
            trains = getattr(torch.optim, "Muon", Muon)  # torch has its own since 2.9
            hidden = [{key: value for key, value in group.items() if key != "filters"} for group in hidden]
        adamw = torch.optim.AdamW(rest, lr=usual, weight_decay=weight_decay, **options)
        return [trains(hidden, **own), adamw]
    made: dict[str, Any] = {
        "sgd": own_scale.SGD,
        "momentum": lambda found, lr, momentum=0.9, **rest: own_scale.SGD(found, lr=lr, momentum=momentum, **rest),
        "adam": own_scale.Adam,
        "adamw": own_scale.AdamW,
        "lion": own_scale.Lion,
        "sign": lambda found, lr, **rest: own_scale.Lion(found, lr=lr, betas=(0.0, 0.0), **rest),
        "adafactor": torch.optim.Adafactor,
    }
    if kind in ELSEWHERE:
        raise UnsupportedError(
            f"torch has no {kind}: give plan.param_groups(model, lr, weight_decay) to the one you use"
        )
    if kind not in made:
        raise UnknownNameError("optimizer", name, [*made, "muon"])
    return [made[kind](own_scale.merged_groups(groups(), kind), lr=usual, **options)]


def _by_shape(groups: list[dict[str, Any]], model: nn.Module) -> list[dict[str, Any]]:
    """Muon's groups with convolutions apart, which are matrices of another shape (`muon.py`)."""
    owners = {id(item): module for module in model.modules() for item in module.parameters(recurse=False)}
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for place, group in enumerate(groups):
        for parameter, name in zip(group["params"], group["param_names"], strict=True):
            filters = groups_of(owners.get(id(parameter)))
            own = found.setdefault((place, filters), group | {"params": [], "param_names": [], "filters": filters})
            own["params"].append(parameter)
            own["param_names"].append(name)
    return list(found.values())


def _scaled(groups: list[dict[str, Any]], scale: str) -> list[dict[str, Any]]:
    """Muon's groups with the scales that torch lacks, by parameter: `none` and `unit` on top of its `shape`."""
    if scale in ("", "shape", "rms"):
        return groups
    found = []
    for group in groups:
        for parameter, name in zip(group["params"], group["param_names"], strict=True):
            size = matrix_sizes(parameter, group["filters"])[1:]
            factor = muon_scale(scale, *size) / muon_scale("shape", *size)
            own = {"params": [parameter], "param_names": [name], "lr": group["lr"] * factor}
            found.append(group | own | {"weight_decay": group["weight_decay"] / factor})
    return found


def cosine_factor(step: int, steps: int, warmup: float = 0.1, final: float = 0.1) -> float:
    """Linear over the first share `warmup` of the steps, then a cosine down to `final` of the peak."""
    warm = round(warmup * steps)
    if step < warm:
        return (step + 1) / warm
    place = min((step - warm) / max(steps - warm, 1), 1.0)
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * place))


def scheduler(
    optimizer: torch.optim.Optimizer, steps: int, warmup: float = 0.1, final: float = 0.1
) -> torch.optim.lr_scheduler.LambdaLR:
    """Warm-up and cosine for all groups; torch's own `eta_min` and a single `max_lr` give all groups one rate."""
    require(steps >= 1, "steps", steps, "a positive number")
    require(0 <= warmup < 1 and 0 <= final <= 1, "warmup, final", (warmup, final), "shares from 0 to 1")
    return LambdaLR(optimizer, lambda step: cosine_factor(step, steps, warmup, final))

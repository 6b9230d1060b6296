r"""Rules for another batch size, another number of steps, and for weight decay: what a tuned setting becomes; and the
response to one step, which `Plan.suggested_lr` turns into a rate.

Batch size, Adam (Malladi et al. 2022, square-root rule), with `kappa = batch / tuned batch`:

    lr sqrt(kappa),   1 - beta kappa,   epsilon / sqrt(kappa)

Number of steps, `kappa = steps / tuned steps`: `lr kappa^{-p}`, with p = 1/2 from averaging arguments, and p = 0.32 as
measured for language models over token horizons (Bjorck et al. 2024). AdamW keeps an average of its updates over `1 /
(lr decay)` steps; that time as a fixed share of the run (Wang and Aitchison 2024) asks for `decay = 1 / (lr share
steps)`. Independent decay (Loshchilov and Hutter 2019; Wortsman et al. 2023) is torch's with `decay / lr`.
`run_settings` puts them together; none was tested here beyond the rate's own sweeps (300 and 2,000 steps):

    rate      (steps / 300)^{-0.32}, never above one    Bjorck et al. 2024: 25 to 400 billion tokens
    beta_2    1 - 0.05 batch / 2^19, 0.95 to 0.9999     Malladi et al. 2022; Marek et al. 2025: one token to millions
    epsilon   1e-8 sqrt(2^19 / batch), at most 1e-8     Malladi et al. 2022
    decay     an averaging time of a third of the run   Wang and Aitchison 2024: shares from 0.1 to 1

The response is how far one step at a rate of one, aligned with what a matrix of fan-in `f` and entries of size `sigma`
reads, moves what it puts out, relative to what it puts out: `sqrt(f) / sigma` for Adam, `c / (sigma sqrt(rows))` for
Muon with the scale `c`. On the sphere the step is an angle: `sqrt(f)` (AdamH), `sqrt(max(rows, columns) / rows)`
(MuonH). Embeddings and positions are read row by row: `1 / sigma`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median

from sigprop.errors import UnsupportedError, require
from sigprop.plans.multipliers import RMS_OF_ADAM, muon_scale
from sigprop.plans.optimizers import MATRIX_ONLY, trained_by
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.planned_states import distribution_of
from sigprop.plans.rows import ParameterPlan
from sigprop.plans.suggestion import TARGETS
from sigprop.results.parameters import MATRICES, TABLES
from sigprop.structure import Parameter, Structure

SWEPT_STEPS = 300
"""Steps of the runs whose swept rates the suggestion was compared with."""
HORIZON_EXPONENT = 0.32
USUAL_BATCH = 2**19
AVERAGING_SHARE = 1 / 3


@dataclass(frozen=True)
class AdamSettings:
    """What Adam is told."""

    lr: float
    betas: tuple[float, float]
    eps: float


def at_batch(settings: AdamSettings, batch: int, tuned: int) -> AdamSettings:
    """The settings at another batch size; refused where momentum would vanish."""
    require(batch >= 1 and tuned >= 1, "batch sizes", (batch, tuned), "positive numbers")
    kappa = batch / tuned
    betas = tuple(1.0 - (1.0 - beta) * kappa for beta in settings.betas)
    require(
        min(betas) >= 0.0, "batch", batch, f"at most {tuned / (1 - min(settings.betas)):.4g}, where a beta becomes 0"
    )
    return AdamSettings(settings.lr * math.sqrt(kappa), (betas[0], betas[1]), settings.eps / math.sqrt(kappa))


def at_horizon(lr: float, steps: int, tuned: int, exponent: float = 0.5) -> float:
    """The learning rate for another number of steps."""
    require(steps >= 1 and tuned >= 1, "steps", (steps, tuned), "positive numbers")
    return lr * (steps / tuned) ** -exponent


def averaging_decay(lr: float, steps: int, share: float) -> float:
    """The weight decay whose averaging time is this share of the run."""
    require(lr > 0 and steps >= 1 and share > 0, "lr, steps, share", (lr, steps, share), "positive numbers")
    return 1.0 / (lr * share * steps)


def independent_decay(decay: float, lr: float) -> float:
    """torch's weight decay for one that does not follow the learning rate; the schedule still multiplies both."""
    require(lr > 0, "lr", lr, "a positive number")
    return decay / lr


@dataclass(frozen=True)
class RunSettings:
    """What the length of a run and the size of its batches ask of AdamW."""

    batch_tokens: int
    steps: int | None
    horizon_factor: float
    betas: tuple[float, float]
    eps: float


def run_settings(tokens: int | None, batch_tokens: int | None) -> RunSettings:
    """The rules at the head of this file; without `tokens` the horizon asks nothing, without `batch_tokens` it is 4,096
    tokens."""
    batch = TARGETS if batch_tokens is None else batch_tokens
    require(batch >= 1, "batch_tokens", batch, "a positive number")
    require(tokens is None or tokens >= batch, "tokens", tokens, "at least those of one batch")
    steps = None if tokens is None else tokens // batch
    factor = 1.0 if steps is None else min(1.0, at_horizon(1.0, steps, SWEPT_STEPS, HORIZON_EXPONENT))
    beta = min(0.9999, max(0.95, 1.0 - 0.05 * batch / USUAL_BATCH))
    return RunSettings(batch, steps, factor, (0.9, beta), 1e-8 * min(1.0, math.sqrt(USUAL_BATCH / batch)))


def with_run(made: Plan, run: RunSettings | None) -> Plan:
    """The plan with the numbers of a run in `meta["run"]`: rate, decay, betas, epsilon, steps."""
    if run is None:
        return made
    made = replace(made, meta={**made.meta, "batch_tokens": run.batch_tokens, "horizon_factor": run.horizon_factor})
    told = {"steps": run.steps, "betas": list(run.betas), "eps": run.eps}
    try:
        lr = made.suggested_lr().lr
    except UnsupportedError:
        return replace(made, meta={**made.meta, "run": told})
    told |= {"lr": lr} | (
        {} if run.steps is None else {"weight_decay": averaging_decay(lr, run.steps, AVERAGING_SHARE)}
    )
    return replace(made, meta={**made.meta, "run": told})


def responses(plan: Plan, structure: Structure) -> dict[str, float]:
    """By role, the median response of its parameters; roles that start at zero have none."""
    found: dict[str, list[float]] = {}
    optimizer = str(plan.meta.get("optimizer", "adamw"))
    for row in plan.parameters:
        item, weight = structure.parameters.get(row.name), structure.traced.weights.get(row.name)
        if item is None or weight is None or len(row.shape) < 2 or item.role not in (*MATRICES, *TABLES):
            continue
        size = math.sqrt(distribution_of(row.init, weight.distribution, row.shape).second_moment)
        if size > 0.0:
            found.setdefault(item.role, []).append(row.lr * _response(row, item, size, optimizer))
    return {role: median(values) for role, values in found.items()}


def _response(row: ParameterPlan, item: Parameter, size: float, optimizer: str) -> float:
    kind, _, scale = optimizer.partition(":")
    rows, columns = item.fan_out, item.fan_in
    if trained_by(optimizer, row.role, row.shape) != kind or kind not in MATRIX_ONLY:
        return math.sqrt(1 if item.role in TABLES else columns) / size
    if kind == "adamh":
        return math.sqrt(columns)
    if kind == "muonh":
        return math.sqrt(max(rows, columns) / rows)
    scale = "rms" if kind == "normuon" else scale or "shape"
    return (RMS_OF_ADAM if scale == "rms" else 1.0) * muon_scale(scale, rows, columns) / (size * math.sqrt(rows))

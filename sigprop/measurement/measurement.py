"""`measure`: what the signals and gradients of a real model are, with the model left as it was; once, or over
random initializations."""

from __future__ import annotations

import copy
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sigprop.batches import first_batch
from sigprop.errors import InputError, require
from sigprop.isolation import cuda_devices, undisturbed
from sigprop.losses import LossChoice, require_loss
from sigprop.measurement.layout import AxesRule, TokenAxes
from sigprop.measurement.one_pass import Options, measure_once
from sigprop.results import ParameterRow, Profile, SiteRow


def measure(
    model: nn.Module | Callable[[], nn.Module] | None,
    batch: Any,
    loss: LossChoice = None,
    *,
    sites: str | Iterable[str] | None = None,
    build: Build | None = None,
    seeds: int | Iterable[int] | None = None,
    mask: Tensor | None = None,
    token_axes: TokenAxes | AxesRule | None = None,
    backward: bool = True,
    junctions: bool = False,
    scores: bool = False,
    formats: bool = False,
    spectral: bool = False,
    progress: bool = True,
) -> Profile:
    """Moments of every module output and of its gradient, from one forward and one backward pass.

    model: an nn.Module, left as it was; or a function that builds one, measured at `seeds` initializations (one).
    batch: a tensor, a tuple (positional arguments, or inputs and targets), a mapping (keyword arguments, also a
        BatchEncoding) or a DataLoader; see `sigprop.batches`.
    loss: what is differentiated, as for `predict`: the model's own loss, else its output against white noise, when
        None; "cross_entropy", "mse", "noise", or a function of (output) or (output, batch). See `sigprop.losses`.
    sites: names or patterns (`"*.mlp"`) of the sites to keep; all by default.
    build, seeds: measure over initializations. `build` makes a model, or is a plan that is applied to copies
        of `model`; `seeds` is how many, or which. Columns are then means, with standard errors and medians.
    mask: (sequences, tokens), 1 for a real token; by default the batch's `attention_mask`.
    token_axes: the token axis or axes of every tensor, or a function of site name and tensor; see `layout.py`.
    backward: set to False to measure the forward pass only.
    junctions, scores: also record residual additions (`module.add`) and attention (`module.scores`).
    formats: also give the fractions that would under- or overflow in bf16, fp16 and fp8.
    spectral: also give the largest singular value of every matrix.
    progress: show a bar with the time left, on a terminal and over several seeds.
    """
    require_loss(loss)
    batch = first_batch(batch)
    options = Options(
        sites=[sites] if isinstance(sites, str) else sites,
        mask=mask,
        token_axes=token_axes,
        backward=backward,
        junctions=junctions,
        scores=scores,
        formats=formats,
        spectral=spectral,
    )
    if build is None and callable(model) and not isinstance(model, nn.Module):
        model, build, seeds = None, model, 1 if seeds is None else seeds
    if build is None and seeds is None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is {type(model).__name__}: needs an nn.Module, or build= and seeds=")
        return measure_once(model, batch, loss, options)
    if build is None:
        raise InputError("seeds needs build: a function that makes a model, or a plan to apply to the model")
    return over_initializations(
        lambda made, seed: measure_once(made, batch, loss, options, seed),
        model if isinstance(model, nn.Module) else None,
        build,
        8 if seeds is None else seeds,
        progress,
    )


@runtime_checkable
class Initializer(Protocol):
    """What a plan is to a measurement: something that initializes a model in place."""

    def apply_(self, model: nn.Module, generator: torch.Generator | None = None) -> nn.Module: ...


Build = Callable[[], nn.Module] | Initializer


def over_initializations(
    measure_model: Callable[[nn.Module, int], Profile],
    model: nn.Module | None,
    build: Build,
    seeds: int | Iterable[int],
    progress: bool = True,
) -> Profile:
    """Build a model for each seed, measure it (white noise, where it is used, is drawn anew), and summarize."""
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    require(len(numbers) > 0, "seeds", seeds, "at least one seed")
    profiles = []
    for seed in _with_progress(numbers) if progress else numbers:
        with undisturbed(cuda_devices()) as interrupts, interrupts.let_through():
            torch.manual_seed(seed)
            profiles.append(measure_model(_made(model, build, seed), seed))
    return summarize(profiles, numbers)


def _made(model: nn.Module | None, build: Build, seed: int) -> nn.Module:
    if not isinstance(build, Initializer):
        made = build()
        if not isinstance(made, nn.Module):
            raise InputError(f"build returned {type(made).__name__}: needs an nn.Module")
        return made
    if model is None:
        raise InputError("a plan needs a model to apply it to; pass the model as well")
    made = copy.deepcopy(model)
    device = next(iter(made.parameters())).device
    build.apply_(made, torch.Generator(device).manual_seed(seed))
    return made


def _with_progress(seeds: list[int]) -> Iterable[int]:
    """A progress bar on a terminal when there are several seeds."""
    if len(seeds) < 3 or not sys.stderr.isatty():
        return seeds
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(seeds, description="measuring", console=console, transient=True)


def summarize(profiles: Sequence[Profile], seeds: Sequence[int]) -> Profile:
    """Average profiles of the same network row by row."""
    sites = [_site(rows) for rows in _joined([profile.sites for profile in profiles])]
    parameters = [_parameter(rows) for rows in _joined([profile.parameters for profile in profiles])]
    meta = {**profiles[0].meta, "seeds": list(seeds)}
    losses = [profile.meta["loss_value"] for profile in profiles if "loss_value" in profile.meta]
    if losses:
        meta["loss_value"] = _mean(losses)
    for key in ("first_non_finite", "first_non_finite_gradient"):
        named = [profile.meta[key] for profile in profiles if key in profile.meta]
        if named:
            meta[key] = named[0]
    return Profile(sites, parameters, meta)


def _joined(tables: Sequence[list]) -> list[list]:
    """Rows of the same name, in the order of the first profile; every profile must have the name."""
    found = [{row.name: row for row in table} for table in tables]
    return [[table[row.name] for table in found] for row in tables[0] if all(row.name in table for table in found)]


def _site(rows: list[SiteRow]) -> SiteRow:
    first = rows[0]
    reason = next((row.reason for row in rows if row.reason), "")
    row = SiteRow(first.name, first.depth, status=first.status, reason=reason)
    return _filled(row, rows)


def _parameter(rows: list[ParameterRow]) -> ParameterRow:
    first = rows[0]
    return _filled(ParameterRow(first.name, first.shape, first.role, status=first.status), rows)


def _filled(row, rows: list):
    """Mean, standard error and median of every column and extra."""
    for column in type(row).COLUMNS:
        values = [getattr(item, column) for item in rows]
        setattr(row, column, _mean(values))
        _spread(row, column, values)
    for key in rows[0].extras:
        values = [item.extras.get(key, math.nan) for item in rows]
        row.extras[key] = _mean(values)
        _spread(row, key, values)
    return row


def _mean(values: list[float]) -> float:
    """Plain summation where a value is not finite: infinities of both signs give not-a-number, not an error."""
    return statistics.fmean(values) if all(map(math.isfinite, values)) else sum(values) / len(values)


def _spread(row, key: str, values: list[float]) -> None:
    if len(values) > 1 and all(map(math.isfinite, values)):
        row.errors[key] = deviation(values) / math.sqrt(len(values))
        row.medians[key] = statistics.median(values)


def deviation(values: Sequence[float]) -> float:
    """What `statistics.stdev` gives, which adds fractions and takes fifty times as long."""
    count = len(values)
    return math.dist(values, [statistics.fmean(values)] * count) / math.sqrt(count - 1)

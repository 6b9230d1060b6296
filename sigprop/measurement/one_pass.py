"""One forward and one backward pass of one model, watched."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy as is_uninitialized

from sigprop.batches import as_batch, copied, tensors_in
from sigprop.compat import own_buffers, own_parameters
from sigprop.errors import InputError
from sigprop.isolation import as_written, eagerly, undisturbed, without_observers
from sigprop.losses import LossChoice, Objective, white_noise
from sigprop.measurement.batch import call, send_back, signals_in, what_to_differentiate
from sigprop.measurement.functions import FunctionWatch
from sigprop.measurement.guard import untouched
from sigprop.measurement.layout import AxesRule, TokenAxes, layout_of
from sigprop.measurement.parameters import Accumulated, fetched, large_gradients_let_go, started_parameter_rows
from sigprop.measurement.recorder import NotBuilt, Recorder, Site
from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.sites import DepthCounter


def is_lazy(model: nn.Module) -> bool:
    """Whether a parameter or buffer waits for its first batch."""
    tables = (table for module in model.modules() for table in (own_parameters(module), own_buffers(module)))
    return any(tensor is not None and is_uninitialized(tensor) for table in tables for tensor in table.values())


def built_copy(model: nn.Module, batch: Any) -> nn.Module:
    """A copy that has seen the batch once; the model stays unfinished, as it was."""
    with undisturbed() as interrupts, torch.no_grad(), interrupts.let_through():
        made = copy.deepcopy(model)
        call(made, copied(batch))
    return made


@dataclass(frozen=True)
class Options:
    """What to watch, as the arguments of `measure` say; and whether hooks of the user run."""

    sites: Iterable[str] | None = None
    mask: Tensor | None = None
    token_axes: TokenAxes | AxesRule | None = None
    backward: bool = True
    junctions: bool = False
    scores: bool = False
    formats: bool = False
    spectral: bool = False
    observers: bool = True


def measure_once(model: nn.Module, batch: Any, loss: LossChoice, options: Options, noise_seed: int = 0) -> Profile:
    """Run the model once and return its profile.

    It is run again where a gradient comes in parts, and a copy of it where modules or parameters appear with the first
    batch only.
    """
    model = as_written(model)
    batch = as_batch(batch, model)
    if is_lazy(model):
        model = built_copy(model, batch)
    kept = False
    while True:
        try:
            return _measured(model, batch, loss, options, noise_seed, kept)
        except Accumulated:
            kept = True
        except NotBuilt:
            model = built_copy(model, batch)


def _measured(model: nn.Module, batch: Any, loss: LossChoice, options: Options, noise_seed: int, kept: bool) -> Profile:
    modules = dict(model.named_modules())
    layout = layout_of(batch, options.mask, options.token_axes)
    recorder = Recorder(modules, layout, options.sites, options.formats)
    tensors = [tensor for _, tensor in tensors_in(batch)]
    with (
        untouched(modules.values(), tensors) as interrupts,
        eagerly(modules.values()),
        torch.inference_mode(False),
        torch.set_grad_enabled(options.backward),
        _watched(model, recorder, options),
        large_gradients_let_go(modules, kept) as let_go,
        interrupts.let_through(),
    ):
        objective = _run(model, copied(batch), loss, recorder, options.backward, noise_seed)
        recorder.require_matches()
        if options.mask is not None and options.sites is None:
            layout.require_mask_fitted()
        rows, parameters = _rows(recorder, modules, options.spectral, let_go)
    meta: dict[str, Any] = {"kind": "measure", "model": type(model).__name__}
    if objective is not None:
        meta["loss"] = objective.name
        if not objective.is_noise:
            meta["loss_value"] = float(objective.tensor)
    meta |= _non_finite(recorder, rows)
    return Profile(rows, parameters, meta)


@contextmanager
def _watched(model: nn.Module, recorder: Recorder, options: Options) -> Iterator[None]:
    """Hooks on modules, and a mode that watches functions where that was asked for."""
    if not options.observers:
        without_observers(model)
    watches_functions = options.junctions or options.scores
    with ExitStack() as stack:
        stack.enter_context(recorder.attached(track_modules=watches_functions))
        if watches_functions:
            stack.enter_context(FunctionWatch(recorder, options.junctions, options.scores))
        yield


def _run(
    model: nn.Module, batch: Any, loss: LossChoice, recorder: Recorder, backward: bool, noise_seed: int
) -> Objective | None:
    """Forward and backward; returns what was differentiated, if anything was."""
    with recorder.during("forward"):
        output = call(model, batch)
    recorder.require_all_modules(model)
    if not backward:
        if not signals_in(output):
            raise InputError(f"{type(model).__name__} returned no floating-point tensor")
        return None
    chosen = what_to_differentiate(batch, output, loss)
    del output
    gradient = white_noise(chosen.tensor, noise_seed) if chosen.is_noise else None
    with recorder.during("backward"):
        send_back(model, chosen.tensor, gradient)
    return Objective(chosen.tensor.detach(), chosen.name)


def _rows(
    recorder: Recorder, modules: dict[str, nn.Module], spectral: bool, let_go: dict[Tensor, float]
) -> tuple[list[SiteRow], list[ParameterRow]]:
    """Of sites and parameters; sums over parameters are under way while the device is waited for."""
    parameter_rows = started_parameter_rows(modules, spectral, let_go)
    return _site_rows(recorder), parameter_rows()


def _site_rows(recorder: Recorder) -> list[SiteRow]:
    signals, gradients = recorder.moments()
    missing = [math.nan] * 3
    values = _read_values(recorder.sites)
    depth_of = DepthCounter()
    rows = []
    for ticket, site in enumerate(recorder.sites):
        source = ticket if site.same is None else site.same
        mean, variance, correlation = signals.get(source, missing)
        _, grad_variance, grad_correlation = gradients.get(source, missing)
        row = SiteRow(site.name, depth_of(site.name), mean, variance, correlation, grad_variance, grad_correlation)
        for key, value in values[source].items():
            if key in SiteRow.COLUMNS:
                setattr(row, key, value)
            else:
                row.extras[key] = value
        rows.append(row)
    return rows


def _read_values(sites: list[Site]) -> list[dict[str, float]]:
    """The numbers that sites hold on their device, with one transfer."""
    numbers = iter(fetched([value.double() for site in sites for value in site.values.values()]))
    return [{key: next(numbers) for key in site.values} for site in sites]


def _non_finite(recorder: Recorder, rows: list[SiteRow]) -> dict[str, Any]:
    """Name the first site with a value, or gradient, that is not finite, in the order of execution."""
    found: dict[str, Any] = {}
    for row in rows:
        if not math.isfinite(row.variance):
            found["first_non_finite"] = row.name
            row.reason = "the first value that is not finite appeared here"
            break
    for ticket in recorder.gradient_order:
        row = rows[ticket]
        if not math.isfinite(row.grad_variance):
            found["first_non_finite_gradient"] = row.name
            row.reason = row.reason or "the first gradient that is not finite appeared here"
            break
    return found

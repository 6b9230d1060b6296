"""`measure`: what the signals and gradients of a real model are, with the model left as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from sigprop.batches import first_batch
from sigprop.errors import InputError
from sigprop.losses import LossChoice, require_loss
from sigprop.measurement.initializations import Build, over_initializations
from sigprop.measurement.layout import AxesRule, TokenAxes
from sigprop.measurement.one_pass import Options, measure_once
from sigprop.results import Profile


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

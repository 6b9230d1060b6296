"""`trace`: a model run once on a batch, without weights, as a graph of records with their states."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sigprop.batches import copied, run, tensors_in
from sigprop.capture.capture import EXPERTS, REPEATED, THINNED, Capture, CaptureOptions
from sigprop.capture.experts_as_one import followed_as_one
from sigprop.capture.gradient_start import loss_start, terms_of
from sigprop.capture.mode import CaptureMode
from sigprop.capture.record import Field, Uneven, Weight
from sigprop.capture.repeated_blocks import RunOfBlocks, jumped_over
from sigprop.capture.replayed_heads import heads_in
from sigprop.compat import use_plain_settings
from sigprop.distributions import skeleton_of
from sigprop.errors import Fault, InputError, SigpropError, UnsupportedError
from sigprop.graph.evaluate import Evaluation, Start
from sigprop.graph.graph import record_of
from sigprop.isolation import (
    as_written,
    eagerly,
    observers,
    seed_all,
    undisturbed,
    without_backward_hooks,
    without_observers,
)
from sigprop.losses import LossChoice, first_signal, objective

PASSING = ("sigprop.models", "sigprop.batches", "sigprop.capture.mode")
"""Where an error is raised by a model of ours, by a forward that takes no such batch, or by torch in a call handed
on as it is."""


@dataclass
class TracedModel:
    """What one run found. `weights` are the parameters, `sites` the module outputs, in order of execution.

    `unheard` names the modules whose forward hooks, put there by the user, were not run, `unfollowed` those with hooks
    on gradients, which no theory follows.
    The graph is only read from then on; see `Evaluation`.
    """

    capture: Capture
    output: Any
    batch: Any = None
    unheard: list[str] = field(default_factory=list)
    unfollowed: list[str] = field(default_factory=list)
    runs: list[RunOfBlocks] = field(default_factory=list)

    @property
    def sites(self) -> list[tuple[str, Field]]:
        return self.capture.sites

    @property
    def passes(self) -> list[str]:
        """The shortcuts that were used."""
        thinned = any(item.leaves_out for item in heads_in(self.states))
        used = {REPEATED: any(run.skipped for run in self.runs), EXPERTS: bool(self.capture.repeats), THINNED: thinned}
        return [name for name, holds in used.items() if holds]

    @property
    def states(self) -> Evaluation:
        """Under the model's own laws."""
        return self.capture.states

    @property
    def weights(self) -> dict[str, Weight]:
        return self.capture.parameters

    @property
    def signal(self) -> Field | None:
        """The first floating-point output, if it depends on parameters."""
        found = record_of(first_signal(self.output))
        return found if isinstance(found, Field) else None

    @property
    def losses(self) -> list[Field]:
        """What the model's own loss adds up; where some of it are loss functions, only those (not what balances
        experts)."""
        numbers = (record_of(item) for _, item in tensors_in(self.output) if item.dim() == 0)
        terms = [term.record for item in numbers if item for term in terms_of(item)]
        terms = [item for item in terms if isinstance(item, Field) and item.call is not None]
        judging = [item for item in terms if item.call and ("loss" in item.call.name or "entropy" in item.call.name)]
        return judging or terms

    @property
    def predictions(self) -> list[Field]:
        """The first output, else what the model's own loss judges."""
        return self.losses if self.signal is None else [self.signal]

    def differentiate(self, loss: LossChoice = None, states: Evaluation | None = None) -> tuple[Start, str]:
        """Where the gradient starts, by the rule of `sigprop.losses`, and the words for it."""
        states = states or self.states
        with undisturbed() as interrupts, CaptureMode(self.capture).watching(loss=True), interrupts.let_through():
            chosen = objective(self.output, self.batch, loss, depends=lambda tensor: record_of(tensor) is not None)
        found = record_of(chosen.tensor)
        if found is None or not found.requires_grad or (chosen.is_noise and not isinstance(found, Field)):
            raise InputError(
                f"{chosen.name} of {type(self.capture.model).__name__} does not depend on its parameters: "
                "nothing to differentiate"
            )
        with undisturbed() as interrupts, self.capture.lock, torch.enable_grad(), interrupts.let_through():
            if chosen.is_noise and isinstance(found, Field):
                start = Start.noise(found.node, states)
            else:
                start = loss_start(states, found)
        return start, chosen.name


def trace(model: nn.Module, batch: Any, **options: Any) -> TracedModel:
    """Run the model's own forward on the batch with its parameters on meta; the options are `CaptureOptions`.

    The model is left as it was.
    """
    return followed(model, batch, CaptureOptions(**options))


def followed(model: nn.Module, batch: Any, options: CaptureOptions, copy: bool = True) -> TracedModel:
    """The same; `copy=False` is for a model built on meta for this trace alone. Raises `Uneven` where the pass of
    repeated blocks cannot be used."""
    model = as_written(model)
    _require_python(model)
    unheard = list(dict.fromkeys(name for name, _, _ in observers(model)))
    with undisturbed() as interrupts:
        with interrupts.let_through():
            twin = skeleton_of(model) if copy else model
        without_observers(twin)
        use_plain_settings(twin)
        capture, passes = Capture(twin, options), options.passes
        batch = copied(batch)
        seed_all(options.first_seed)
        with (
            without_backward_hooks(twin) as unfollowed,
            eagerly(twin.modules()),
            followed_as_one(capture) if EXPERTS in passes else nullcontext(),
            jumped_over(capture) if REPEATED in passes else nullcontext([]) as runs,
            CaptureMode(capture).watching(),
            interrupts.let_through(),
        ):
            output = _call(twin, batch)
    return TracedModel(capture, output, batch, unheard, unfollowed, runs)


def _require_python(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(f"{name or 'the model'} is TorchScript, which nothing can be seen inside of")


def _call(model: nn.Module, batch: Any) -> Any:
    try:
        return run(model, batch)
    except (SigpropError, Uneven):
        raise
    except Exception as error:
        if _is_own(error):
            raise Fault(f"{type(error).__name__}: {error}") from error
        raise InputError(_refusal(model, error)) from error


def _is_own(error: Exception) -> bool:
    """Whether the model did not raise it, nor torch in a call of the model's, but the interpreter."""
    step, last = error.__traceback__, ""
    while step is not None:
        last = step.tb_frame.f_globals.get("__name__", "")
        step = step.tb_next
        while step is not None and step.tb_frame.f_globals.get("__name__", "").startswith("torch"):
            step = step.tb_next
    return last.startswith("sigprop.") and not last.startswith(PASSING)


def _refusal(model: nn.Module, error: Exception) -> str:
    names = {id(module): name for name, module in model.named_modules()}
    where, line, step = "", "", error.__traceback__
    while step is not None:
        owner = step.tb_frame.f_locals.get("self")
        if id(owner) in names:
            where = names[id(owner)] or type(model).__name__
            line = f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    return (
        f"{type(model).__name__} could not be traced: {type(error).__name__}: {error}\n"
        f"  in {where!r}, {line}\n"
        "  Check the batch; a branch on the values of a tensor, or a shape that depends on them, cannot be predicted."
    )

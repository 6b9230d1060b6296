"""`check`: predict, measure, compare and diagnose a model at initialization."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from sigprop.batches import Labelled, as_batch, tensors_in
from sigprop.checks.evaluation import Experiment
from sigprop.checks.findings.first_update import KNOWN
from sigprop.checks.prescribing import Fix, prescribe
from sigprop.checks.registry import checks
from sigprop.checks.subject import Subject
from sigprop.checks.tables import curves, margins, module_tree, parameter_lines
from sigprop.distributions import build
from sigprop.errors import InputError, SigpropError, UnknownNameError, require
from sigprop.inputs import TOKENS, as_module, made_up_batch
from sigprop.isolation import undisturbed
from sigprop.losses import NOISE, LossChoice, require_loss
from sigprop.measurement.batch import signals_in
from sigprop.plans import Plan
from sigprop.results import Profile
from sigprop.results.report import Finding, Report

QUICK_TOKENS = 32
"""Of the synthetic batch of a quick check: below that, reading the weights costs more than the passes."""


def check(
    model: Any,
    batch: Any = None,
    *,
    loss: LossChoice = None,
    plan: Plan | None = None,
    base: nn.Module | None = None,
    optimizer: str | None = None,
    lr: float = 1e-3,
    tokens: int = TOKENS,
    prescription: bool = True,
    quick: bool = False,
    seed: int = 0,
) -> Report:
    """What is wrong with a model's initialization: findings with evidence, cause and a prescription that was evaluated.

    model: an nn.Module (left as it was), a Hugging Face config, the path of a `config.json`, or `file.py:factory`.
        With weights it is also measured; without (on the meta device) everything is predicted.
    batch: a tensor, a tuple (arguments, or inputs and targets), a mapping or a DataLoader; random when None, of
        `tokens` tokens where the model has room for them.
    loss: what is differentiated, as for `predict` and `measure`: the model's own loss, else white noise, when None.
    plan: what the weights are supposed to carry; they are compared with it.
    base: the same architecture at another width or depth, to compare the rules that scale it.
    optimizer, lr: name one (`adamw`, `sgd`, ...) to judge the first update of every group against its weights.
    prescription: set to False to leave out the search for a fix.
    quick: look at the weights and measure one pass of at most 32 synthetic tokens; nothing is predicted or tried.
    """
    require(tokens >= 2, "tokens", tokens, "at least 2")
    require_loss(loss)
    require(lr > 0, "lr", lr, "a positive number")
    if optimizer is not None and optimizer.lower() not in KNOWN:
        raise UnknownNameError("optimizer", optimizer, KNOWN, "The first update of these is known.")
    started = time.perf_counter()
    with undisturbed(collected=True) as interrupts, interrupts.let_through():
        loaded = as_module(model, build)
        made_up = batch is None
        tokens = min(tokens, QUICK_TOKENS) if quick else tokens
        batch = made_up_batch(loaded, tokens, seed) if made_up else as_batch(batch, loaded)
        _require_finite(batch)
        subject = Subject(loaded, batch, plan=plan, base=base, optimizer=optimizer, lr=lr, quick=quick, made_up=made_up)
        subject.evaluation = Experiment(loaded, batch, loss, seed)
        try:
            _profile(subject)
        except SigpropError:
            if not (made_up and isinstance(batch, Mapping) and "labels" in batch):
                raise
            subject.batch = {key: value for key, value in batch.items() if key != "labels"}
            subject.evaluation = Experiment(loaded, subject.batch, loss, seed)
            subject.notes[:] = ["the model's own loss does not take synthetic labels; differentiated noise"]
            _profile(subject)
        findings = [finding for kind in checks().values() for finding in kind(subject)]
        fix = prescribe(subject, findings) if prescription and not quick else Fix(None, None, findings)
        findings = fix.findings
        return Report(
            findings,
            margins(subject),
            curves(subject, fix.profile),
            module_tree(subject, findings),
            parameter_lines(subject, findings),
            _meta(subject, made_up, time.perf_counter() - started, findings),
            plan=fix.plan,
            predicted=subject.predicted,
            measured=subject.measured,
            prescribed=fix.profile,
        )


def _require_finite(batch: Any) -> None:
    for place, tensor in signals_in(batch):
        if not tensor.isfinite().all():
            raise InputError(f"the batch{place} has values that are not finite: the model cannot be judged on it")


def _profile(subject: Subject) -> None:
    """Predict, and measure where there are weights; what cannot be done is noted, and both failing is an error."""
    assert subject.evaluation is not None
    reasons = []
    if not subject.quick:
        try:
            subject.predicted = subject.evaluation.predicted()
            if subject.predicted.meta.get("source") == "simulate":
                subject.notes.append(
                    f"predicted by {subject.predicted.meta['draws']} simulated initializations: theory follows "
                    "so many positions in minutes only"
                )
        except SigpropError as error:
            reasons.append(error)
            subject.notes.append(f"not predicted: {str(error).splitlines()[0]}")
    if not any(parameter.is_meta for parameter in subject.model.parameters()):
        try:
            subject.measured = subject.evaluation.measured()
        except InputError as error:
            reasons.append(error)
            subject.warnings.append(f"Not measured: {str(error).splitlines()[0]}.")
    elif subject.quick:
        raise InputError("a quick check measures: needs a model with weights, not on the meta device")
    if subject.profile is None:
        raise reasons[-1]


def _meta(subject: Subject, made_up: bool, seconds: float, findings: list[Finding]) -> dict[str, Any]:
    profile = subject.profile
    return {
        "model": subject.model_name,
        "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
        "layers": subject.layers,
        "batch": "synthetic" if made_up else "given",
        "loss": None if profile is None else profile.meta.get("loss"),
        "loss_in_words": _loss_in_words(profile),
        "batch_in_words": f"a {'synthetic' if made_up else 'given'} batch of {_in_words(subject.batch)}",
        "warnings": [*subject.warnings, *_warnings(subject)],
        "predicted": subject.predicted is not None,
        "measured": subject.measured is not None,
        "notes": subject.notes,
        "seconds": round(seconds, 2),
        "sigprop": _version(),
        "torch": torch.__version__,
    }


def _loss_in_words(profile: Profile | None) -> str:
    name = "" if profile is None else str(profile.meta.get("loss"))
    return {NOISE: "the output against white noise", "cross_entropy": "cross entropy", "mse": "the squared error"}.get(
        name, name
    )


def _in_words(batch: Any) -> str:
    """Shapes, and whether they hold token ids or numbers."""
    if isinstance(batch, Mapping):
        parts = {key: _in_words(item) for key, item in batch.items() if isinstance(item, torch.Tensor)}
        return ", ".join(f"{words} ({key})" for key, words in parts.items())
    if isinstance(batch, (tuple, list)):
        return " and ".join(_in_words(item) for item in batch if isinstance(item, torch.Tensor))
    shape = " x ".join(map(str, batch.shape)) if isinstance(batch, torch.Tensor) else type(batch).__name__
    ids = isinstance(batch, torch.Tensor) and not batch.is_floating_point()
    return f"{shape} {'ids' if ids else 'numbers'}"


def _warnings(subject: Subject) -> list[str]:
    """What makes the gradient of this experiment unlike that of a training."""
    output, profile = subject.observed.output, subject.profile
    first = next((tensor for _, tensor in tensors_in(subject.batch)), None)
    if output is None or profile is None or profile.meta.get("loss") != NOISE:
        return []
    if isinstance(subject.batch, Labelled):
        return [
            'The labels were not used: name a loss (in the file, `loss = "cross_entropy"`, `loss = "mse"` or '
            "`def loss(output, batch)`) to judge gradients as in training."
        ]
    if first is not None and output.dim() == 3 and first.dim() == 2 and output.shape[1] == 1 < first.shape[1]:
        return [
            f"The output holds 1 of {first.shape[1]} positions, so that all gradient passes through the last token: "
            "give targets (or a loss) to judge gradients as in training."
        ]
    return []


def _version() -> str:
    try:
        return version("sigprop")
    except PackageNotFoundError:
        return "not installed"

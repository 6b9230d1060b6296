"""`train`: one model, one stream of batches, one settings object; a run that can be killed and goes on.

    batches = TextBatches(tokens_of(load_text("corpus.txt")), passages=16, length=256)
    run = train(model, batches, Settings(steps=300, lr=2**-7), plan=plan, folder="runs/first")

A batch is a function of its step and a checkpoint holds all else, so that a resumed run on a CPU is bitwise the run
that was not stopped.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.errors import InputError
from sigprop.losses import LossChoice
from sigprop.plans import Plan
from sigprop.plans.scaling.training import make_optimizers
from sigprop.research.lab.settings import Settings
from sigprop.research.lab.steps import Batch, Batches, Loss, called, make_step
from sigprop.results.files import append, json_lines, write_whole


def first_bad_site(model: nn.Module, batch: Batch) -> str:
    """The module's name, or the parameter's that is not finite already; empty if all outputs are finite."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"parameter {name}"
    found: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if not found and isinstance(output, Tensor) and not bool(torch.isfinite(output).all()):
            found.append(names[module] or type(model).__name__)

    handles = [module.register_forward_hook(look) for module in names]
    try:
        with torch.no_grad():
            called(model, batch, model)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else ""


class RunLog:
    """Entries in memory and, with a path, on disk. Resuming at a step forgets what was written after it."""

    def __init__(self, path: Path | None = None):
        self.path = path
        self.entries = json_lines(path) if path is not None and path.is_file() else []

    def write(self, **entry: Any) -> None:
        self.entries.append(entry)
        if self.path is not None:
            append(self.path, json.dumps(entry) + "\n")

    def rewind(self, step: int) -> None:
        """Forget the entries of this step and later ones."""
        self.entries = [entry for entry in self.entries if entry["step"] < step]
        if self.path is not None and self.path.is_file():
            write_whole(self.path, "".join(json.dumps(entry) + "\n" for entry in self.entries))


EVALUATED = 8
"""Batches of an evaluation."""
FREE = ("device", "mode", "log_every", "checkpoint_every")
"""Settings that may differ between a run and its resumption."""


@dataclass
class Run:
    """Losses of every step; `ended` says why it ended: "finished", or where a number was no longer finite."""

    losses: list[float] = field(default_factory=list)
    evaluations: dict[int, float] = field(default_factory=dict)
    ended: str = "finished"
    seconds: float = 0.0

    @property
    def last(self) -> float:
        """Mean loss of the last tenth of the steps."""
        if self.ended != "finished":
            return math.inf
        tail = self.losses[-max(len(self.losses) // 10, 1) :]
        return sum(tail) / len(tail)


def train(
    model: nn.Module,
    batches: Batches,
    settings: Settings | None = None,
    *,
    plan: Plan | None = None,
    loss: LossChoice = None,
    optimizers: Sequence[torch.optim.Optimizer] | None = None,
    validation: Batches | None = None,
    folder: str | Path | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Run:
    """Train a model in place.

    plan: gives the groups of the optimizer; apply it to the model yourself, before.
    loss: as for `measure`; by default the model's own, or the usual one of the batches.
    optimizers: instead of the one that `settings.optimizer` names.
    folder: where journal and checkpoint lie; a run that is found there is resumed.
    progress: called with step and loss whenever these are logged.
    """
    settings = settings or Settings()
    model.to(settings.device).train()
    chosen = {} if settings.betas is None else {"betas": settings.betas}
    usual = (settings.optimizer, model, plan, settings.lr, settings.weight_decay)
    made = list(optimizers or make_optimizers(*usual, **chosen))
    told = Loss(loss, getattr(batches, "loss", None))
    return _Training(model, batches, settings, made, told, validation, Path(folder) if folder else None).run(progress)


@dataclass
class _Training:
    model: nn.Module
    batches: Batches
    settings: Settings
    optimizers: list[torch.optim.Optimizer]
    loss: Loss
    validation: Batches | None
    folder: Path | None

    def __post_init__(self) -> None:
        self.peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.checkpoint = self.folder / "checkpoint.pt" if self.folder else None
        self.journal = RunLog(self.folder / "journal.jsonl" if self.folder else None)
        self.found = Run()
        self.waiting: list[Tensor] = []

    def run(self, progress: Callable[[int, float], None] | None) -> Run:
        torch.manual_seed(self.settings.seed)
        first, started = self._resumed(), time.perf_counter()
        before = self.found.seconds
        step_of = make_step(self.model, self.loss, self.settings.precision, self.settings.mode)
        for step in range(first, self.settings.steps):
            batch = self._on_device(self.batches(step))
            self.waiting.append(step_of(batch))
            if self._is_due(self.settings.log_every, step) and not self._write_down(step, batch, progress):
                break
            self._update(step)
            self.found.seconds = before + time.perf_counter() - started
            self._after(step)
        return self.found

    def _update(self, step: int) -> None:
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        factor = self.settings.schedule(step)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.step()

    def _write_down(self, step: int, batch: Batch, progress: Any) -> bool:
        """Take in the losses since the last time; False if one of them is not finite."""
        values = [float(value) for value in self.waiting]
        first = step + 1 - len(values)
        self.waiting = []
        self.found.losses += values
        bad = next((place for place, value in enumerate(values) if not math.isfinite(value)), None)
        if bad is not None:
            site = first_bad_site(self.model, batch)
            self.found.ended = f"loss not finite at step {first + bad}" + (f", first at {site}" if site else "")
            self.journal.write(step=first + bad, loss=None, ended=self.found.ended)
            return False
        self.journal.write(step=step, loss=values[-1], seconds=round(self.found.seconds, 3))
        if progress is not None:
            progress(step, values[-1])
        return True

    def _after(self, step: int) -> None:
        if self.validation is not None and self._is_due(self.settings.evaluate_every, step):
            value = self.evaluate(self.validation)
            self.found.evaluations[step] = value
            self.journal.write(step=step, evaluation=value)
        if self.checkpoint is not None and self._is_due(self.settings.checkpoint_every, step):
            save_run(self.checkpoint, self.model, self.optimizers, self._facts(step + 1))

    def _is_due(self, every: int, step: int) -> bool:
        return bool(every) and ((step + 1) % every == 0 or step + 1 == self.settings.steps)

    @torch.no_grad()
    def evaluate(self, batches: Batches) -> float:
        """Mean loss over a few batches, the model in evaluation mode."""
        self.model.eval()
        values = []
        for number in range(EVALUATED):
            batch = self._on_device(batches(number))
            value = self.loss(called(self.model, batch, self.model), batch)
            values.append(float(value))
        self.model.train()
        return sum(values) / len(values)

    def _on_device(self, batch: Batch) -> Batch:
        return {key: value.to(self.settings.device, non_blocking=True) for key, value in batch.items()}

    def _facts(self, step: int) -> dict[str, Any]:
        run = self.found
        return {
            "step": step,
            "settings": self.settings.to_json(),
            "losses": run.losses + [float(value) for value in self.waiting],
            "evaluations": list(run.evaluations.items()),
            "seconds": run.seconds,
        }

    def _resumed(self) -> int:
        """Where to go on: 0, or the step of the checkpoint."""
        if self.checkpoint is None or not self.checkpoint.is_file():
            self.journal.rewind(0)
            return 0
        facts = load_run(self.checkpoint, self.model, self.optimizers)
        own = self.settings.to_json()
        for name, value in facts["settings"].items():
            if name not in FREE and own.get(name) != value:
                raise InputError(
                    f"{self.checkpoint} was trained with {name} = {value!r}, not {own.get(name)!r}: "
                    "give the same settings, or another folder"
                )
        self.found = Run(facts["losses"], dict(map(tuple, facts["evaluations"])), seconds=facts["seconds"])
        self.journal.rewind(facts["step"])
        return facts["step"]


# -- a run on disk, written whole

FORMAT = 2


def save_run(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], facts: dict[str, Any]) -> None:
    """Parameters, buffers, the optimizers' states, random states and facts (step, losses, settings)."""
    random = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    held = {"format": FORMAT, "model": model.state_dict(), "optimizers": states, "random": random, "facts": facts}
    content = io.BytesIO()
    torch.save(held, content)
    write_whole(path, content.getvalue())


def load_run(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    """Put everything back where it was; returns the facts. No code of the file is run."""
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, UnpicklingError) as error:
        raise InputError(f"{path} is not a checkpoint that can be read: {error}") from error
    if held.get("format") != FORMAT:
        raise InputError(f"{path} has format {held.get('format')!r}: this version reads {FORMAT}")
    try:
        model.load_state_dict(held["model"])
    except RuntimeError as error:
        raise InputError(f"{path} is of another model: {error}") from error
    for optimizer, state in zip(optimizers, held["optimizers"], strict=True):
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    torch.set_rng_state(held["random"][0])
    if len(held["random"]) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(held["random"][1])
    return held["facts"]

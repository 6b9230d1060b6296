"""`Watch`: a training run observed from the passes it makes anyway.

Between sampled steps nothing is attached to the model or the optimizer; `step` counts, and keeps the loss. At a sampled
step hooks are put on before the pass and taken off after it. Whatever goes wrong in here is told as a warning, and the
training goes on.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from sigprop.compat import is_compiled
from sigprop.errors import InputError, NonFiniteError, SigpropError, require
from sigprop.isolation import as_written, interrupts_held
from sigprop.measurement.layout import AxesRule, TokenAxes
from sigprop.monitoring.findings.base import RunContext, findings_of
from sigprop.monitoring.history import History, JsonLines, LossReader, Sample, read_samples
from sigprop.monitoring.ranks import StepRecord, join, ranks_of
from sigprop.monitoring.recording import GiveUp, is_norm
from sigprop.monitoring.reporting import report_of, write_crash, write_page
from sigprop.monitoring.sampled_pass import SampledPass, read_numbers
from sigprop.monitoring.scalars import Scalars, everything, folded
from sigprop.monitoring.sinks.base import Sink, open_sink
from sigprop.monitoring.updates import UpdateMeter, trained_parameters
from sigprop.results import Profile
from sigprop.results.report import Finding, Report
from sigprop.sites import modules_of, unwrap

LOGGER = logging.getLogger("sigprop.monitoring")
TOLD = ("name", "severity", "title", "cause", "sites", "parameters")
"""What the history says of a finding, beside its evidence."""
JUMP_PAUSE = 4
"""Steps between a sample and one that a jump of the loss asks for."""
WATCHED: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Watch]] = weakref.WeakKeyDictionary()


class WatchWarning(UserWarning):
    """Something kept a watch from doing its work; the training is not touched by it."""


class Watch:
    """Observes a run: call `step(loss)` after each optimizer step.

    every: sample steps 0, every, 2 * every, ...
    predicted: a `Profile` from `predict`, to compare the first sample with.
    folder: gets `history.jsonl`, and `crash.json` when the run breaks.
    sinks: names (`tensorboard`, `wandb`, `mlflow`, `trackio`) or sinks of your own.
    stop_on: `"nonfinite"` raises `NonFiniteError` once a loss, signal, gradient or parameter is not finite.
    optimizer: read only this one; by default every optimizer that holds parameters of the model.
    scaler: the GradScaler in use, so that gradients are told without its scale.
    start: the step to count from. After step 0 the history in `folder` is read and continued.
    group: the processes that train together, where the model (DDP, FSDP2, a device mesh) does not know them.
    token_axes: as for `measure`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        every: int = 50,
        predicted: Profile | None = None,
        *,
        folder: str | Path = "sigprop-watch",
        sinks: Iterable[str | Sink] = (),
        stop_on: str | None = None,
        scaler: Any = None,
        start: int = 0,
        group: Any = None,
        token_axes: TokenAxes | AxesRule | None = None,
    ):
        if not isinstance(model, nn.Module):
            raise InputError(f"model is {type(model).__name__}: needs an nn.Module")
        require(isinstance(every, int) and every > 0, "every", every, "a whole number of steps above zero")
        require(stop_on in (None, "nonfinite"), "stop_on", stop_on, '"nonfinite" or None')
        self.ranks = ranks_of(model, group)
        self.model = _inner(model)
        self._given = model
        self.every = every
        self.folder = Path(folder)
        self.stop_on = stop_on
        self.scaler = scaler
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        self.steps = start
        self.findings: list[Finding] = []
        self.scalars = Scalars({}, {})
        self._token_axes = token_axes
        self._told: set[str] = set()
        self._losses = LossReader()
        self._pass: SampledPass | None = None
        self._meter: UpdateMeter | None = None
        self._asked = False
        self._closed = False
        self._last_sampled = start
        self._file: JsonLines | None = None
        self._sinks: list[Sink] = []
        self._open(sinks, start)
        self.history = History(self.ranks.joined(self._saved(), lambda saved: saved[0]) if start else None)
        self._context = RunContext(predicted=predicted, norms=_norm_gains(self.model), fresh=start == 0)
        self._replace_other()
        self._arm_if_due()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and not isinstance(error, NonFiniteError):
            self._on_crash(error)
        self.close()

    def __del__(self) -> None:
        """A watch that nobody holds has nothing on: an interrupt may come before `with` has begun."""
        if getattr(self, "_pass", None) is not None:
            self._disarm()

    @property
    def latest(self) -> Sample | None:
        return self.history.samples[-1] if self.history.samples else None

    def everything(self) -> dict[str, float]:
        """Every number of the last sample, unfolded."""
        return everything(self.latest) if self.latest is not None else {}

    def report(self, path: str | Path | None = None) -> Report:
        """The run so far as a `Report`; with `path` also as one HTML file, charts over the steps included."""
        found = report_of(type(self.model).__name__, self.history, self.findings)
        if path is not None and self.ranks.first:
            write_page(found, self.history, path)
        return found

    def sample_next(self) -> None:
        """Sample the coming step, whatever its number."""
        self._asked = True
        self._arm_if_due()

    def step(self, loss: Any = None) -> Sample | None:
        """Say that an optimizer step was made, with its loss; returns the sample if this step was sampled."""
        if self._closed:
            self._warn("closed", "step() was called on a watch that is closed")
            return None
        sample = None
        if loss is not None:
            self._losses.take(self.steps, loss)
        if self._pass is not None:
            sample = self._sampled(loss)
        bad_loss = self._read_losses(wait=sample is not None)
        self.steps += 1
        if bad_loss and sample is None and self.ranks.size == 1:
            self._judge()
            self._asked = True
        elif sample is None and self.ranks.size == 1 and self.history.loss_jumped:
            self._asked = self._asked or self.steps - self._last_sampled > JUMP_PAUSE
        self._arm_if_due()
        if self.stop_on and self._broken(sample):
            self._stop()
        return sample

    def close(self) -> None:
        """Take off what is on, and close the sinks. The history stays readable."""
        if self._closed:
            return
        self._disarm()
        self._read_losses(wait=True)
        self._closed = True
        if WATCHED.get(self.model, lambda: None)() is self:
            del WATCHED[self.model]
        for sink in list(self._sinks):
            self._through(sink, "close")

    # one sampled step

    def _arm_if_due(self) -> None:
        if self._pass is not None or not (self._asked or self.steps % self.every == 0):
            return
        self._asked = False
        failed = _teller(self)
        with interrupts_held():
            self._pass = SampledPass(self.model, self._token_axes, self.scaler, self.ranks.size > 1, failed)
            self._meter = UpdateMeter(trained_parameters(self.model), self.ranks.size, self.optimizer, failed)
            self._pass.attach(any(map(is_compiled, self._given.modules())))
            self._meter.attach()
        if self._pass.eager:
            self._note("eager", "sampled steps run eagerly: the model is compiled, and hooks see only what is not")

    def _disarm(self) -> None:
        with interrupts_held():
            if self._pass is not None:
                self._pass.detach()
            if self._meter is not None:
                self._meter.detach()
            self._pass = self._meter = None

    def _sampled(self, loss: Any) -> Sample | None:
        taken, meter = self._pass, self._meter
        assert taken is not None
        assert meter is not None
        self._disarm()
        record = StepRecord(self.steps)
        try:
            record = self._record(taken, meter, loss)
        except Exception as error:
            self._failed(error)
        sample: Sample = self.ranks.joined(record, lambda records: join(records, self.ranks.data))
        if not sample.sites and not sample.groups:
            return None
        self.history.add(sample)
        self._last_sampled = self.steps
        if not math.isnan(self.history.noise_scale):
            sample.run["noise_scale"] = self.history.noise_scale
        self.scalars = folded(sample)
        if self._file is not None:
            self._through(self._file, "event", "sample", **sample.to_dict())
        for sink in list(self._sinks):
            self._through(sink, "write", sample.step, self.scalars.values)
        self._read_losses(wait=True)
        self._judge()
        return sample

    def _record(self, taken: SampledPass, meter: UpdateMeter, loss: Any) -> StepRecord:
        self._complain(taken, meter)
        meter.finish()
        sites = taken.rows()
        record = StepRecord(self.steps, sites=sites, bad=taken.bad(sites), eager=taken.eager)
        given = loss if loss is not None else taken.loss
        if given is not None:
            record.loss = float(given.detach() if isinstance(given, Tensor) else given)
            if loss is None:
                self._losses.take(self.steps, record.loss)
        record.parameters = read_numbers(meter.sums)
        record.shifts = {
            name: (total.cpu(), float(square), count) for name, (total, square, count) in taken.recorder.shifts.items()
        }
        record.loss_scale, record.first_bad_loss = taken.loss_scale, self.history.first_bad_loss
        return record

    def _complain(self, taken: SampledPass, meter: UpdateMeter) -> None:
        """Name what kept a step from being sampled as it should."""
        kind, step = type(self.model).__name__, self.steps
        if taken.failure is not None:
            return
        if taken.forwards == 0:
            self._warn("absent", f"step {step}: the watched {kind} was not run; if it was replaced, watch the new one")
        elif taken.gradients == 0:
            self._warn("backward", f"step {step}: no gradient reached the watched {kind}; was backward() called on it?")
        if taken.gradients and meter.steps == 0:
            self._warn("optimizer", f"step {step}: no optimizer step changed parameters of the watched {kind}")

    # what is said

    def _judge(self) -> None:
        for finding in findings_of(self.history, self._context):
            self.findings.append(finding)
            if self.ranks.first:
                LOGGER.warning("%s. %s", finding.title, finding.cause)
            if self._file is not None:
                told = {key: getattr(finding, key) for key in TOLD} | {"evidence": list(map(str, finding.evidence))}
                self._through(self._file, "event", "finding", step=self.steps, **told)
            for sink in list(self._sinks):
                self._through(sink, "tell", self.steps, finding)

    def _read_losses(self, wait: bool) -> bool:
        """Take in the losses that are known by now; whether one was the first that is not finite."""
        before = self.history.first_bad_loss
        for step, loss in self._losses.known(wait):
            self.history.add_loss(step, loss)
        return before is None and self.history.first_bad_loss is not None

    def _broken(self, sample: Sample | None) -> bool:
        """Whether something was not finite; several processes ask only at samples, where all know the same."""
        if self.ranks.size == 1 and self.history.first_bad_loss is not None:
            return True
        return sample is not None and (sample.bad is not None or "first_bad_loss" in sample.run)

    def _stop(self) -> None:
        told = [finding.title for finding in self.findings if finding.name == "nonfinite"]
        error = NonFiniteError(told[0] if told else f"step {self.history.first_bad_loss}: the loss is not finite")
        self._on_crash(error)
        self.close()
        raise error

    def _on_crash(self, error: BaseException) -> None:
        if self.ranks.first:
            inside = self._pass.inside if self._pass is not None else ""
            try:
                write_crash(self.folder, self.steps, error, inside, self.history, self.findings)
            except OSError as failure:
                self._warn("crash", f"crash.json could not be written to {self.folder}: {failure}")

    # around it

    def _open(self, sinks: Iterable[str | Sink], start: int) -> None:
        if not self.ranks.first:
            return
        try:
            self._file = JsonLines(self.folder)
            made = {"model": type(self.model).__name__, "every": self.every}
            self._file.event("run", start=start, **made, time=time.strftime("%FT%TZ", time.gmtime()))
        except OSError as error:
            self._file = None
            self._warn("folder", f"the history cannot be written to {self.folder}: {error}; it is kept in memory only")
        for sink in sinks:
            try:
                self._sinks.append(open_sink(sink, self.folder))
            except SigpropError:
                raise
            except Exception as error:
                name = sink if isinstance(sink, str) else sink.name
                self._warn(f"sink {name}", f"sink {name} could not be opened and is left out: {error}")

    def _saved(self) -> list[Sample]:
        try:
            return read_samples(self.folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._warn("resume", f"the history in {self.folder} could not be read, and starts anew: {error}")
            return []

    def _through(self, sink: Any, call: str, *args: Any, **kwargs: Any) -> None:
        """Call a sink; one that fails is left out."""
        try:
            getattr(sink, call)(*args, **kwargs)
        except Exception as error:
            self._warn(f"sink {sink.name}", f"sink {sink.name} failed and is left out from now on: {error}")
            if sink is self._file:
                self._file = None
            elif sink in self._sinks:
                self._sinks.remove(sink)

    def _replace_other(self) -> None:
        other = WATCHED.get(self.model, lambda: None)()
        if other is not None and not other._closed:
            self._warn("second", f"this {type(self.model).__name__} is watched already; the earlier watch is closed")
            other.close()
        WATCHED[self.model] = weakref.ref(self)

    def _failed(self, error: Exception) -> None:
        self._warn("failed", f"step {self.steps} could not be sampled: {type(error).__name__}: {error}")

    def _warn(self, kind: str, message: str) -> None:
        """Each kind of trouble once."""
        if kind not in self._told:
            self._told.add(kind)
            warnings.warn(f"sigprop.Watch: {message}", WatchWarning, stacklevel=3)

    def _note(self, kind: str, message: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            LOGGER.info(message)


def _teller(watch: Watch) -> GiveUp:
    """What hooks call when they fail; they do not keep the watch."""
    known = weakref.ref(watch)

    def tell(error: Exception) -> None:
        found = known()
        if found is not None:
            found._failed(error)

    return tell


def _inner(model: nn.Module) -> nn.Module:
    """The user's own module inside what DDP and torch.compile wrap around it."""
    while True:
        inner = unwrap(as_written(model))
        if inner is model:
            return model
        model = inner


def _norm_gains(model: nn.Module) -> frozenset[str]:
    return frozenset(
        f"{name}.{key}" if name else key
        for name, module in modules_of(model).items()
        if is_norm(module)
        for key, _ in module.named_parameters(recurse=False)
        if key != "bias"
    )

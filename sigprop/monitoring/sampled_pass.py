"""One sampled pass of the user's own: hooks on before it, off after it, nothing run twice.

The first forward pass with gradients is taken; evaluations, and further micro-batches of the same step, go by.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.isolation import interrupts_held
from sigprop.measurement.batch import signals_in
from sigprop.measurement.layout import AxesRule, TokenAxes, TokenLayout, layout_of
from sigprop.monitoring.history import Rows
from sigprop.monitoring.recording import GiveUp, PassFunctions, PassRecorder
from sigprop.sites import modules_of

INPUT = "(input)"


class SampledPass:
    """Attached for one step; afterwards `rows` are the numbers of this process and `bad` the first bad place."""

    def __init__(
        self,
        model: nn.Module,
        token_axes: TokenAxes | AxesRule | None,
        scaler: Any,
        for_ranks: bool,
        give_up: GiveUp,
    ):
        self.model = model
        self.scaler = scaler
        self.loss_scale = 1.0
        self.token_axes = token_axes
        self.loss: Tensor | None = None
        self.forwards = 0
        self.eager = False
        self.failure: Exception | None = None
        self._report = give_up
        self.recorder = PassRecorder(modules_of(model), TokenLayout(), for_ranks, self._give_up)
        self._functions = PassFunctions(self.recorder)
        self._inside = False
        self._stack = ExitStack()

    def attach(self, compiled: bool) -> None:
        """Hooks on every module; compiled modules run as written until the hooks come off."""
        self.eager = compiled
        if compiled:
            self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        self._stack.enter_context(self.recorder.attached(track_modules=True))
        begin = self.model.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True)
        end = self.model.register_forward_hook(self._end, always_call=True)
        self._stack.callback(begin.remove)
        self._stack.callback(end.remove)

    def detach(self) -> None:
        self._leave()
        self._stack.close()

    @property
    def gradients(self) -> int:
        return len(self.recorder.gradient_order)

    @property
    def inside(self) -> str:
        """The module that is running, if any: where an exception came from."""
        return self.recorder.current[-1] if self.recorder.current else ""

    def _begin(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or self.failure is not None:
            return
        self.forwards += 1
        if self.forwards > 1:
            self.recorder.phase = "idle"
            return
        try:
            batch = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
            self.recorder.layout = layout_of(batch, None, self.token_axes)
            self.recorder.current.clear()
            self.recorder.phase = "forward"
            self._inputs(batch)
            if self.scaler is not None and self.scaler.is_enabled():
                self.loss_scale = float(self.scaler.get_scale())
            with interrupts_held():
                self._functions.__enter__()
                self._inside = True
        except Exception as error:
            self._give_up(error)

    def _inputs(self, batch: dict[str, Any]) -> None:
        """Floating-point inputs are sites too, for a batch may be what is not finite; masks may hold infinities."""
        values = {key: value for key, value in batch.items() if "mask" not in key}
        for index, (path, tensor) in enumerate(signals_in(values)):
            self.recorder.record(INPUT if index == 0 else INPUT + path, tensor)

    def _end(self, module: nn.Module, args: tuple, output: Any) -> None:
        if self._inside:
            self._leave()
            loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
            if isinstance(loss, Tensor) and loss.numel() == 1:
                self.loss = loss.detach()
        if self.forwards and self.failure is None:
            self.recorder.phase = "backward"

    def _leave(self) -> None:
        if self._inside:
            self._functions.__exit__(None, None, None)  # does nothing the second time
            self._inside = False

    def _give_up(self, error: Exception) -> None:
        """Nothing more is taken in this step; the run goes on."""
        self.recorder.phase = "idle"
        if self.failure is None:
            self.failure = error
            self._report(error)

    def rows(self) -> Rows:
        """The numbers of this process, in order of execution; waits for the device once."""
        signals, gradients = self.recorder.moments()
        values = read_numbers({site.name: site.values for site in self.recorder.sites if site.same is None})
        found: Rows = {}
        for ticket, site in enumerate(self.recorder.sites):
            if site.same is not None:
                same = found[self.recorder.sites[site.same].name]
                found[site.name] = {key: value for key, value in same.items() if key not in ("skip", "branch")}
                continue
            row = values[site.name]
            if ticket in signals:
                row |= dict(zip(("mean", "variance", "token_correlation"), signals[ticket], strict=True))
            if ticket in gradients:
                row |= dict(zip(("grad_variance", "grad_token_correlation"), gradients[ticket][1:], strict=True))
            found[site.name] = row
        return found

    def bad(self, rows: Rows) -> tuple[str, str] | None:
        """The first place that was not finite: forward in order of execution, else in order of the backward pass."""
        for name, row in rows.items():
            if not name.endswith(".scores") and not math.isfinite(row.get("variance", 0.0)):
                return "forward", name
        for ticket in self.recorder.gradient_order:
            name = self.recorder.sites[ticket].name
            if not math.isfinite(rows[name].get("grad_variance", 0.0)):
                return "backward", name
        return None


def read_numbers(table: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Numbers that may still be on a device, with one transfer from each kind; flags become the places that are set."""
    waiting: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for row in table.values():
        for value in row.values():
            if isinstance(value, Tensor) and value.dim() == 0:
                waiting.setdefault((value.device, value.dtype), []).append(value.detach())
    ready = {kind: iter(torch.stack(tensors).double().tolist()) for kind, tensors in waiting.items()}

    def plain(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return next(ready[value.device, value.dtype]) if value.dim() == 0 else value.nonzero().flatten().tolist()

    return {name: {key: plain(value) for key, value in row.items()} for name, row in table.items()}

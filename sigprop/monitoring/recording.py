"""Taking the numbers of one pass: `measure`'s recorder with what only a running training has to tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.compat import BatchNorm
from sigprop.measurement.functions import FunctionWatch
from sigprop.measurement.layout import TokenLayout
from sigprop.measurement.recorder import Recorder, Site
from sigprop.measurement.residuals import ADDITIONS, skip_and_branch
from sigprop.monitoring.attention import scores_of, summary
from sigprop.monitoring.centres import correlation_about
from sigprop.monitoring.low_precision import losses
from sigprop.monitoring.shards import whole

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, BatchNorm)
GiveUp = Callable[[Exception], None]


def is_norm(module: nn.Module | None) -> bool:
    """A norm of torch, or one that calls itself so."""
    return isinstance(module, NORMS) or (module is not None and type(module).__name__.endswith("Norm"))


class PassRecorder(Recorder):
    """Every tensor is reduced at once, since a training step cannot be run again; a failure never reaches the user.

    `shifts` holds, for the noise of the gradient, what one example contributes to the gradient of a shift of a norm's
    output: the sum over examples and the sum of squares.
    """

    def __init__(self, modules: Mapping[str, nn.Module], layout: TokenLayout, for_ranks: bool, give_up: GiveUp):
        super().__init__(modules, layout, None, fleeting=True)
        self.for_ranks = for_ranks
        self.give_up = give_up
        self.shifts: dict[str, tuple[Tensor, Tensor, int]] = {}

    def _module_output(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        try:
            super()._module_output(name, module, inputs, output)
        except Exception as error:
            self.give_up(error)

    def _gradient(self, ticket: int, gradient: Tensor | None) -> None:
        try:
            super()._gradient(ticket, gradient)
        except Exception as error:
            self.give_up(error)

    def _take(self, ticket: int, tensor: Tensor, signal: bool) -> None:
        super()._take(ticket, whole(tensor.detach()), signal)

    def _note_more(self, site: Site, values: Tensor, mask: Tensor | None, signal: bool) -> None:
        known: dict[str, Any] = site.values
        with torch.no_grad():
            if signal:
                known["entries"] = values.numel() if mask is None else mask.sum() * values.shape[2]
                known["sequences"] = values.shape[0]
                known["shared"] = values.shape[0] == 1 < (self.layout.examples or 1)
            known |= losses(values, signal)
            if signal and self.for_ranks and values.shape[1] > 1:
                known |= correlation_about(values, mask)
            if not signal and is_norm(site.module):
                shift = values.float().sum(1)
                self.shifts[site.name] = shift.sum(0), shift.square().sum(), shift.shape[0]


class PassFunctions(FunctionWatch):
    """Residual junctions with the mean squares of both operands, and attention scores of some queries."""

    recorder: PassRecorder

    def __init__(self, recorder: PassRecorder):
        super().__init__(recorder, junctions=True, scores=True)

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if self.recorder.phase != "forward":
            return func(*args, **kwargs)
        operands = self._tried(_operands, func, args)
        output = func(*args, **kwargs)
        if operands is not None:
            self._tried(self._junction, output, operands)
        self._tried(self._scores, func, args, kwargs)
        return output

    def _tried(self, work: Callable[..., Any], *given: Any) -> Any:
        try:
            return work(*given)
        except Exception as error:
            self.recorder.give_up(error)
            return None

    def _junction(self, output: Tensor, operands: dict[str, Tensor]) -> None:
        self.recorder.record(self._name("add"), output)
        self.recorder.sites[-1].values |= operands

    def _scores(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        scores = scores_of(func, args, kwargs)
        if scores is not None:
            self.recorder.note(self._name("scores"), summary(whole(scores)))  # type: ignore[arg-type]


def _operands(func: Any, args: tuple) -> dict[str, Tensor] | None:
    """Mean squares of skip and branch, taken before an addition that may overwrite one of them."""
    found = skip_and_branch(*args[:2]) if func in ADDITIONS else None
    if found is None:
        return None
    with torch.no_grad():
        skip, branch = (whole(x).detach() for x in found)
        wide = torch.promote_types(skip.dtype, torch.float32)
        sizes = [torch.linalg.vector_norm(x, dtype=wide).double().square() for x in (skip, branch)]
    return {"skip": sizes[0] / skip.numel(), "branch": sizes[1] / skip.numel()}

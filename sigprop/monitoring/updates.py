"""What an optimizer's step does to each parameter, seen from just before and just after it.

Torch calls hooks around every optimizer's step, so that none has to be named: those that hold parameters of the model
are read. The parameters are copied for the time of the step, when the activations are gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sigprop.measurement.parameters import square_of
from sigprop.monitoring.recording import GiveUp, copies, is_spread, local
from sigprop.sites import plain_name

MOST_SLICES = 1024
Sums = dict[str, Any]


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, each once, by the name that plans use."""
    return {plain_name(name): p for name, p in model.named_parameters() if p.requires_grad}


class _Attached:
    """The meters that hear optimizers, through two hooks that stay: torch's table of hooks may not change while another
    thread steps."""

    def __init__(self) -> None:
        self._meters: tuple[UpdateMeter, ...] = ()
        self._lock = Lock()
        self._hooked = False

    def add(self, meter: UpdateMeter) -> None:
        with self._lock:
            self._meters += (meter,)
            if not self._hooked:
                register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._tell(optimizer, False))
                register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self._tell(optimizer, True))
                self._hooked = True

    def remove(self, meter: UpdateMeter) -> None:
        with self._lock:
            self._meters = tuple(other for other in self._meters if other is not meter)

    def _tell(self, optimizer: Optimizer, stepped: bool) -> None:
        for meter in self._meters:
            meter.hear(optimizer, stepped)


_ATTACHED = _Attached()


class UpdateMeter:
    """Attached for one step; `sums` then holds, for each parameter, sums over the entries that this process holds."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], world: int, only: Optimizer | None, give_up: GiveUp):
        self.parameters = parameters
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.sums: dict[str, Sums] = {}
        self.steps = 0
        self._only = only
        self._world = world
        self._give_up = give_up
        self._before: dict[str, Tensor] = {}

    def attach(self) -> None:
        _ATTACHED.add(self)

    def detach(self) -> None:
        _ATTACHED.remove(self)
        self._before = {}

    def hear(self, optimizer: Optimizer, stepped: bool) -> None:
        """Called before and after every step of every optimizer."""
        if self._only is not None and optimizer is not self._only:
            return
        try:
            with torch.no_grad():
                self._after_step(optimizer) if stepped else self._before_step(optimizer)
        except Exception as error:
            self._before = {}
            self._give_up(error)

    def _mine(self, optimizer: Optimizer) -> list[tuple[str, nn.Parameter, int, dict[str, Any]]]:
        return [
            (self.names[id(parameter)], parameter, index, group)
            for index, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
            if id(parameter) in self.names
        ]

    def _before_step(self, optimizer: Optimizer) -> None:
        scale = getattr(optimizer, "grad_scale", None)
        for name, parameter, index, group in self._mine(optimizer):
            if name in self.sums:
                continue
            self._before[name] = local(parameter.detach()).clone()
            self.sums[name] = self._at_rest(parameter, 1.0 if scale is None else float(scale))
            self.sums[name]["group"] = str(group.get("name", index))
            self.sums[name] |= {
                key: float(group[key])
                for key in ("lr", "weight_decay", "eps")
                if isinstance(group.get(key), (float, int, Tensor))
            }

    def _at_rest(self, parameter: nn.Parameter, scale: float = 1.0) -> Sums:
        share = 1.0 / copies(parameter, self._world)
        value = local(parameter.detach())
        found: Sums = {"entries": value.numel() * share, "square": _times(square_of(value), share)}
        gradient = parameter.grad
        if gradient is not None:
            dense = local(gradient.detach())
            dense = dense.coalesce().values() if dense.is_sparse else dense
            found["grad_square"] = _times(square_of(dense), share / scale**2)
            if (
                parameter.dim() == 3
                and parameter.shape[0] <= MOST_SLICES
                and not is_spread(parameter)
                and not gradient.is_sparse
            ):
                found["idle"] = dense.flatten(1).any(1).logical_not()
        return found

    def _after_step(self, optimizer: Optimizer) -> None:
        for name, parameter, _, group in self._mine(optimizer):
            before = self._before.pop(name, None)
            if before is None:
                continue
            self.steps += 1
            sums, share = self.sums[name], 1.0 / copies(parameter, self._world)
            lost = before - local(parameter.detach())
            sums["update_square"] = _times(square_of(lost), share)
            sums["unmoved"] = _times(lost.numel() - lost.count_nonzero(), share)
            sums["inward"] = _times(lost.flatten().float() @ before.flatten().float(), share)
            seconds = optimizer.state.get(parameter, {}).get("exp_avg_sq")
            if isinstance(seconds, Tensor) and seconds.numel():
                taken = float(optimizer.state[parameter].get("step", 0.0))
                decay = group.get("betas", (0.0, 0.0))[-1]
                correction = 1.0 - float(decay) ** taken if taken else 1.0
                total = torch.linalg.vector_norm(local(seconds), 1, dtype=torch.float64)
                sums["denominator_square"] = _times(total, share / max(correction, 1e-12))

    def finish(self) -> None:
        """Parameters that no step has touched, as they are."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if name not in self.sums:
                    self.sums[name] = self._at_rest(parameter)


def _times(x: Tensor, factor: float) -> Tensor:
    """A product without a kernel where it is none."""
    return x if factor == 1.0 else x.double() * factor


def parameter_row(sums: Mapping[str, float]) -> dict[str, float]:
    """Ratios and moments from sums over all entries."""
    entries, square = sums["entries"], sums["square"]
    row = {"second_moment": square / entries if entries else math.nan}
    if "grad_square" in sums:
        row["grad_second_moment"] = sums["grad_square"] / entries
    if "update_square" in sums:
        update = sums["update_square"]
        row["update_ratio"] = math.sqrt(update / square) if square > 0 else (math.inf if update > 0 else 0.0)
        row["unmoved"] = sums["unmoved"] / entries
        lengths = math.sqrt(update) * math.sqrt(square)
        row["against"] = sums["inward"] / lengths if lengths > 0 else 0.0
    if "denominator_square" in sums:
        row["denominator"] = math.sqrt(sums["denominator_square"] / entries)
    return row | {key: sums[key] for key in ("lr", "weight_decay", "eps") if key in sums}

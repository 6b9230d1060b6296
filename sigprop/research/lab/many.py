"""Many networks of one architecture trained as one program: other draws, other learning rates, the same batches.

Parameters are stacked and the forward pass runs under `vmap`; every kernel then works for all networks at once, which
is what small networks wait for. With mode "graph" the whole step, optimizer included, is captured once and replayed.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.overrides import TorchFunctionMode

from sigprop.compat import fused_adamw_
from sigprop.errors import InputError, UnknownNameError, require
from sigprop.losses import LossChoice
from sigprop.plans import Plan
from sigprop.research.lab.batching import RULES
from sigprop.research.lab.settings import Settings
from sigprop.research.lab.steps import WARM_UPS, Batch, Batches, Loss, called
from sigprop.research.lab.trainer import EVALUATED, Run, loss_of

# -- Parameters of many networks in one tensor: rows of an optimizer, moved together


ALIGNED = 8
"""A parameter begins at a multiple of so many entries: fast products read 16 bytes at a time."""
Factors = tuple[float, float, float]


@dataclass(frozen=True)
class Kind:
    """What parameters of one tensor share: `factors` of rate, decay and epsilon, and whether products are rounded."""

    factors: Factors
    dtype: torch.dtype
    is_rounded: bool = False


@dataclass(frozen=True)
class _Place:
    start: int
    size: int
    shape: tuple[int, ...]
    by_columns: bool

    @property
    def gap(self) -> int:
        """Entries up to the next parameter; they are zero and stay so."""
        return -self.size % ALIGNED


class Rows:
    """`values` is `[networks, entries]`. A weight `by_columns` lies as the gradient of a linear layer comes."""

    def __init__(self, kind: Kind, stacks: Mapping[str, Tensor], by_columns: Iterable[str] = ()):
        self.kind, self.places, start = kind, {}, 0
        turned = set(by_columns)
        for name, stack in stacks.items():
            self.places[name] = _Place(start, stack[0].numel(), tuple(stack.shape), name in turned)
            start += self.places[name].size + self.places[name].gap
        self.values = self.gathered(stacks)

    def gathered(self, stacks: Mapping[str, Tensor]) -> Tensor:
        """Stacks of all parameters in the layout of `values`."""
        first = next(iter(self.places))
        zeros = stacks[first].new_zeros(len(stacks[first]), ALIGNED)
        parts = []
        for name, place in self.places.items():
            stack = stacks[name].detach()
            parts.append((stack.mT if place.by_columns else stack).reshape(len(stack), -1))
            parts += [zeros[:, : place.gap]] if place.gap else []
        return torch.cat(parts, dim=1)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """The parameters in a tensor of the layout of `values`."""
        return {name: _view(rows, place) for name, place in self.places.items()}


def _view(rows: Tensor, place: _Place) -> Tensor:
    part = rows[:, place.start : place.start + place.size]
    networks, *shape = place.shape
    return part.view(networks, *shape[::-1]).mT if place.by_columns else part.view(place.shape)


KINDS = ("adamw", "sgd", "momentum")


class StackedOptimizer:
    """Moves the `values` of rows, given gradients in the same layout."""

    def __init__(
        self,
        kind: str,
        rows: Sequence[Rows],
        rates: Tensor,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        epsilon: float = 1e-8,
    ):
        if kind not in KINDS:
            raise UnknownNameError("optimizer of stacked networks", kind, KINDS)
        require(bool((rates > 0).all()), "rates", rates.tolist(), "positive learning rates")
        self.kind, self.rows, self.rates = kind, list(rows), rates
        self.decay, self.betas, self.epsilon = weight_decay, betas, epsilon
        self.first = [torch.zeros_like(each.values) for each in self.rows if kind != "sgd"]
        self.second = [torch.zeros_like(each.values) for each in self.rows if kind == "adamw"]
        self.count = torch.zeros((), device=rates.device)

    def tensors(self) -> list[Tensor]:
        """All that a step changes."""
        return [*(each.values for each in self.rows), *self.first, *self.second, self.count]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], schedule: Tensor, shrink: Tensor | None = None) -> None:
        """Move all networks; `schedule` is a scalar tensor, `shrink` a factor of every network's gradient."""
        self.count += 1
        move = self._adamw if self.kind == "adamw" else self._descend
        for number, gradient in enumerate(gradients):
            move(number, gradient, self.rates * schedule, shrink)

    def _descend(self, number: int, gradient: Tensor, rates: Tensor, shrink: Tensor | None) -> None:
        values, (rate_factor, decay_factor, _) = self.rows[number].values, self.rows[number].kind.factors
        rate = (rates * rate_factor).unsqueeze(1)
        if self.decay * decay_factor:
            values.mul_(1.0 - rate * self.decay * decay_factor)
        direction = gradient if shrink is None else gradient * shrink.unsqueeze(1)
        if self.kind == "momentum":
            direction = self.first[number].mul_(0.9).add_(direction)
        values.addcmul_(rate.to(values.dtype), direction, value=-1.0)

    def _adamw(self, number: int, gradient: Tensor, rates: Tensor, shrink: Tensor | None) -> None:
        rate_factor, decay_factor, epsilon_factor = self.rows[number].kind.factors
        divisors = None if shrink is None else shrink.reciprocal().float()
        for network, rate in enumerate(rates * rate_factor):
            fused_adamw_(
                [self.rows[number].values[network]],
                [gradient[network]],
                [self.first[number][network]],
                [self.second[number][network]],
                [],
                [self.count],
                lr=rate,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=self.decay * decay_factor,
                eps=self.epsilon * epsilon_factor,
                amsgrad=False,
                maximize=False,
                grad_scale=None if divisors is None else divisors[network],
            )


def train_many(
    models: Sequence[nn.Module],
    batches: Batches,
    rates: Sequence[float],
    settings: Settings | None = None,
    *,
    plan: Plan | None = None,
    loss: LossChoice = None,
    validation: Batches | None = None,
) -> list[Run]:
    """Train all models in place, each with its own learning rate; `settings.lr` is not used.

    validation: held-out batches; each run's mean loss on them after the last step stands in its `evaluations`.
    plan: the multipliers of every parameter, the same for all models. A network whose loss is no longer finite goes on
    as numbers that are not finite; the others do not notice.
    """
    settings = settings or Settings()
    require(len(models) > 0, "models", len(models), "at least one network")
    if len(models) != len(rates):
        raise InputError(f"{len(models)} networks and {len(rates)} learning rates: one rate for each is needed")
    on_gpu = torch.device(settings.device).type == "cuda"
    known = settings.mode == "eager" or (settings.mode == "graph" and on_gpu)
    require(known, "mode", settings.mode, "'eager', or 'graph' on a CUDA device, for many networks")
    for model in models:
        model.to(settings.device).train()
    program = _Program(models, rates, settings, plan, loss_of(batches, loss))
    torch.manual_seed(settings.seed)
    return program.run(batches, validation)


class _Program:
    def __init__(
        self,
        models: Sequence[nn.Module],
        rates: Sequence[float],
        settings: Settings,
        plan: Plan | None,
        loss: Loss,
    ):
        self.models, self.settings, self.loss = models, settings, loss
        self.model, self.device = models[0], torch.device(settings.device).type
        self.parameters, self.buffers = stack_module_state(list(models))
        trained = {name: value for name, value in self.parameters.items() if value.requires_grad}
        self.fixed = {name: value for name, value in self.parameters.items() if name not in trained}
        self.rows = self._rows(trained, _factors(plan, self.model) if plan is not None else _undecayed(trained))
        first = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self.aliases = {name: first[id(p)] for name, p in self.model.named_parameters(remove_duplicate=False)}
        speeds = torch.tensor(list(rates), dtype=torch.float32, device=settings.device)
        betas = settings.betas or (0.9, 0.95)
        self.optimizer = StackedOptimizer(settings.optimizer, self.rows, speeds, settings.weight_decay, betas)
        self.schedule = torch.ones((), device=settings.device)

    def _rows(self, stacks: dict[str, Tensor], factors: dict[str, Factors]) -> list[Rows]:
        """Parameters that are rounded the same way and share their factors."""
        linear, rounds = _of_linear_layers(self.model), self.settings.precision == "bfloat16"
        kinds: dict[Kind, dict[str, Tensor]] = {}
        for name, stack in stacks.items():
            kind = Kind(factors.get(name, (1.0, 1.0, 1.0)), stack.dtype, rounds and name in linear)
            kinds.setdefault(kind, {})[name] = stack
        weights = {name for name in linear if name in stacks and stacks[name].dim() == 3}
        return [Rows(kind, members, weights) for kind, members in kinds.items()]

    def run(self, batches: Batches, validation: Batches | None) -> list[Run]:
        started, losses = time.perf_counter(), []
        step_of: Callable[[Batch], Tensor] | None = None
        for step in range(self.settings.steps):
            batch = self._on_device(batches(step))
            if step_of is None:
                step_of = _CapturedProgram(self, batch) if self.settings.mode == "graph" else self.step
            self.schedule.fill_(self.settings.schedule(step))
            losses.append(step_of(batch).clone())
        table = torch.stack(losses).T.tolist()
        self._hand_back()
        seconds = (time.perf_counter() - started) / len(self.models)
        held = [{}] * len(table) if validation is None else self._evaluated(validation)
        return [Run(row, found, _ending(row), seconds) for row, found in zip(table, held, strict=True)]

    def _on_device(self, batch: Batch) -> Batch:
        return {key: value.to(self.settings.device, non_blocking=True) for key, value in batch.items()}

    @torch.no_grad()
    def _evaluated(self, batches: Batches) -> list[dict[int, float]]:
        """Mean loss of every network over held-out batches, in evaluation mode."""
        self.model.eval()
        found = [self._losses(self._leaves(), self._on_device(batches(place))) for place in range(EVALUATED)]
        self.model.train()
        return [{self.settings.steps - 1: value} for value in torch.stack(found).mean(0).tolist()]

    def step(self, batch: Batch) -> Tensor:
        """Losses of all networks before the update."""
        losses, gradients = self._passes(self._leaves(), batch)
        shrink = _shrink(gradients, self.settings.clip) if self.settings.clip else None
        self.optimizer.step(gradients, self.schedule, shrink)
        return losses

    def _leaves(self) -> dict[str, Tensor]:
        """What is differentiated, made anew: old leaves would belong to another stream.

        Linear layers are rounded here, all at once, and not by autocast one by one.
        """
        leaves: dict[str, Tensor] = {}
        for rows in self.rows:
            values = rows.values.to(torch.bfloat16) if rows.kind.is_rounded else rows.values
            leaves |= {name: view.detach().requires_grad_() for name, view in rows.views(values).items()}
        return leaves

    def _passes(self, leaves: dict[str, Tensor], batch: Batch) -> tuple[Tensor, list[Tensor]]:
        """Losses, and gradients in rows."""
        losses = self._losses(leaves, batch)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        gradients = dict(zip(leaves, found, strict=True))
        return losses.detach(), [rows.gathered(gradients).to(rows.kind.dtype) for rows in self.rows]

    def _losses(self, leaves: dict[str, Tensor], batch: Batch) -> Tensor:
        work = vmap(self._loss, in_dims=(0, 0, 0, None), randomness="different")
        with _Batched(self.device):
            return work(leaves, self.fixed, self.buffers, batch)

    def _loss(self, trained: dict, fixed: dict, buffers: dict, batch: Batch) -> Tensor:
        own = {**trained, **fixed}
        state = {name: own[first] for name, first in self.aliases.items()} | buffers

        def call(*args: Any, **kwargs: Any) -> Any:
            return functional_call(self.model, state, args, kwargs, tie_weights=False)

        with torch.autocast(self.device, torch.bfloat16, enabled=self.settings.precision == "bfloat16"):
            return self.loss(called(call, batch, self.model), batch)

    def _hand_back(self) -> None:
        """The trained numbers, into the models they belong to."""
        trained = {name: stack for rows in self.rows for name, stack in rows.views(rows.values).items()}
        with torch.no_grad():
            for number, model in enumerate(self.models):
                for name, parameter in model.named_parameters():
                    if name in trained:
                        parameter.copy_(trained[name][number])


class _CapturedProgram:
    """The whole step of a program as a CUDA graph."""

    def __init__(self, program: _Program, batch: Batch):
        self.batch = {key: value.clone() for key, value in batch.items()}
        kept = program.optimizer.tensors()
        before = [value.clone() for value in kept]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                program.step(self.batch)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.losses = program.step(self.batch)
        with torch.no_grad():
            for value, was in zip(kept, before, strict=True):
                value.copy_(was)

    def __call__(self, batch: Batch) -> Tensor:
        for key, value in batch.items():
            self.batch[key].copy_(value)
        self.graph.replay()
        return self.losses


class _Batched(TorchFunctionMode):
    """Layers of all networks as one kernel each; what several linear layers read is rounded to bfloat16 once."""

    def __init__(self, device: str):
        super().__init__()
        self.device = device
        self.read: tuple[Any, Any] = (None, None)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is nn.functional.linear and torch.is_autocast_enabled(self.device):
            args = (self._rounded(args[0]), *args[1:])
        rule = RULES.get(func) or func
        return rule(*args, **(kwargs or {}))

    def _rounded(self, x: Tensor) -> Tensor:
        if x is not self.read[0]:
            self.read = (x, x.to(torch.get_autocast_dtype(self.device)))
        return self.read[1]


def _shrink(gradients: Sequence[Tensor], most: float) -> Tensor:
    """The factor of every network that brings its gradient to at most this norm."""
    norms = torch.stack([torch.linalg.vector_norm(rows, dim=1) for rows in gradients])
    return (most / (torch.linalg.vector_norm(norms, dim=0) + 1e-6)).clamp(max=1.0)


def _of_linear_layers(model: nn.Module) -> set[str]:
    """Names of weights and biases that linear layers alone use: not tied ones, and no scales hooked onto a layer."""
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    named = dict(model.named_parameters(remove_duplicate=False))
    users = Counter(map(id, named.values()))
    own = {f"{name}.{kind}" for name in layers for kind in ("weight", "bias")}
    return {name for name, value in named.items() if name in own and users[id(value)] == 1}


def _factors(plan: Plan, model: nn.Module) -> dict[str, Factors]:
    """Multipliers of rate, decay and epsilon by parameter name, read off the plan's own groups."""
    groups = plan.param_groups(model, lr=1.0, weight_decay=1.0)
    return {
        name: (group["lr"], group.get("weight_decay", 1.0), group.get("eps", 1e-8) / 1e-8)
        for group in groups
        for name in group["param_names"]
    }


def _undecayed(stacks: dict[str, Tensor]) -> dict[str, Factors]:
    """Gains and biases are not decayed."""
    return {name: (1.0, 0.0 if value.dim() < 3 else 1.0, 1.0) for name, value in stacks.items()}


def _ending(losses: list[float]) -> str:
    bad = next((step for step, value in enumerate(losses) if not math.isfinite(value)), None)
    return "finished" if bad is None else f"loss not finite at step {bad}"

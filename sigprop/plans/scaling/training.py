"""Training one build, by the optimizer of a name; the plan of a build carries the smallest one to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.batches import as_batch, copied, first_batch
from sigprop.errors import InputError
from sigprop.isolation import cuda_devices, undisturbed
from sigprop.losses import LossChoice, first_signal, objective
from sigprop.measurement.batch import call
from sigprop.plans.exponents import read_optimizer
from sigprop.plans.plan import Plan
from sigprop.plans.rows import ParameterPlan
from sigprop.plans.scaling.beside import Rules, beside_of
from sigprop.plans.scaling.composition import own_plan
from sigprop.plans.scaling.dimensions import Dimensions, compare
from sigprop.plans.scaling.model_and_base import ModelAndBase
from sigprop.plans.scaling.record import RecordedRun, SizeRecorder
from sigprop.plans.scaling.width_rules import width_rule
from sigprop.sites import plain_name

DEFAULT_LR = {"sgd": 0.1, "momentum": 0.02, "adafactor": 0.03, "lion": 1e-3, "sign": 1e-3}


def make_optimizers(
    name: str,
    model: nn.Module,
    plan: Plan | None,
    lr: float | None = None,
    weight_decay: float = 0.0,
    **options: Any,
) -> list[torch.optim.Optimizer]:
    """Optimizers for the whole model: one, or Muon for hidden matrices and AdamW for the rest."""
    rule = read_optimizer(name)
    lr = DEFAULT_LR.get(rule.name, 1e-3) if lr is None else lr
    if plan is None:
        if rule.orthogonal:
            raise InputError(f"{name}: Muon trains hidden matrices only, and needs a plan's roles to know them")
        plan = Plan([ParameterPlan(plain_name(key), tuple(item.shape)) for key, item in model.named_parameters()])
    plan = replace(plan, meta={**plan.meta, "optimizer": rule.name})
    return plan.optimizers(model, lr, weight_decay, eps=(1e-16, 0.0) if rule.name == "adafactor" else None, **options)


def make_step(batch: Any, loss: LossChoice) -> Callable[[nn.Module], tuple[Tensor, Tensor]]:
    """A function from model to (output tensor, loss) on one batch.

    The loss is that of
    `sigprop.losses`; where that would be white noise, which trains nothing, it is next-token cross entropy, for a batch
    of token ids.
    """

    batch = first_batch(batch)

    def step(model: nn.Module) -> tuple[Tensor, Tensor]:
        given = as_batch(batch, model)
        result = call(model, copied(given))  # a model may write into its inputs
        output = first_signal(getattr(result, "logits", result))
        if output is None:
            raise InputError(f"the model returns {type(result).__name__}: needs a floating-point tensor")
        chosen = objective(result, given, loss)
        if not chosen.is_noise:
            return output, chosen.tensor
        if isinstance(batch, Tensor) and not batch.is_floating_point() and output.dim() == 3:
            return output, F.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        raise InputError(
            "no loss to train: pass loss=, a function of (output, batch), or labels to a model that returns its own"
        )

    return step


OwnOptimizer = Callable[[nn.Module], torch.optim.Optimizer | Sequence[torch.optim.Optimizer]]


@dataclass(frozen=True)
class Training:
    """What all seeds of one build share: plan, step, optimizer, learning rate and number of steps."""

    plan: Plan | None
    step_fn: Callable[[Any], tuple[Tensor, Tensor]]
    optimizer: str
    lr: float | None
    steps: int
    weight_decay: float = 0.0
    own: OwnOptimizer | None = None

    def run(self, model: nn.Module) -> RecordedRun:
        """One training. All meet the same random numbers (dropout); the state before each step and after the last is
        recorded, and the decay of one step, rate times weight decay, of every parameter that decays."""
        if self.plan is not None:
            self.plan.apply_(model)
        with undisturbed(cuda_devices()) as interrupts, interrupts.let_through():
            torch.manual_seed(0)
            trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
            recorder, optimizers = SizeRecorder(model, trained), self._optimizers(model)
            with recorder.watching():
                for step in range(self.steps + 1):
                    loss = recorder.forward(step, self.step_fn)
                    if step < self.steps:
                        recorder.backward(loss)
                        for each in optimizers:
                            each.step()
                            each.zero_grad()
            run = recorder.run()
        groups = [group for each in optimizers for group in each.param_groups if group.get("weight_decay")]
        run.sizes.update(
            {
                ("decay", name, 0): float(group["lr"]) * float(group["weight_decay"])
                for group in groups
                for name in group.get("param_names", ())
            }
        )
        return run

    def _optimizers(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        if self.own is None:
            return make_optimizers(self.optimizer, model, self.plan, self.lr, self.weight_decay)
        made = self.own(model)
        return [made] if isinstance(made, torch.optim.Optimizer) else list(made)


PlanMaker = Callable[[nn.Module, nn.Module], "Plan | None"]


def build_seeded(build: Callable[..., nn.Module], shape: tuple[int, ...], seed: int) -> nn.Module:
    with undisturbed(cuda_devices()) as interrupts, interrupts.let_through():
        torch.manual_seed(seed)
        built: object = build(*shape)
    if not isinstance(built, nn.Module):
        raise InputError(f"the factory returned {type(built).__name__} for {shape}: it has to return the model")
    return built


def compare_known(
    model: nn.Module,
    base: nn.Module,
    known: Mapping[str, str],
    roles: Mapping[str, str] | None = None,
    pair: ModelAndBase | None = None,
) -> list[Dimensions]:
    """The comparison with the base; where nothing grows, with the roles that a wider build has shown."""
    dims = compare(model, base, roles, None if pair is None else pair.model)
    if any(item.shape != item.base_shape for item in dims):
        return dims
    return [replace(item, role=known.get(item.name, item.role)) for item in dims]


def make_plan(
    plan: str | PlanMaker | None,
    model: nn.Module,
    base: nn.Module,
    dims: list[Dimensions],
    optimizer: str,
    pair: ModelAndBase | None = None,
    rules: Rules | None = None,
) -> Plan | None:
    """A rule's name, a function (model, base) -> Plan, or None, as a plan for the model."""
    if isinstance(plan, str):
        asked = replace(rules or Rules(), width=width_rule(plan))
        return own_plan(beside_of(model, base, dims, pair or ModelAndBase(), asked), optimizer)
    return plan(model, base) if plan is not None else None

"""Training all seeds of one build, stacked under `vmap` or one after another, by the optimizer of a name.

Stacked, the seeds share every call and launch, which is what small models wait for. On a CPU that saves up to half of
the time below half a million parameters and costs up to 40 percent above (docs/do/scaling.md). A model that `vmap`
cannot take (control flow on values, say) is trained seed by seed, and the reason is kept. The plan of a build carries
the smallest one to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from sigprop.batches import as_batch, copied, first_batch, run
from sigprop.errors import InputError, SigpropError
from sigprop.isolation import cuda_devices, undisturbed
from sigprop.losses import LossChoice, first_signal, objective
from sigprop.plans.plan import Plan
from sigprop.plans.rows import ParameterPlan
from sigprop.plans.scaling.beside import Rules, beside_of
from sigprop.plans.scaling.composition import own_plan
from sigprop.plans.scaling.dimensions import Dimensions, compare
from sigprop.plans.scaling.model_and_base import ModelAndBase
from sigprop.plans.scaling.record import RecordedRun, SizeRecorder
from sigprop.plans.scaling.width_rules import width_rule
from sigprop.sites import plain_name
from sigprop.theory.exponents import read_optimizer

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
        result = run(model, copied(given))  # a model may write into its inputs
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


SMALL = 500_000
OwnOptimizer = Callable[[nn.Module], torch.optim.Optimizer | Sequence[torch.optim.Optimizer]]


def worth_stacking(model: nn.Module, seeds: int) -> bool:
    """Several seeds on an accelerator, or of a small model on a CPU."""
    parameters = list(model.parameters())
    on_cpu = all(parameter.device.type == "cpu" for parameter in parameters)
    return seeds > 1 and (not on_cpu or sum(parameter.numel() for parameter in parameters) < SMALL)


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

    def run(self, models: Iterable[nn.Module], stacked: bool) -> tuple[list[RecordedRun], str]:
        """One run per model, and how they were trained. All meet the same random numbers (dropout)."""
        way = "one by one" if self.own is None else "one by one, by an optimizer of the user's own"
        if stacked and self.own is None:
            models = [self._prepared(model) for model in models]
            try:
                return self._seeded(self._stacked, models), "together"
            except SigpropError:
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                way += f", since vmap refused: {str(error).strip().splitlines()[0]}"
                return [run for model in models for run in self._seeded(self._alone, model)], way
        return [run for model in models for run in self._seeded(self._alone, self._prepared(model))], way

    def _prepared(self, model: nn.Module) -> nn.Module:
        if self.plan is not None:
            self.plan.apply_(model)
        return model

    def _seeded(self, work: Callable[[Any], list[RecordedRun]], models: Any) -> list[RecordedRun]:
        with undisturbed(cuda_devices()) as interrupts, interrupts.let_through():
            torch.manual_seed(0)
            return work(models)

    def _alone(self, model: nn.Module) -> list[RecordedRun]:
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        recorder = SizeRecorder(model, trained)
        optimizers = self._own(model) or make_optimizers(self.optimizer, model, self.plan, self.lr, self.weight_decay)
        runs = self._train(recorder, lambda: recorder.follow(self.step_fn, model), optimizers)
        return _with_decays(runs, optimizers)

    def _own(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        made = self.own(model) if self.own is not None else []
        return [made] if isinstance(made, torch.optim.Optimizer) else list(made)

    def _stacked(self, models: Sequence[nn.Module]) -> list[RecordedRun]:
        model = models[0]
        parameters, buffers = stack_module_state(list(models))
        trained = {name: values for name, values in parameters.items() if values.requires_grad}
        recorder = SizeRecorder(model, trained, len(models))
        first = {id(parameter): name for name, parameter in model.named_parameters()}
        aliases = {name: first[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}

        def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
            state = {name: parameters[own] for name, own in aliases.items()} | buffers

            @wraps(model.forward)
            def call(*args: Any, **kwargs: Any) -> Any:
                return functional_call(model, state, args, kwargs, tie_weights=False)

            return recorder.follow(self.step_fn, call)

        def all_seeds() -> Tensor:
            return vmap(one, randomness="same")(parameters, buffers).sum()

        stacks = {id(parameter): trained[name] for name, parameter in model.named_parameters() if name in trained}
        optimizers = make_optimizers(self.optimizer, model, self.plan, self.lr, self.weight_decay)
        moved = [_on_stacks(each, stacks, self.optimizer) for each in optimizers]
        return _with_decays(self._train(recorder, all_seeds, moved), optimizers)

    def _train(
        self, recorder: SizeRecorder, loss: Callable[[], Tensor], optimizers: Sequence[Any]
    ) -> list[RecordedRun]:
        """The state before each step and after the last is recorded."""
        with recorder.watching():
            for step in range(self.steps + 1):
                value = recorder.forward(step, loss)
                recorder.weights()
                if step < self.steps:
                    recorder.backward(value)
                    for each in optimizers:
                        each.step()
                        each.zero_grad()
        return recorder.runs()


def _with_decays(runs: list[RecordedRun], optimizers: Sequence[torch.optim.Optimizer]) -> list[RecordedRun]:
    """The runs with the decay of one step for every parameter that decays: rate times weight decay."""
    groups = [group for each in optimizers for group in each.param_groups if group.get("weight_decay")]
    decays = {
        ("decay", name, 0): float(group["lr"]) * float(group["weight_decay"])
        for group in groups
        for name in group.get("param_names", ())
    }
    return [RecordedRun({**run.sizes, **decays}, run.channels) for run in runs]


def _on_stacks(optimizer: torch.optim.Optimizer, stacks: dict[int, Tensor], name: str) -> Any:
    """The optimizer moved from the parameters of one model to the stacks: whole where it acts entry by entry."""
    rule = read_optimizer(name)
    if rule.orthogonal or rule.weight:
        return Slices(optimizer, stacks)
    for group in optimizer.param_groups:
        group["params"] = [stacks[id(parameter)] for parameter in group["params"]]
    return optimizer


class Slices:
    """An optimizer that sees every seed of the stacks as a parameter of its own, sharing its storage.

    For updates that are no function of single entries: Muon's and Adafactor's.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, stacks: dict[int, Tensor]):
        self.optimizer, self.pairs = optimizer, []
        for group in optimizer.param_groups:
            own = [stacks[id(parameter)] for parameter in group["params"]]
            slices = [[nn.Parameter(part) for part in stack.detach().unbind()] for stack in own]
            self.pairs += zip(own, slices, strict=True)
            group["params"] = [part for parts in slices for part in parts]

    def step(self) -> None:
        for stack, parts in self.pairs:
            gradients = stack.grad.unbind() if stack.grad is not None else [None] * len(parts)
            for part, gradient in zip(parts, gradients, strict=True):
                part.grad = gradient
        self.optimizer.step()

    def zero_grad(self) -> None:
        for stack, _ in self.pairs:
            stack.grad = None
        self.optimizer.zero_grad()


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

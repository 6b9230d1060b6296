"""The optimizer of a name, on a plan's groups; and how a batch and a model give output and loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.batches import as_batch, copied, first_batch, run
from sigprop.errors import InputError
from sigprop.losses import LossChoice, first_signal, objective
from sigprop.plans.plan import Plan
from sigprop.plans.rows import ParameterPlan
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

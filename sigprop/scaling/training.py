"""The optimizer of a name, on a plan's groups; and how a batch and a model give output and loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.errors import InputError
from sigprop.losses import LossChoice, first_signal, objective
from sigprop.results import Plan
from sigprop.scaling.lion import Lion
from sigprop.scaling.optimizers import muon_scale
from sigprop.theory.exponents import read_optimizer

DEFAULT_LR = {"sgd": 0.1, "momentum": 0.02, "adafactor": 0.03, "lion": 1e-3, "sign": 1e-3}


def make_optimizers(
    name: str, model: nn.Module, plan: Plan | None, lr: float | None = None, weight_decay: float = 0.0
) -> list[torch.optim.Optimizer]:
    """Optimizers for the whole model: one, or Muon for hidden matrices and AdamW for the rest."""
    rule = read_optimizer(name)
    lr = DEFAULT_LR.get(rule.name, 1e-3) if lr is None else lr

    def groups(**options: Any) -> list[dict[str, Any]]:
        if plan is None:
            trained = [p for p in model.parameters() if p.requires_grad]
            return [{"params": trained, "lr": lr, "weight_decay": weight_decay}]
        return plan.param_groups(model, lr, weight_decay, **options)

    if rule.name in ("sgd", "momentum"):
        return [torch.optim.SGD(groups(), lr=lr, momentum=0.9 if rule.name == "momentum" else 0.0)]
    if rule.name == "adam":
        return [torch.optim.Adam(groups(), lr=lr)]
    if rule.name == "adamw":
        return [torch.optim.AdamW(groups(), lr=lr, weight_decay=weight_decay)]
    if rule.name in ("sign", "lion"):
        return [Lion(groups(), lr=lr, betas=(0.0, 0.0) if rule.name == "sign" else (0.9, 0.99))]
    if rule.name == "adafactor":
        return [torch.optim.Adafactor(groups(), lr=lr, eps=(1e-16, 0.0))]
    if plan is None:
        raise InputError(f"{name}: Muon trains hidden matrices only, and needs a plan's roles to know them")
    hidden = _scaled(groups(roles=["hidden"]), rule.scale)
    rest = groups(roles=["embedding", "readout", "vector", "fixed"])
    adjust = "match_rms_adamw" if rule.scale == "rms" else "original"
    muon = torch.optim.Muon(hidden, lr=lr, weight_decay=weight_decay, adjust_lr_fn=adjust)
    return [muon, torch.optim.AdamW(rest, lr=lr, weight_decay=weight_decay)]


def _scaled(groups: list[dict[str, Any]], scale: str) -> list[dict[str, Any]]:
    """Muon's groups with the scales that torch lacks, by parameter: `none` and `unit` on top of its `shape`."""
    if scale in ("shape", "rms"):
        return groups
    found = []
    for group in groups:
        for parameter, name in zip(group["params"], group["param_names"], strict=True):
            rows, columns = parameter.shape
            factor = muon_scale(scale, rows, columns) / muon_scale("shape", rows, columns)
            own = {"params": [parameter], "param_names": [name], "lr": group["lr"] * factor}
            found.append(group | own | {"weight_decay": group["weight_decay"] / factor})
    return found


def make_step(batch: Any, loss: LossChoice) -> Callable[[nn.Module], tuple[Tensor, Tensor]]:
    """A function from model to (output tensor, loss) on one batch.

    A mapping is passed as keyword arguments, a tuple as positional ones, a tensor alone. The loss is that of
    `sigprop.losses`; where that would be white noise, which trains nothing, it is next-token cross entropy, for a batch
    of token ids.
    """

    def step(model: nn.Module) -> tuple[Tensor, Tensor]:
        if isinstance(batch, Mapping):
            result = model(**batch)
        elif isinstance(batch, tuple):
            result = model(*batch)
        else:
            result = model(batch)
        output = first_signal(getattr(result, "logits", result))
        if output is None:
            raise InputError(f"the model returns {type(result).__name__}: needs a floating-point tensor")
        chosen = objective(result, batch, loss)
        if not chosen.is_noise:
            return output, chosen.tensor
        if isinstance(batch, Tensor) and not batch.is_floating_point() and output.dim() == 3:
            return output, F.cross_entropy(output[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        raise InputError(
            "no loss to train: pass loss=, a function of (output, batch), or labels to a model that returns its own"
        )

    return step

"""What is differentiated: one rule for `predict`, `measure` and everything that trains.

- nothing given: the model's own loss (`output.loss`, `output["loss"]`, or the only number among what it returns that
  depends on its parameters, as in nanoGPT's `(logits, loss)`), else `"noise"`;
- `"noise"`: the first floating-point output against white noise of unit variance;
- `"cross_entropy"`: the first output as logits, against the batch's `labels`, else random targets;
- `"mse"`: the first output against the batch's `labels`, else zero;
- a function of `(output)` or `(output, batch)` that gives one number.

An `Objective` says which it was in `name`, the same words everywhere, so that two profiles can be told apart.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.batches import Labelled, tensors_in
from sigprop.errors import InputError, SigpropError, require
from sigprop.isolation import seed_of

LossFunction = Callable[..., Tensor]
LossChoice = str | LossFunction | None

OWN = "the model's own loss"
NOISE = "noise"
NAMED = ("cross_entropy", "mse", NOISE)


@dataclass(frozen=True)
class Objective:
    """A tensor to differentiate: one number, or an output against white noise."""

    tensor: Tensor
    name: str

    @property
    def is_noise(self) -> bool:
        return self.name == NOISE


def require_loss(loss: LossChoice) -> None:
    """Raise for what cannot be a loss."""
    allowed = loss is None or callable(loss) or loss in NAMED
    require(allowed, "loss", loss, "None, 'cross_entropy', 'mse', 'noise' or a function")


def objective(
    output: Any, batch: Any, loss: LossChoice = None, *, depends: Callable[[Tensor], bool] | None = None
) -> Objective:
    """What to differentiate of a model's output. `depends` tells whether a tensor depends on parameters."""
    require_loss(loss)
    depends = depends or (lambda tensor: tensor.requires_grad)
    if callable(loss):
        name = loss_name(loss)
        return Objective(_one_number(_called(loss, output, batch, name), name), name)
    if loss is None:
        own = own_loss(output, depends)
        if own is not None:
            return Objective(own, OWN)
    signal = first_signal(output)
    if signal is None:
        raise InputError(
            f"the model returned {described(output)}: needs a floating-point tensor with entries, or a loss of its own"
        )
    if loss == "cross_entropy":
        return Objective(_cross_entropy(signal, _labels(batch)), loss)
    if loss == "mse":
        return Objective(_mse(signal, _labels(batch)), loss)
    return Objective(signal, NOISE)


def own_loss(output: Any, depends: Callable[[Tensor], bool]) -> Tensor | None:
    """The loss that a model returns by itself."""
    if isinstance(output, Mapping) and "loss" in output:
        named = output["loss"]
    else:
        named = getattr(output, "loss", None) if not isinstance(output, Tensor) else None
    if isinstance(named, Tensor):
        return _one_number(named, OWN)
    numbers = [item for _, item in tensors_in(output) if item.dim() == 0 and item.is_floating_point() and depends(item)]
    if len(numbers) > 1:
        raise InputError(
            f"the model returned {len(numbers)} numbers that depend on its parameters ({described(output)}): "
            "say which is the loss with loss=lambda output: ..."
        )
    return numbers[0] if numbers else None


def first_signal(output: Any) -> Tensor | None:
    """The first floating-point tensor of an output that has entries and at least one axis."""
    signals = (item for _, item in tensors_in(output) if item.is_floating_point() and item.dim() and item.numel())
    return next(signals, None)


def white_noise(tensor: Tensor, seed: int = 0) -> Tensor:
    """Unit variance at every entry, the same numbers for the same seed, independent of all else that it draws."""
    generator = torch.Generator(tensor.device).manual_seed(seed_of(NOISE, seed))
    noise = torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
    return noise.to(tensor.dtype)


def loss_name(loss: LossFunction) -> str:
    """Words for a function: its name, with the line of a lambda and the arguments of a partial."""
    if isinstance(loss, functools.partial):
        given = [*map(str, loss.args), *(f"{key}={value}" for key, value in loss.keywords.items())]
        return f"{loss_name(loss.func)} with {', '.join(given)}"
    if isinstance(loss, nn.Module):
        return f"function {loss}"
    name = getattr(loss, "__qualname__", type(loss).__qualname__).removeprefix("<locals>.")
    code = getattr(loss, "__code__", None)
    where = f" in line {code.co_firstlineno} of {Path(code.co_filename).name}" if code and "<lambda>" in name else ""
    return f"function {name.split('<locals>.')[-1]}{where}"


def described(value: Any) -> str:
    """What a batch or an output is, in words."""
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')} on {value.device}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {described(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(described(item) for item in value) + ")"
    return type(value).__name__


def _called(loss: LossFunction, output: Any, batch: Any, name: str) -> Any:
    given = batch.given if isinstance(batch, Labelled) else batch
    arguments = (output, given) if _takes_two(loss) else (output,)
    try:
        return loss(*arguments)
    except (SigpropError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        what = "(output, batch)" if len(arguments) == 2 else "(output)"
        raise InputError(
            f"the loss, {name}, failed on {what} with {type(error).__name__}: {error}\n"
            f"  the output was {described(output)}"
        ) from error


def _takes_two(loss: LossFunction) -> bool:
    """Whether a loss asks for the batch as well: it needs two positional arguments."""
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in positional) == 2


def _one_number(loss: Any, origin: str) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise InputError(f"the loss ({origin}) is {described(loss)}: needs a tensor with one number")
    return loss


def _labels(batch: Any) -> Tensor | None:
    found = batch.get("labels") if isinstance(batch, Mapping) else None
    return found if isinstance(found, Tensor) else None


def _cross_entropy(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Classes are the last axis; the second of images and of one example's output the only one."""
    if logits.dim() > 3:
        logits = logits.movedim(1, -1)
    positions, classes = logits.shape[:-1], logits.shape[-1]
    if labels is None:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(classes, tuple(positions), generator=generator).to(logits.device)
    if labels.shape == logits.shape and labels.is_floating_point():
        return F.cross_entropy(logits.reshape(-1, classes), labels.reshape(-1, classes))
    if labels.numel() != positions.numel():
        raise InputError(
            f"labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(logits.shape)}: "
            "needs one for every position; write the loss as a function"
        )
    return F.cross_entropy(logits.reshape(-1, classes), labels.flatten())


def _mse(output: Tensor, labels: Tensor | None) -> Tensor:
    target = torch.zeros(output.shape, device=output.device) if labels is None else labels
    if target.shape != output.shape:
        raise InputError(
            f"labels of shape {tuple(target.shape)} do not fit an output of shape {tuple(output.shape)}: "
            "needs the same; write the loss as a function"
        )
    return F.mse_loss(output, target.to(output.dtype))

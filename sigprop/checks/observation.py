"""What one forward pass shows beyond moments: units, losses, gates, norms, dropout, routing; and whether the output
answers to the input at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sigprop.batches import copied, tensors_in
from sigprop.compat import own_modules
from sigprop.errors import SigpropError
from sigprop.losses import first_signal
from sigprop.measurement.batch import call
from sigprop.measurement.guard import untouched

RECTIFIERS = {F.relu, torch.relu, torch.Tensor.relu, torch.relu_, F.relu6}
BOUNDED = {torch.tanh, torch.Tensor.tanh, F.tanh}
GATES = {torch.sigmoid, torch.Tensor.sigmoid, F.sigmoid, torch.Tensor.sigmoid_}
DROPOUTS = {F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout}
CHOICES = {torch.topk, torch.Tensor.topk, torch.argmax, torch.Tensor.argmax}
SOFTMAXES = {F.softmax, torch.softmax, torch.Tensor.softmax}
NORMS = {F.layer_norm, F.rms_norm}
EPSILONS = ("eps", "variance_epsilon", "epsilon")
BOUND_SHARE = 0.05
PIECE = 1 << 20
"""Logits that are copied to float64 at once."""
FEWEST = 16
"""Positions below which a unit that is always zero says nothing."""


@dataclass(frozen=True)
class Activity:
    """Shares of units: zero on every position, and of entries within 5 % of a bound; the largest channel's share.

    `channel_share` is the second moment of the largest channel over the sum of all channels'. `silent`: what the dead
    units read is zero itself.
    """

    dead: float = 0.0
    silent: bool = False
    saturated: float = 0.0
    channel_share: float = 0.0
    channel: int = -1
    channels: int = 0


@dataclass(frozen=True)
class LossCall:
    """One cross entropy that the model computes itself, beside that of equal logits; variance of its logits over the
    classes."""

    site: str
    classes: int
    value: float
    chance: float
    variance: float


@dataclass(frozen=True)
class NormInput:
    """Median over positions of the variance (mean square) that a norm divides by, and its epsilon."""

    variance: float
    epsilon: float


@dataclass(frozen=True)
class Routing:
    """One choice among `options`, over `positions` tokens: how many options take nine tenths of them."""

    options: int
    chosen: int
    positions: int
    busy: int


@dataclass
class Observation:
    """By name of the module that runs. `broken`: modules whose output holds nan or inf; `blind`: queries whose scores
    are all -inf. `output`: the logits of the model's loss, or its first output; `other`: the same on another input."""

    activity: dict[str, Activity] = field(default_factory=dict)
    losses: list[LossCall] = field(default_factory=list)
    dropouts: dict[str, float] = field(default_factory=dict)
    norms: dict[str, NormInput] = field(default_factory=dict)
    routings: dict[str, Routing] = field(default_factory=dict)
    gates: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    blind: dict[str, int] = field(default_factory=dict)
    output: Tensor | None = None
    other: Tensor | None = None

    @property
    def answer(self) -> float:
        """Mean square of what another input changes, over that of the output about its mean; nan where unknown."""
        if self.output is None or self.other is None or self.output.shape != self.other.shape:
            return math.nan
        if not bool(self.output.isfinite().all()):
            return math.nan
        scale = float(self.output.square().mean())
        return float((self.output - self.other).square().mean()) / scale if scale > 0 else 0.0

    @property
    def position_share(self) -> float:
        """Variance of the output between positions over its mean square; nan where it has no axis of positions."""
        if self.output is None or self.output.dim() != 3 or self.output.shape[1] < 2:
            return math.nan
        if not bool(self.output.isfinite().all()):
            return math.nan
        scale = float(self.output.square().mean())
        between = float((self.output - self.output.mean(1, keepdim=True)).square().mean())
        return between / scale if scale > 0 else 0.0


def observe(model: nn.Module, batch: Any) -> Observation:
    """Two forward passes without gradients, the second on another input; the model is left as it was."""
    found, other = Observation(), Observation()
    with untouched(model.modules(), _tensors(batch)), torch.no_grad():
        found.output = _run(model, copied(batch), found)
        try:
            other.output = _run(model, another(batch), other)
        except (SigpropError, RuntimeError, IndexError, ValueError):
            other.output = None
    found.other = None if _same(batch, another(batch)) else other.output
    return found


def forward(model: nn.Module, batch: Any) -> Tensor | None:
    """The logits of the model's loss, or its first output."""
    found = Observation()
    with untouched(model.modules(), _tensors(batch)), torch.no_grad():
        return _run(model, copied(batch), found)


def another(batch: Any) -> Any:
    """Numbers in another order and with other signs, token ids in reverse of their range; masks and labels are kept."""
    if isinstance(batch, Mapping):
        return {key: item if _is_kept(key) else another(item) for key, item in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(another(item) for item in batch)
    if not isinstance(batch, Tensor) or batch.dtype == torch.bool or batch.numel() < 2:
        return batch
    if not batch.is_floating_point():
        return batch.max() + batch.min() - batch
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(batch.numel(), generator=generator).to(batch.device)
    signs = torch.randint(2, batch.shape, generator=generator).to(batch) * 2 - 1
    return batch.flatten()[order].view_as(batch) * signs


def _same(left: Any, right: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(_tensors(left), _tensors(right), strict=True))


def _is_kept(key: str) -> bool:
    return any(word in key for word in ("mask", "label", "target", "position"))


def _run(model: nn.Module, batch: Any, found: Observation) -> Tensor | None:
    torch.manual_seed(0)
    with _named(model, found) as current, _Watch(current, found) as watch:
        output = call(model, batch)
    signal = first_signal(output)
    if watch.logits is not None and (signal is None or signal.dim() != 3):
        signal = watch.logits
    return None if signal is None else signal.detach().double().cpu()


def _tensors(batch: Any) -> list[Tensor]:
    return [tensor for _, tensor in tensors_in(batch)]


@contextmanager
def _named(model: nn.Module, found: Observation) -> Iterator[list[str]]:
    """Keep the name of the module that runs; look at the channels of every module's output."""
    current: list[str] = [""]
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: current.append(name)))
        handles.append(module.register_forward_hook(_leave(name, current, found)))
    try:
        yield current
    finally:
        for handle in handles:
            handle.remove()


def _leave(name: str, current: list[str], found: Observation) -> Any:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        current.pop()
        _note_norm(name, module, inputs, found)
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if not isinstance(first, Tensor) or not first.is_floating_point():
            return
        if bool((first.isnan() | first.isposinf()).any()):
            found.broken.append(name)
        if not own_modules(module):
            return
        if first.dim() == 3 and first.shape[-1] > 1:
            energy = first.double().square().mean((0, 1))
            place = int(energy.argmax())
            share = float(energy[place] / energy.sum().clamp_min(1e-300))
            before = found.activity.get(name, Activity())
            found.activity[name] = replace(before, channel_share=share, channel=place, channels=len(energy))

    return hook


def _note_norm(name: str, module: nn.Module, inputs: Any, found: Observation) -> None:
    """A norm written as a module: it has an epsilon, and a gain as long as the last axis."""
    epsilon = next((getattr(module, key) for key in EPSILONS if isinstance(getattr(module, key, None), float)), None)
    gain = getattr(module, "weight", None)
    first = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
    if epsilon is None or first is None or not isinstance(gain, Tensor) or gain.shape != first.shape[-1:]:
        return
    found.norms[name] = NormInput(_spread(first, "Layer" in type(module).__name__), epsilon)


def _spread(x: Tensor, centred: bool) -> float:
    x = x.double()
    moments = x.var(-1, unbiased=False) if centred else x.square().mean(-1)
    return float(moments.median())


class _Watch(TorchFunctionMode):
    def __init__(self, current: list[str], found: Observation):
        super().__init__()
        self.current, self.found = current, found
        self.logits: Tensor | None = None

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = self.current[-1] or "(model)"
        if func in RECTIFIERS:
            self._note(name, dead=_dead(output), silent=not bool(args[0].any()) if func is not torch.relu_ else False)
        elif func in BOUNDED:
            self._note(name, saturated=float((output.abs() > 1.0 - BOUND_SHARE).double().mean()))
        elif func in GATES and output.numel() >= FEWEST:
            self.found.gates[name] = max(self.found.gates.get(name, 0.0), float(output.double().mean()))
        elif func in DROPOUTS:
            share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            self.found.dropouts[name] = max(self.found.dropouts.get(name, 0.0), float(share))
        elif func in CHOICES and isinstance(args[0], Tensor):
            self._note_choice(name, args[0], output[1] if isinstance(output, tuple) else output)
        elif func in NORMS:
            epsilon = kwargs.get("eps", args[4] if len(args) > 4 else None)
            centred = func is F.layer_norm
            if isinstance(epsilon, float):
                self.found.norms[name] = NormInput(_spread(args[0], centred), epsilon)
        elif func in SOFTMAXES:
            self._note_blind(name, args[0])
        elif func is F.scaled_dot_product_attention:
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
            if mask is not None:
                self._note_blind(name, mask if mask.is_floating_point() else torch.where(mask, 0.0, -math.inf))
        elif func is F.cross_entropy:
            self._note_loss(name, args, kwargs, output)
        return output

    def _note(self, name: str, dead: float = 0.0, silent: bool = False, saturated: float = 0.0) -> None:
        before = self.found.activity.get(name, Activity())
        self.found.activity[name] = replace(
            before, dead=max(before.dead, dead), silent=before.silent or silent,
            saturated=max(before.saturated, saturated),
        )  # fmt: skip

    def _note_blind(self, name: str, scores: Tensor) -> None:
        rows = int((scores == -math.inf).all(-1).sum()) if scores.dim() > 1 else 0
        if rows:
            self.found.blind[name] = rows

    def _note_choice(self, name: str, scores: Tensor, chosen: Tensor) -> None:
        options, count = scores.shape[-1], chosen.numel() * scores.shape[-1] // max(scores.numel(), 1)
        positions = scores.numel() // options
        if count < 1 or 2 * count > options or positions < 2 * options or chosen.is_floating_point():
            return
        load = torch.bincount(chosen.flatten().clamp(0, options - 1), minlength=options).double().sort(descending=True)
        busy = int((load.values.cumsum(0) < 0.9 * chosen.numel()).sum()) + 1
        self.found.routings[name] = Routing(options, count, positions, busy)

    def _note_loss(self, name: str, args: Any, kwargs: Any, output: Any) -> None:
        logits = args[0] if args else kwargs["input"]
        if logits.dim() < 2 or not isinstance(output, Tensor) or output.dim():
            return
        logits = logits.movedim(1, -1).flatten(0, -2) if logits.dim() > 2 else logits
        rows = [_over_classes(part) for part in logits.split(max(1, PIECE // max(1, logits.shape[-1])))]
        counts, spread = (torch.cat(column) for column in zip(*rows, strict=True))
        value = float(output) / (1 if kwargs.get("reduction", "mean") == "mean" else len(logits))
        chance, variance = float(counts.log().mean()), float(spread.mean())
        self.found.losses.append(LossCall(name, logits.shape[-1], value, chance, variance))
        self.logits = logits


def _over_classes(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row: how many classes are allowed, and the variance of their logits."""
    allowed, values = logits.isfinite(), logits.double()
    counts = allowed.sum(-1).clamp_min(1).double()
    mean = values.where(allowed, 0.0).sum(-1) / counts
    return counts, (values - mean[:, None]).square().where(allowed, 0.0).sum(-1) / counts


def _dead(output: Tensor) -> float:
    """Share of units that are zero on every position: channels come last, or second where there are pixels."""
    axis = 1 if output.dim() == 4 else output.dim() - 1
    units = output.movedim(axis, 0).flatten(1)
    if units.dim() < 2 or units.shape[1] < FEWEST:
        return 0.0
    return float((units == 0).all(1).double().mean())

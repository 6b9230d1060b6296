"""What forward passes show beyond moments: the calls of one, and whether outputs answer to the input and the seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import copied, tensors_in
from sigprop.checks.calls import Activity, Calls, NormInput
from sigprop.checks.ends import entered
from sigprop.checks.operations import CallWatch, filled, note_recurrence
from sigprop.checks.thresholds import limit
from sigprop.compat import own_modules, return_free_memory
from sigprop.errors import SigpropError
from sigprop.losses import LossChoice, first_signal, objective
from sigprop.measurement.batch import call
from sigprop.measurement.guard import untouched
from sigprop.sites import hookable_modules

PIECE = 1 << 18
"""Entries of logits that are squared at once: of all there are many, in float64."""
EPSILONS = ("eps", "variance_epsilon", "epsilon")


@dataclass
class Observation(Calls):
    """`broken`: modules whose output holds nan or inf. `output`: the logits of the model's loss, or its first output,
    or what its losses read; `other`: the same on another input. `pairs`: it is a product of two signals. `noise`: share
    of the output that another seed changes. `rounding`: share of the output that changes where modules round what they
    make to bfloat16. `fixed`: by softmax the share of the variance of its logits that another input leaves as it is.
    `differentiates`: the forward pass takes gradients itself."""

    broken: list[str] = field(default_factory=list)
    output: Tensor | None = None
    other: Tensor | None = None
    pairs: bool = False
    noise: float = 0.0
    rounding: float = math.nan
    fixed: dict[str, float] = field(default_factory=dict)
    differentiates: bool = False

    @property
    def answer(self) -> float:
        """Mean square of what another input changes, over that of the output; nan where unknown."""
        return changed_share(self.output, self.other)

    @property
    def example_share(self) -> float:
        """The same between examples."""
        if self.output is None or self.output.dim() < 2 or len(self.output) < 2:
            return math.nan
        return changed_share(self.output, self.output.mean(0, keepdim=True).expand_as(self.output))

    @property
    def position_share(self) -> float:
        """Variance of the output between positions over its mean square; nan where it has no axis of positions."""
        if self.output is None or self.output.dim() != 3 or self.output.shape[1] < 2:
            return math.nan
        return changed_share(self.output, self.output.mean(1, keepdim=True).expand_as(self.output))


def changed_share(output: Tensor | None, other: Tensor | None) -> float:
    if output is None or other is None or output.shape != other.shape or not bool(output.isfinite().all()):
        return math.nan
    kept = ~(filled(output) & filled(other))
    before = after = 0.0
    for one, two, taken in zip(*(item.reshape(-1).split(PIECE) for item in (output, other, kept)), strict=True):
        before += float(one[taken].square().sum())
        after += float((one - two)[taken].square().sum())
    return after / before if before > 0 else 0.0


def observe(model: nn.Module, batch: Any, loss: LossChoice = None) -> Observation:
    """A few forward passes, without gradients where the model takes none itself; it is left as it was."""
    with untouched(model.modules(), _tensors(batch)):
        try:
            with torch.no_grad():
                found = _observed(model, batch, loss)
        except SigpropError:  # its forward differentiates: forces, penalties, equations
            found = replace(_observed(model, batch, loss), differentiates=True)
    return_free_memory()
    return found


def _observed(model: nn.Module, batch: Any, loss: LossChoice) -> Observation:
    found, other = Observation(), Observation()
    found.output = _run(model, copied(batch), found, loss)
    with_other = another(batch)
    if not _same(batch, with_other):
        try:
            found.other = _run(model, with_other, other)
            found.fixed = _fixed_shares(found, other)
        except (SigpropError, RuntimeError, IndexError, ValueError):
            found.other = None
    found.rounding = _rounding(model, batch, found.output)
    found.noise = _noise(model, batch, found.output)
    return found


def forward(model: nn.Module, batch: Any, seed: int = 0) -> Tensor | None:
    """The logits of the model's loss, or its first output."""
    return _run(model, copied(batch), Observation(), None, seed)


def _rounding(model: nn.Module, batch: Any, output: Tensor | None) -> float:
    """What rounding the outputs of all modules of torch changes; nan where the pass is in a low precision already."""
    if output is None or any(item.dtype.itemsize < 4 for item in model.parameters() if item.is_floating_point()):
        return math.nan
    leaves = [module for _, module in hookable_modules(model) if not own_modules(module)]
    handles = [module.register_forward_hook(lambda *made: _rounded(made[-1])) for module in leaves]
    try:
        return changed_share(output, forward(model, batch))
    finally:
        for handle in handles:
            handle.remove()


def _rounded(made: Any) -> Any:
    kept = not isinstance(made, Tensor) or made.dtype not in (torch.float32, torch.float64)
    return made if kept else made.bfloat16().to(made.dtype)


def _noise(model: nn.Module, batch: Any, output: Tensor | None) -> float:
    """Share of the output's variance that only training adds: that of another seed, less that without training."""
    if output is None or not any(module.training for module in model.modules()):
        return 0.0
    share = unlike(output, forward(model, batch, seed=1))
    if not share > 0.5:
        return 0.0
    model.eval()
    calm = [forward(model, batch, seed) for seed in (0, 1)]
    return share if calm[0] is not None and not unlike(calm[0], calm[1]) > 0.5 else 0.0


def is_drawing(model: nn.Module) -> bool:
    return any("drop" in type(module).__name__.lower() for module in model.modules())


def unlike(first: Tensor | None, second: Tensor | None) -> float:
    """One for independent tensors, zero for equal ones, about their common means."""
    if first is None or second is None or first.shape != second.shape:
        return math.nan
    spread = float(first.var(correction=0) + second.var(correction=0))
    return float((first - second).var(correction=0)) / spread if spread > 0 else 0.0


def _fixed_shares(found: Calls, other: Calls) -> dict[str, float]:
    shares = {}
    for name, item in found.softmaxes.items():
        again = other.softmaxes.get(name)
        if item.logits is not None and again is not None and again.logits is not None:
            first, second = item.logits.double(), again.logits.double()
            if first.shape == second.shape:
                allowed = first.isfinite() & second.isfinite() & (first > -1e4)
                moved = float((first - second)[allowed].var()) / 2
                shares[name] = max(0.0, 1.0 - moved / max(float(first[allowed].var()), 1e-300))
    return shares


def another(batch: Any) -> Any:
    """Numbers in another order and with other signs (mirrored, where none is negative), token ids half of their range
    on; masks and labels are kept."""
    if isinstance(batch, Mapping):
        return {key: item if is_kept(key) else another(item) for key, item in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(another(item) for item in batch)
    return other_values(batch) if isinstance(batch, Tensor) else batch


def other_values(item: Tensor) -> Tensor:
    if item.dtype == torch.bool or item.numel() < 2:
        return item
    if not item.is_floating_point():
        low, count = item.min(), item.max() - item.min() + 1
        return (item - low + count // 2) % count + low
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(item.numel(), generator=generator).to(item.device)
    signs = torch.randint(2, item.shape, generator=generator).to(item) * 2 - 1
    mixed = item.flatten()[order].view_as(item)
    return mixed * signs if bool((item < 0).any()) else item.min() + item.max() - mixed


def _same(left: Any, right: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(_tensors(left), _tensors(right), strict=True))


def is_kept(key: str) -> bool:
    return any(word in key for word in ("mask", "label", "target", "position"))


def _run(model: nn.Module, batch: Any, found: Observation, loss: LossChoice = None, seed: int = 0) -> Tensor | None:
    torch.manual_seed(seed)
    inputs = [item for place, item in tensors_in(batch) if not is_kept(place)]
    inputs = inputs[:-1] if isinstance(batch, (tuple, list)) and len(inputs) > 1 else inputs
    with _looked_at(model, found) as current, CallWatch(current, found, _tensors(batch), inputs, model) as watch:
        output = call(model, batch)
        if callable(loss):
            current.append("loss")
            objective(output, batch, loss)
    signal = first_signal(output)
    judged = [item.source for item in found.losses if item.kind == "cross_entropy"]
    made = judged[-1] if watch.logits is not None else watch.source_of(signal)
    found.pairs = made is not None and bool(made.factors)
    if watch.logits is not None and (signal is None or signal.dim() != 3):
        signal = watch.logits
    elif signal is None and watch.judged:
        signal = watch.judged[0] if len(watch.judged) == 1 else torch.cat([item.flatten() for item in watch.judged])
    return None if signal is None else signal.detach().double().cpu()


def _tensors(batch: Any) -> list[Tensor]:
    return [tensor for _, tensor in tensors_in(batch)]


@contextmanager
def _looked_at(model: nn.Module, found: Observation) -> Iterator[list[str]]:
    """Look at the channels of every module's output."""
    with entered(model) as current:
        handles = [module.register_forward_hook(_look(name, found)) for name, module in hookable_modules(model)]
        try:
            yield current
        finally:
            for handle in handles:
                handle.remove()


def _look(name: str, found: Observation) -> Any:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        _note_norm(name, module, inputs, output, found)
        note_recurrence(found, name, module, inputs, output)
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


def _note_norm(name: str, module: nn.Module, inputs: Any, output: Any, found: Observation) -> None:
    """A norm written as a module: it has an epsilon, and a gain as long as the last axis (of images: the second)."""
    epsilon = next((getattr(module, key) for key in EPSILONS if isinstance(getattr(module, key, None), float)), None)
    gain = getattr(module, "weight", None)
    first = inputs[0] if inputs and isinstance(inputs[0], Tensor) else None
    if epsilon is None or first is None or not isinstance(gain, Tensor) or gain.dim() != 1 or first.dim() < 2:
        return
    axis = -1 if first.shape[-1] == len(gain) else 1
    if isinstance(output, Tensor) and output.shape == first.shape and first.shape[axis] == len(gain):
        sizes = [float(item.double().square().mean()) for item in (first, output, gain, 1 + gain)]
        bias = getattr(module, "bias", None)
        shift = float(bias.double().square().mean()) if isinstance(bias, Tensor) else 0.0
        sums, allowed = [size + shift for size in sizes[2:]], limit("norm_output")
        wanted = next((size for size in sums if size < allowed * sizes[1] < allowed**2 * size), sums[0])
        found.normalized[name] = (sizes[0], sizes[1], wanted)
    if axis != -1:
        return
    x = first.double()
    moments = x.var(-1, unbiased=False) if "Layer" in type(module).__name__ else x.square().mean(-1)
    found.norms[name] = NormInput(float(moments.median()), epsilon)

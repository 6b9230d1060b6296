"""Is the user's own model ordered, critical or chaotic, and which gain would make it critical?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from sigprop.errors import InputError
from sigprop.measurement.guard import untouched
from sigprop.measurement.jacobian import PartialJacobian, jacobian_profile, module_names, repeated_blocks

_GAINS = tuple(2.0 ** (k / 2) for k in range(-6, 7))


@dataclass
class CriticalityReport:
    """chi_J of each block, what it means over this depth, and the gain on block weights that gives chi_J = 1."""

    blocks: list[dict[str, Any]]
    factor: float
    standard_error: float
    depth_scale: float
    verdict: str
    growth: float
    gain: float | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_criticality(
    model: nn.Module,
    batch: Any,
    blocks: Iterable[str] | None = None,
    *,
    probes: int = 8,
    seed: int = 0,
    find_gain: bool = True,
) -> CriticalityReport:
    """chi_J at each repeated block (found by name, or given), and a verdict for this depth.

    The factor is the geometric mean over the later half of the blocks, where the signal has settled; the depth
    scale 1 / |log factor| is the number of blocks over which squared gradients change by e. Critical means that it is
    not shorter than the stack; ordered and chaotic, that gradients vanish or explode within it. `growth` is the
    change of the squared gradient over all measured blocks. One model as it is: no average over initializations.
    `gain` is that of a stack of this depth: near criticality a signal settles slowly, so that it may differ from that
    of an infinitely deep one (tanh without biases, 24 layers: 1.09 for 1).
    """
    names = module_names(model, repeated_blocks(model) if blocks is None else blocks)
    found = jacobian_profile(model, batch, names, probes=probes, seed=seed)
    logarithm, error = _settled(found)
    scale = 1 / abs(logarithm) if logarithm else math.inf
    verdict = "critical" if scale >= len(names) else "chaotic" if logarithm > 0 else "ordered"
    report = CriticalityReport(
        [{"name": j.target, "factor": j.value, "standard_error": j.standard_error} for j in found],
        math.exp(logarithm),
        math.exp(logarithm) * error,
        scale,
        verdict,
        math.prod(j.value for j in found),
    )
    power = _power_law(found)
    if power is not None:
        report.verdict = "critical"
        report.notes.append(f"the factor approaches 1 with depth: squared gradients change as depth^{power:.2g}")
    if find_gain:
        report.gain, note = _critical_gain(model, batch, names, probes, seed)
        report.notes.append(note)
    return report


def _settled(found: list[PartialJacobian]) -> tuple[float, float]:
    """Mean log chi_J over the later half of the blocks, and its standard error from the probes."""
    late = found[len(found) // 2 :]
    for bad in late:
        if not _usable(bad):
            raise InputError(
                f"{bad.target}: the Jacobian factor is {bad.value}; the signal has overflowed or died before this block"
            )
    errors = [j.standard_error / j.value for j in late]
    return sum(math.log(j.value) for j in late) / len(late), math.hypot(*errors) / len(late)


def _usable(factor: PartialJacobian) -> bool:
    return math.isfinite(factor.value) and factor.value > 0


def _power_law(found: list[PartialJacobian]) -> float | None:
    """The exponent g if log chi_J falls off like g / l rather than staying constant; None otherwise.

    For g / l the mean over the second half of the blocks is half that over the second quarter.
    """
    count = len(found)
    if count < 12 or not all(map(_usable, found)):
        return None
    early = [math.log(j.value) for j in found[count // 4 : count // 2]]
    late = [math.log(j.value) for j in found[count // 2 :]]
    before, after = sum(early) / len(early), sum(late) / len(late)
    if before * after <= 0 or abs(after) > 0.7 * abs(before):
        return None
    return after * len(late) / math.log(2)


def _critical_gain(model: nn.Module, batch: Any, names: list[str], probes: int, seed: int) -> tuple[float | None, str]:
    """The common factor on all block weights nearest to 1 at which the settled chi_J is 1; same probes throughout.

    A crossing is noise where at both its ends the whole stack changes gradients by less than a tenth.
    """

    blocks = [model.get_submodule(name) for name in names]
    weights = {id(p): p for block in blocks for p in block.parameters() if p.dim() >= 2}  # not biases, nor norms

    def growth(gain: float) -> float:
        with untouched(model.modules()) as interrupts, torch.no_grad(), interrupts.let_through():
            for weight in weights.values():
                weight.mul_(gain)
            try:
                return _settled(jacobian_profile(model, batch, names, probes=probes, seed=seed))[0]
            except InputError:
                return math.inf if gain > 1 else -math.inf

    values = [growth(gain) for gain in _GAINS]
    brackets = [
        i
        for i, (low, high) in enumerate(pairwise(values))
        if low * high <= 0 and max(abs(low), abs(high)) * len(names) > 0.1
    ]
    if not brackets:
        side = "above" if values[len(values) // 2] > 0 else "below"
        return None, f"no gain between {_GAINS[0]:.3g} and {_GAINS[-1]:.3g} makes it critical: chi_J stays {side} 1"
    nearest = min(brackets, key=lambda i: abs(math.log(_GAINS[i] * _GAINS[i + 1])))
    low, high, at_low = _GAINS[nearest], _GAINS[nearest + 1], values[nearest]
    for _ in range(10):
        middle = math.sqrt(low * high)
        at_middle = growth(middle)
        if (at_middle > 0) == (at_low > 0):
            low, at_low = middle, at_middle
        else:
            high = middle
    gain = math.sqrt(low * high)
    return gain, f"weights of the blocks times {gain:.4g} give chi_J = 1"

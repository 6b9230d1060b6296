"""What single inputs, places and examples of a batch change: each is replaced alone, and the passes are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import copied, leaves, mapped, tensors_in
from sigprop.checks.ends import GradientTape, entered
from sigprop.checks.observation import Observation, changed_share, forward, is_drawing, is_kept, other_values
from sigprop.checks.thresholds import limit
from sigprop.compat import BatchNorm
from sigprop.errors import SigpropError
from sigprop.losses import LossChoice, objective
from sigprop.measurement.batch import call
from sigprop.measurement.guard import untouched

NORMALIZERS = ("softmax", "log_softmax", "normalize", "layer_norm", "rms_norm")
"""Functions that keep a shape and divide by what they find along an axis."""
MEMORY = 16
"""Places at the end through which a recurrent state must carry what came before."""
EXACT = 1e-13
"""Share of the output that rounding of float32 changes, well above (6e-8)^2."""


@dataclass(frozen=True)
class Influence:
    """`idle`: inputs that change nothing, with the function in which they are lost, or that a zero which learns still
    hides. `mixed`: share of other examples' outputs that one example changes; `seen`: share of earlier outputs that
    later places change; each with the place at which that happens first, and `axis` where a function does it that runs
    along the wrong one. `late`: all places from this one on change nothing; `forgotten`: all before this one; 0 for
    none. `silent`: rows of the output that no input changes, of how many. `causal`: later places change nothing
    earlier."""

    idle: tuple[tuple[str, str], ...] = ()
    mixed: float = 0.0
    seen: float = 0.0
    where: str = ""
    axis: str = ""
    late: int = 0
    forgotten: int = 0
    silent: tuple[int, int] = (0, 0)
    causal: bool = False


def influence(model: nn.Module, batch: Any, found: Observation, loss: LossChoice) -> Influence:
    """`found`: what was observed on this batch."""
    before = found.output
    inputs = [(place, item) for place, item in tensors_in(batch) if _changes(place, item)]
    if before is None or not inputs or not bool(before.isfinite().all()) or (model.training and is_drawing(model)):
        return Influence()
    with untouched(model.modules(), [tensor for _, tensor in tensors_in(batch)]), torch.no_grad():
        idle = tuple(_idle(model, batch, before, loss, inputs)) if len(inputs) > 1 else ()
        return _placed(model, batch, found, inputs[0][1], idle)


def _changes(place: str, item: Tensor) -> bool:
    return not is_kept(place) and item.numel() > 1 and not torch.equal(item, other_values(item))


# -- one input of several


def _idle(
    model: nn.Module, batch: Any, before: Tensor, loss: LossChoice, inputs: list[tuple[str, Tensor]]
) -> Iterator[tuple[str, str]]:
    for place, _ in inputs:
        changed = _replaced(batch, {place: other_values})
        after = _passed(model, changed)
        if after is None or not changed_share(before, after) <= limit("same_output") or not bool(before.any()):
            continue
        first, second = (_taped(model, item, loss) for item in (batch, changed))
        if first[1] == second[1]:
            lost = _lost(first[0], second[0])
            if lost is not None:
                yield place.strip("[]"), lost


def _passed(model: nn.Module, batch: Any) -> Tensor | None:
    """The output; None where the model does not take such values."""
    try:
        return forward(model, batch)
    except (SigpropError, RuntimeError, IndexError, ValueError):
        return None


def _replaced(batch: Any, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Any:
    """A copy of a batch in which the tensors at some places are others."""
    places = iter([place for place, _ in leaves(batch)] if not isinstance(batch, Tensor) else [""])

    def change(item: Any) -> Any:
        place = next(places, "")
        return changes[place](item) if place in changes else item

    return mapped(dict(copied(batch)) if isinstance(batch, Mapping) else copied(batch), change)


def _taped(model: nn.Module, batch: Any, loss: LossChoice) -> tuple[GradientTape, list[float]]:
    """All calls of a pass, and the numbers that it ends in."""
    with entered(model) as current, GradientTape(current) as tape:
        torch.manual_seed(0)
        output = call(model, batch)
        if callable(loss):
            output = (output, objective(output, batch, loss).tensor)
    return tape, [float(item) for _, item in tensors_in(output) if not item.dim()]


LIKE = ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_empty", "new_full", "ge",
        "gt", "le", "lt", "eq", "ne", "isnan", "isinf", "isfinite")  # fmt: skip
"""Functions that read a shape, or compare."""


def _lost(first: GradientTape, second: GradientTape) -> str | None:
    """The first function that makes the same of what differs; None where a factor of zero does, since it may learn."""
    found = ""
    if len(first.calls) == len(second.calls):
        for one, two in zip(first.calls, second.calls, strict=True):
            if _equal(one.given, two.given) or not _equal(one.made, two.made) or one.name in LIKE:
                continue
            if any(isinstance(item, Tensor) and not bool(item.any()) for item in one.factors):
                return None
            found = found or f"`{one.name}` in {one.site}"
    return found


def _equal(first: list[Any], second: list[Any]) -> bool:
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if isinstance(a, Tensor) and isinstance(b, Tensor)]
    return all(torch.equal(a, b) for a, b in pairs)


# -- places and examples


def _placed(
    model: nn.Module, batch: Any, found: Observation, first: Tensor, idle: tuple[tuple[str, str], ...]
) -> Influence:
    """One pass: of the first example the later half is another, of the second all that is long past; the rest stays."""
    count = len(first)
    ids = not first.is_floating_point() and first.dim() == 2
    length = first.shape[1] if (ids or first.dim() == 3) and first.shape[1] > 3 else 0
    half, past = length // 2, length - MEMORY if count > 2 and length >= 1.5 * MEMORY and _recurs(model) else 0

    def probe(item: Tensor) -> Tensor:
        if len(item) != count or (length and item.shape[1:2] != (length,)):
            return item
        new, made = item.clone(), other_values(item)
        new[0] = torch.cat([item[0, :half], made[0, half:]]) if length else made[0]
        if past:
            new[1, :past] = made[1, :past]
        return new

    rows = _by_example(found.output, count, length)
    if rows is None:
        return Influence(idle)
    places = {place: probe for place, item in tensors_in(batch) if _changes(place, item)}
    changed = _replaced(batch, places)
    after = _by_example(_passed(model, changed), count, length)
    if after is None or after.shape != rows.shape:
        return Influence(idle)
    size = float(rows.square().mean()) or 1.0
    moved = (after - rows).square() / size
    untouched_rows = moved[2 if past else 1 :]
    along = rows.dim() > 2 and rows.shape[1] == length > 0
    before_half = float(moved[0, :half].mean()) if along else 0.0
    seen = before_half if ids and _next_wanted(batch, first) else 0.0
    mixed = float(untouched_rows.mean()) if len(untouched_rows) and not found.pairs and _separate(model, first) else 0.0
    shown = not any("mask" in place for place, _ in tensors_in(batch))
    hidden = length and not along and shown and first[0, half:].ne(other_values(first)[0, half:]).any()
    late = half if hidden and float(moved[0].max()) == 0.0 and len(rows) > 1 else 0
    end = moved[1, -1] if along and past else moved[1] if past else moved
    forgotten = past if past and shown and float(end.max()) <= EXACT else 0
    where, axis = "", ""
    if max(mixed, seen) > limit("leak"):
        where, axis = _first_place(model, batch, changed, count, 0 if mixed > limit("leak") else half)
    causal = along and before_half <= EXACT
    return Influence(idle, mixed, seen, where, axis, late, forgotten, _silent(found, count), causal)


def _next_wanted(batch: Any, ids: Tensor) -> bool:
    """Whether another tensor of the batch holds the tokens that come after."""
    others = [item for _, item in tensors_in(batch) if item is not ids and item.shape == ids.shape]
    return any(torch.equal(ids[:, 1:], item[:, :-1]) for item in others)


def _recurs(model: nn.Module) -> bool:
    return any(isinstance(module, (nn.RNNBase, nn.RNNCellBase)) for module in model.modules())


def _by_example(output: Tensor | None, count: int, length: int) -> Tensor | None:
    """The output with examples first; logits of all tokens may come as one list."""
    if output is None or output.dim() < 2 or count < 1:
        return None
    if length and output.dim() == 2 and len(output) == count * length:
        return output.view(count, length, -1)
    return output if len(output) == count else None


def _separate(model: nn.Module, first: Tensor) -> bool:
    """Whether examples are to be told apart: sequences or images, not nodes of a graph or a batch norm's."""
    together = any(isinstance(module, BatchNorm) and module.training for module in model.modules())
    samples = first.dim() > 2 or (first.dim() == 2 and not first.is_floating_point())
    return samples and not together


def _silent(found: Observation, count: int) -> tuple[int, int]:
    """Rows of the output that are the same on another input while others are not."""
    before, other = found.output, found.other
    if (
        before is None
        or other is None
        or other.shape != before.shape
        or before.dim() != 2
        or len(before) != count
        or count < 4
    ):
        return (0, 0)
    rows = int((before == other).all(1).sum())
    return (rows, count) if 0 < rows < count else (0, 0)


def _first_place(model: nn.Module, batch: Any, changed: Any, count: int, half: int) -> tuple[str, str]:
    """The innermost module that reads what was changed only where it was, and makes what is changed elsewhere; and the
    function in it that runs along the wrong axis."""

    def spread(one: Any, two: Any) -> bool | None:
        """Whether examples other than the first, or places before `half`, differ; None where it has no such axes."""
        if not isinstance(one, Tensor) or one.dim() < 2 or len(one) != count or one.shape != two.shape:
            return None
        rest = (one[:1, :half], two[:1, :half]) if half else (one[2:], two[2:])
        return not torch.equal(*rest) if rest[0].numel() else None

    (first, kept), (second, again) = (_recorded(model, item) for item in (batch, changed))
    axis = ""
    for one, two in zip(first.calls, second.calls, strict=False):
        if one.name in NORMALIZERS and one.given and spread(one.given[0], two.given[0]) is False:
            axis = axis or (f"`{one.name}` in {one.site}" if spread(one.made[0], two.made[0]) else "")
    for (name, given, made), (_, given2, made2) in zip(kept, again, strict=False):
        if name and spread(given, given2) is False and spread(made, made2):
            return name, axis
    return "the model", axis


def _recorded(model: nn.Module, batch: Any) -> tuple[GradientTape, list[tuple[str, Any, Any]]]:
    kept: list[tuple[str, Any, Any]] = []
    handles = []
    for name, module in model.named_modules():

        def keep(_: Any, given: Any, output: Any, name: str = name) -> None:
            first, last = (next((item for _, item in tensors_in(part)), None) for part in (given, output))
            kept.append((name, first, last))

        handles.append(module.register_forward_hook(keep))
    try:
        return _taped(model, batch, None)[0], kept
    finally:
        for handle in handles:
            handle.remove()

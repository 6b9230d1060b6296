"""What single inputs, places and examples of a batch change: each is replaced alone, and the passes are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import copied, leaves, mapped, tensors_in
from sigprop.checks.ends import GradientTape, TracedCall, entered
from sigprop.checks.observation import Observation, another, changed_share, forward, is_drawing, is_kept, other_values
from sigprop.checks.thresholds import limit
from sigprop.compat import BatchNorm
from sigprop.errors import SigpropError
from sigprop.losses import LossChoice, objective
from sigprop.measurement.batch import call
from sigprop.measurement.guard import untouched

MEMORY = 16
"""Places at the end through which a recurrent state must carry what came before."""
FEW = 3
"""Examples, up to which none can be spared for what comes once for each."""
PADDED = 2
"""Places at the end that hold one number, on average, from which on they are padding."""
EXACT = 1e-13
"""Share of the output that rounding of float32 changes, well above (6e-8)^2."""
LIKE = ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_empty", "new_full")
COMPARED = ("ge", "gt", "le", "lt", "eq", "ne", "isnan", "isinf", "isfinite")
"""Functions that read a shape, and that compare: what they make may be the same."""
ALONG = (
    "softmax",
    "log_softmax",
    "normalize",
    "layer_norm",
    "rms_norm",
    "cumsum",
    "norm",
    "linalg_norm",
    "vector_norm",
)
"""Functions that run along an axis; along that of the batch they mix what no other reason mixes."""
STATISTICS = ("mean", "var", "std", "var_mean", "std_mean")
"""Functions by which a batch is averaged on purpose: norms, and features of a whole batch."""


@dataclass(frozen=True)
class Influence:
    """`constant`: the function that makes the same of all inputs, where the output (rounding aside) depends on none;
    `idle`: those of several that change nothing, with the function in which each is lost. `mixed`: share of other
    examples' outputs that one example changes; `seen`: share of earlier outputs that later places change, where these
    are wanted; `where` and `function`: the first to do so. `late`: all places from this one on change nothing;
    `forgotten`: all before this one; 0 for none. `silent`: rows of the output that no input changes, of how many.
    `causal`: later places change nothing earlier. `orderless`: a place that can be exchanged with the next, and only
    their outputs are. `hidden`: a mask, and the share of the rest that changes with the tokens that it hides;
    `padded`: share of an example's output that the padding behind it changes."""

    constant: str = ""
    idle: tuple[tuple[str, str], ...] = ()
    mixed: float = 0.0
    seen: float = 0.0
    where: str = ""
    function: str = ""
    late: int = 0
    forgotten: int = 0
    silent: tuple[int, int] = (0, 0)
    causal: bool = False
    orderless: int = 0
    hidden: tuple[str, float] = ("", 0.0)
    padded: float = 0.0


def influence(model: nn.Module, batch: Any, found: Observation, loss: LossChoice) -> Influence:
    """`found`: what was observed on this batch."""
    inputs = {place: item for place, item in tensors_in(batch) if _has_others(place, item)}
    before = found.output
    if before is None or not inputs or not bool(before.isfinite().all()) or (model.training and is_drawing(model)):
        return Influence()
    with (
        untouched(model.modules(), [tensor for _, tensor in tensors_in(batch)]),
        torch.set_grad_enabled(found.differentiates),
    ):
        if found.answer <= limit("same_output") or found.rounding > limit("rounding"):
            lost = _lost(*(_taped(model, item)[0] for item in (batch, another(batch))))
            if lost or found.answer <= limit("same_output"):
                return Influence(lost or "")
        idle = tuple(_idle(model, batch, before, loss, inputs)) if len(inputs) > 1 else ()
        return _placed(model, batch, found, inputs, idle)


def _has_others(place: str, item: Tensor) -> bool:
    return not is_kept(place) and item.numel() > 1 and item.dim() > 0 and not torch.equal(item, other_values(item))


def _idle(model: nn.Module, batch: Any, before: Tensor, loss: LossChoice, inputs: Any) -> Iterator[tuple[str, str]]:
    """Inputs that change neither the output nor the loss."""
    for place in inputs:
        changed = _replaced(batch, {place: other_values})
        if changed_share(before, _passed(model, changed)) <= limit("same_output"):
            first, second = (_taped(model, item, loss) for item in (batch, changed))
            lost = _lost(first[0], second[0]) if first[1] == second[1] else None
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
    places = iter([""] if isinstance(batch, Tensor) else [place for place, _ in leaves(batch)])
    plain = dict(batch) if isinstance(batch, Mapping) else batch
    return mapped(copied(plain), lambda item: changes.get(next(places, ""), lambda same: same)(item))


def _taped(model: nn.Module, batch: Any, loss: LossChoice = None) -> tuple[GradientTape, list[float]]:
    """All calls of a pass, and the numbers that it ends in."""
    with entered(model) as current, GradientTape(current) as tape:
        torch.manual_seed(0)
        output = call(model, batch)
        if callable(loss):
            output = (output, objective(output, batch, loss).tensor)
    return tape, [float(item) for _, item in tensors_in(output) if not item.dim()]


def _lost(first: GradientTape, second: GradientTape) -> str | None:
    """The first function that makes the same of what differs; None where a factor of zero does, since it may learn."""
    found = ""
    for one, two in zip(first.calls, second.calls, strict=False):
        entered, left = _change(one.given, two.given), _change(one.made, two.made)
        if one.name in (*LIKE, *COMPARED) or not entered or left > limit("same_output") * entered:
            continue
        if any(isinstance(item, Tensor) and not bool(item.any()) for item in one.factors):
            return None
        found = found or f"`{one.name}` in {one.site}"
    return found


def _change(first: list[Any], second: list[Any]) -> float:
    """Largest mean square of the differences; of whole numbers, whose size says nothing, next to nothing."""
    pairs = [(a, b) for a, b in zip(first, second, strict=False) if isinstance(a, Tensor) and isinstance(b, Tensor)]
    pairs = [(a, b) for a, b in pairs if a.shape == b.shape and not torch.equal(a, b)]
    sizes = [
        float((a.double() - b.double()).nan_to_num(0.0).square().mean()) if a.is_floating_point() else 1e-30
        for a, b in pairs
    ]
    return max(sizes, default=0.0)


def _placed(model: nn.Module, batch: Any, found: Observation, inputs: Any, idle: Any) -> Influence:
    """One pass: of the first example the later half is another, of the second all that is long past, of
    the last what comes once for each example; the rest stays."""
    first = next((item for place, item in inputs.items() if place.strip("[]") not in dict(idle)), None)
    if first is None:
        return Influence(idle=idle)
    ids, count = not first.is_floating_point() and first.dim() == 2, len(first)
    length = first.shape[1] if (ids or first.dim() == 3) and first.shape[1] > 3 else 0
    half, past = length // 2, length - MEMORY if count > 2 and length >= 1.5 * MEMORY and _recurs(model) else 0

    def probe(item: Tensor) -> Tensor:
        if len(item) != count:
            return item
        new, made = item.clone(), other_values(item)
        if length and item.shape[1:2] != (length,):  # what goes with an example (a step, a class): that of the last
            new[-1] = made[-1] if count > FEW else new[-1]
            return new
        new[0] = torch.cat([item[0, :half], made[0, half:]]) if length else made[0]
        if past:
            new[1, :past] = made[1, :past]
        return new

    changed = _replaced(batch, dict.fromkeys(inputs, probe))
    rows = _by_example(found.output, count, length)
    after = None if rows is None else _by_example(_passed(model, changed), count, length)
    if rows is None or after is None or after.shape != rows.shape:
        return Influence(idle=idle)
    moved = (after - rows).square_().div_(float(rows.square().mean()) or 1.0)
    shown = not any("mask" in place for place, _ in tensors_in(batch))
    along = rows.dim() > 2 and rows.shape[1] == length > 0
    earlier = float(moved[0, :half].mean()) if along else 0.0
    seen = earlier if ids and _next_wanted(batch, first) else 0.0
    rest = moved[2 if past else 1 : -1 if count > FEW else None]
    mixed = float(rest.mean()) if len(rest) else 0.0
    meets = found.pairs or not _separate(model, first)
    late = (
        length and not along and shown and count > 1 and not bool(moved[0].any()) and _unread(model, batch, found, half)
    )
    end = moved[1, -1] if past and along else moved[min(1, count - 1)]
    where = function = ""
    if max(mixed, seen) > limit("leak"):
        place = _first(model, batch, changed, count, 0 if mixed > limit("leak") else length)
        where, function = place or ("", "")
        mixed = mixed if place and (not meets or function in ALONG) else 0.0
    forgotten = past if past and shown and float(end.max()) <= EXACT else 0
    waits = any(_is_start(name, item) for name, item in model.named_parameters())
    if ids and along and shown and found.attends and not (forgotten or waits):
        forgotten = length - 1 if _alone(model, batch, first, rows) else 0
    late, silent, causal = half if late else 0, _silent(found, count), along and earlier <= EXACT
    sets = ids and along and shown and earlier > EXACT and not waits
    orderless = _orderless(model, batch, first, rows) if sets else 0
    hidden = _hidden(model, batch, rows, first) if ids and not shown else ("", 0.0)
    padded = _padding(model, batch, rows, first) if length and shown and _separate(model, first) else 0.0
    return Influence("", idle, mixed, seen, where, function, late, forgotten, silent, causal, orderless, hidden, padded)


def _moved(before: Tensor, after: Tensor | None) -> float:
    if after is None or after.shape != before.shape:
        return 0.0
    return float((after - before).square().mean()) / (float(before.square().mean()) or 1.0)


def _is_start(name: str, item: nn.Parameter) -> bool:
    """Zeros that learn: what they hide (positions, a branch) comes when they have moved."""
    return item.requires_grad and "bias" not in name.rpartition(".")[2] and not bool(item.any())


def _alone(model: nn.Module, batch: Any, ids: Tensor, rows: Tensor) -> bool:
    """Whether the last position stays as it is where all others are replaced."""
    places = [place for place, item in tensors_in(batch) if item is ids]
    other = torch.cat([other_values(ids)[:, :-1], ids[:, -1:]], 1)
    after = _by_example(_passed(model, _replaced(batch, dict.fromkeys(places, lambda _: other))), *ids.shape)
    return after is not None and after.shape == rows.shape and _moved(rows[:, -1], after[:, -1]) <= EXACT


def _orderless(model: nn.Module, batch: Any, ids: Tensor, rows: Tensor) -> int:
    """The place of two neighbours that are exchanged, where that exchanges their outputs and changes no other."""
    half = ids.shape[1] // 2
    place = next((i for i in range(half, ids.shape[1] - 1) if ids[0, i] != ids[0, i + 1]), 0)
    order = torch.arange(ids.shape[1])
    order[place], order[place + 1] = place + 1, place
    if not place:
        return 0
    names = [name for name, item in tensors_in(batch) if item is ids]
    changed = _replaced(batch, dict.fromkeys(names, lambda item: torch.cat([item[:1, order], item[1:]])))
    after = _by_example(_passed(model, changed), len(ids), ids.shape[1])
    same = after is not None and _moved(rows[:1, order], after[:1]) < EXACT < _moved(rows[:1], after[:1])
    return place if same else 0


def _hidden(model: nn.Module, batch: Any, rows: Tensor, ids: Tensor) -> tuple[str, float]:
    """Tokens at the places that a mask hides are others; its name tells which these are, else neither may be."""
    inputs = [name for name, item in tensors_in(batch) if item is ids]
    for name, mask in tensors_in(batch):
        if "mask" not in name or mask.shape != ids.shape or len(mask.unique()) != 2:
            continue
        low = mask == mask.min()
        sides = [low] if "attention" in name else [~low] if "padding" in name else [low, ~low]
        shares = []
        for side in sides:
            changed = _replaced(
                batch, dict.fromkeys(inputs, lambda item, side=side: item.where(~side, other_values(item)))
            )
            after = _by_example(_passed(model, changed), len(ids), ids.shape[1])
            along = after is not None and after.shape[1] == ids.shape[1] and after.dim() > 2
            kept = ~side if along else torch.ones(len(ids), dtype=torch.bool)
            shares.append(0.0 if after is None else _moved(rows[kept], after[kept]))
        if min(shares) > limit("leak"):
            return name.strip("[]"), min(shares)
    return "", 0.0


def _padding(model: nn.Module, batch: Any, rows: Tensor, first: Tensor) -> float:
    """What the padding of the most padded example changes: it is passed alone, and cut where its padding begins."""
    count, length = first.shape[:2]
    empty = first == (0 if first.dim() > 2 else first[0, -1])
    behind = empty.flatten(2).all(-1).flip(1).cumprod(1).sum(1) if first.dim() > 2 else empty.flip(1).cumprod(1).sum(1)
    row = int((behind * (behind < length)).argmax())
    kept = length - int(behind[row])
    if float(behind.double().mean()) < PADDED or not 0 < kept < length:
        return 0.0

    def cut(item: Tensor) -> Tensor:
        item = item[row : row + 1] if len(item) == count else item
        return item[:, :kept] if item.shape[1:2] == (length,) else item

    places = [place for place, item in tensors_in(batch) if item.dim()]
    after = _by_example(_passed(model, _replaced(batch, dict.fromkeys(places, cut))), 1, kept)
    before = rows[row : row + 1]
    return 0.0 if after is None else _moved(before[:, :kept] if before.shape != after.shape else before, after)


def _next_wanted(batch: Any, ids: Tensor) -> bool:
    """Whether another tensor of the batch holds the tokens that come after."""
    others = [item for _, item in tensors_in(batch) if item is not ids and item.shape == ids.shape]
    return any(torch.equal(ids[:, 1:], item[:, :-1]) for item in others)


def _unread(model: nn.Module, batch: Any, found: Observation, half: int) -> bool:
    """Whether the later half of no example counts; one that holds a single number is padding."""
    place, item = next((place, item) for place, item in tensors_in(batch) if _has_others(place, item))
    padded = (item[:, half:] == item[:, half : half + 1]).flatten(1).all(1)
    changed = torch.cat([item[:, :half], other_values(item)[:, half:]], 1)
    after = _passed(model, _replaced(batch, {place: lambda _: changed}))
    return not bool(padded.any()) and changed_share(found.output, after) == 0.0


def _recurs(model: nn.Module) -> bool:
    return any(isinstance(module, (nn.RNNBase, nn.RNNCellBase)) for module in model.modules())


def _by_example(output: Tensor | None, count: int, length: int) -> Tensor | None:
    """The output with examples first; logits of all tokens may come as one list."""
    if output is None or output.dim() < 2:
        return None
    if length and output.dim() == 2 and len(output) == count * length:
        return output.view(count, length, -1)
    return output if len(output) == count else None


def _separate(model: nn.Module, first: Tensor) -> bool:
    """Whether examples are to be told apart: sequences or images, not nodes of a graph or a batch norm's."""
    together = any(isinstance(module, BatchNorm) and module.training for module in model.modules())
    return not together and (first.dim() > 2 or (first.dim() == 2 and not first.is_floating_point()))


def _silent(found: Observation, count: int) -> tuple[int, int]:
    """Rows of the output that are the same on another input, and no zeros (of a ReLU), while others are not."""
    before, other = found.output, found.other
    if before is None or other is None or before.dim() != 2 or len(before) != count or before.shape != other.shape:
        return (0, 0)
    rows = int(((before == other).all(1) & before.any(1)).sum())
    return (rows, count) if 0 < rows < count else (0, 0)


def _over_examples(call_: TracedCall, count: int) -> bool:
    given = call_.given[0]
    return isinstance(given, Tensor) and given.shape[:1] == (count,) != call_.made[0].shape[:1]


def _first(model: nn.Module, batch: Any, changed: Any, count: int, length: int) -> tuple[str, str] | None:
    """The first call, and where, that changes other examples, or (with a length) places before the half; None where the
    batch is averaged on purpose. Scores of two places, which a mask is yet to hide, are passed over."""
    first, second = (_taped(model, item)[0] for item in (batch, changed))
    for one, two in zip(first.calls, second.calls, strict=False):
        if one.name in STATISTICS and not length and _over_examples(one, count):
            return None
        for made, again in zip(one.made, two.made, strict=False):
            if made.dim() < 2 or len(made) != count or made.shape != again.shape:
                continue
            along = [axis for axis in range(1, made.dim()) if made.shape[axis] == length]
            if length and len(along) != 1:
                continue
            rest = [
                item[:1].narrow(along[0], 0, length // 2) if length else item[2 : -1 if count > FEW else None]
                for item in (made, again)
            ]
            if not torch.equal(*rest):
                return one.site, one.name
    return "the model", ""

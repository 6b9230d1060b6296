"""What a branch ends in: the parameters that, all multiplied by one number, multiply its output by that number."""

from __future__ import annotations

from dataclasses import dataclass

from sigprop.capture.functions import MOVES
from sigprop.capture.record import Field, Weight, leaves
from sigprop.structure.residual import CARRIED, SUMS

GATHERED = ("index_add", "scatter_add")


@dataclass(frozen=True)
class Ending:
    """Names of the last parameters, weights first. `shift`: they enter as `shift + w` (gains of Gemma's norms)."""

    names: tuple[str, ...] = ()
    shift: float = 0.0


def ending(branch: Field) -> Ending:
    """The last parameters of a branch; without names where it is not linear in any."""
    weights = [item for item in branch.inputs if isinstance(item, Weight) and item.shape != ()]
    fields = [item for item in branch.inputs if isinstance(item, Field)]
    name = "" if branch.call is None else branch.call.name
    if weights:
        shifts = {shift_of(item) for item in weights}
        shift = shifts.pop()
        return Ending() if shifts or shift is None else Ending(_names(weights), shift)
    if name in SUMS and len(fields) == 2:
        biased = _with_bias(fields)
        shared = biased if biased.names else _shared(fields)
        return shared if shared.names else _union([ending(item) for item in fields])
    if name == "cat" and len(fields) > 1:
        return _shared(fields)
    if name in GATHERED:
        return _union([ending(item) for item in fields])
    if name in ("mul", "expert_sum") and len(fields) == 2:
        fields = [item for item in fields if item.shape[-1:] == branch.shape[-1:] != (1,)]
    return ending(fields[0]) if name in CARRIED and len(fields) == 1 else Ending()


def _with_bias(fields: list[Field]) -> Ending:
    """A sum with a field that is made of parameters alone."""
    added = [item for item in fields if item.inputs and all(isinstance(inner, Weight) for inner in item.inputs)]
    if len(added) != 1:
        return Ending()
    before = ending(next(item for item in fields if item is not added[0]))
    biases = _names([item for item in added[0].inputs if isinstance(item, Weight)])
    return Ending(before.names + biases) if before.names and before.shift == 0.0 else Ending()


def _shared(fields: list[Field]) -> Ending:
    """What parts of one tensor, put together or added (rotary positions), all end in."""
    found = {ending(item) for item in fields}
    return found.pop() if len(found) == 1 else Ending()


def _union(found: list[Ending]) -> Ending:
    """Of a sum of parts that each end in weights: all of them; nothing where a part does not."""
    if not all(item.names and item.shift == 0.0 for item in found):
        return Ending()
    return Ending(tuple(dict.fromkeys(name for item in found for name in item.names)))


def _names(weights: list[Weight]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for item in weights for name, _ in item.roots))


def shift_of(weight: Weight) -> float | None:
    """0 for a parameter or a view of one, `c` for `c + w`, None for any other function of parameters."""
    if weight.call is None:
        return 0.0
    parents = [shift_of(parent) for parent, _ in weight.parents]
    if weight.call.name in MOVES and None not in parents and len(set(parents)) == 1:
        return parents[0]
    numbers = [item for item in leaves(weight.call.args) if isinstance(item, (int, float))]
    if weight.call.name in SUMS and parents == [0.0] and len(numbers) == 1 and not weight.call.kwargs:
        return float(numbers[0])
    return None

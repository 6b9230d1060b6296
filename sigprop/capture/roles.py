"""The role of every parameter, from how the trace uses it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from sigprop.capture.record import Field, Record, Weight, leaves
from sigprop.capture.tracing import TracedModel

CONVOLUTIONS = frozenset(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3))
CONTRACTIONS = CONVOLUTIONS | {"linear", "addmm", "matmul", "mm", "bmm", "mv", "baddbmm", "einsum"}
TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
"""Arguments of `conv_transpose2d`, in order."""
FIRST = ("embedding", "positional", "input", "readout", "router", "hidden", "norm gain", "gain", "bias")
"""Of several uses, the one that a parameter is called by: the first of these."""


@dataclass(frozen=True)
class ParameterUse:
    """How a parameter is used. `fan_in` and `fan_out` are those of its matrix (1 and its size for vectors).

    `tied`: it is also used in a second role (`uses` has all of them). `expert`: only the tokens sent to it see it.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    fan_in: int
    fan_out: int
    uses: tuple[str, ...] = ()
    expert: bool = False

    @property
    def tied(self) -> bool:
        return len(set(self.uses)) > 1


def find_roles(traced: TracedModel, fields: list[Field]) -> dict[str, ParameterUse]:
    """One entry for every parameter; one that the forward pass never uses is `unused`."""
    weights = traced.weights
    uses: dict[str, list[str]] = {name: [] for name in weights}
    fans: dict[str, tuple[int, int]] = {}
    experts: set[str] = set()
    last, routers = readouts(traced), _routers(fields)
    for item in everything(fields):
        for weight, place in _weights_of(item):
            role = _role(item, weight, place)
            for name, _ in weight.roots:
                if role == "hidden":
                    role = "router" if name in routers else "readout" if name in last else role
                if role == "hidden" and _is_expert(name, weight, weights[name]):
                    experts.add(name)
                uses[name].append(role)
                if role in ("hidden", "readout", "router", "input"):
                    fans[name] = _fans(item, weight)
    found = {}
    for name, weight in weights.items():
        roles = list(dict.fromkeys(uses[name]))
        role = next((r for r in FIRST if r in roles), "unused")
        fan_in, fan_out = fans.get(name, (1, math.prod(weight.shape)))
        found[name] = ParameterUse(name, weight.shape, role, fan_in, fan_out, tuple(roles), name in experts)
    return found


def everything(fields: Iterable[Field]) -> list[Field]:
    """Fields of the trace and those that rules made on the way."""
    seen: dict[int, Field] = {}
    stack: list[Record] = list(fields)
    while stack:
        item = stack.pop()
        if isinstance(item, Field) and id(item) not in seen:
            seen[id(item)] = item
            stack.extend(item.inputs)
    return list(seen.values())


def _weights_of(item: Field) -> list[tuple[Weight, int]]:
    return [(source, place) for place, source in enumerate(item.inputs) if isinstance(source, Weight)]


def _role(item: Field, weight: Weight, place: int) -> str:
    name = item.call.name if item.call is not None else ""
    if name == "embedding":
        return "positional" if _counts_up(item) else "embedding"
    if name in ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm"):
        return "norm gain" if place == 1 else "bias"
    if name in CONTRACTIONS:
        if place > 1 or len(weight.shape) == 1:
            return "bias"
        first = item.inputs[0]
        return "input" if isinstance(first, Field) and not first.inputs else "hidden"
    if name in ("mul", "rmul", "multiply"):
        above = item.inputs[0]
        normed = isinstance(above, Field) and above.call is not None and _is_normalized(above)
        return "norm gain" if normed else "gain"
    if len(item.inputs) == 1 and len(item.layout.order) > 0 and len(weight.shape) > 1:
        return "positional"
    return "bias"


def _is_normalized(item: Field) -> bool:
    if item.call is None:
        return False
    records = [source for source in item.call.records if isinstance(source, Field)]
    return any(source.statistic is not None for source in records)


def _counts_up(item: Field) -> bool:
    """Ids that run 0, 1, 2, ... (from any start): positions."""
    assert item.call is not None
    ids = next((leaf for leaf in leaves(item.call.args) if isinstance(leaf, Tensor)), None)
    if ids is None or ids.numel() < 2:
        return False
    row = ids.reshape(-1, ids.shape[-1])[0]
    return bool((row.diff() == 1).all()) if row.numel() > 1 else False


def _fans(item: Field, weight: Weight) -> tuple[int, int]:
    shape: tuple[int, ...] = tuple(weight.shape)
    name = item.call.name if item.call is not None else ""
    if name.startswith("conv_transpose"):
        return _transposed_fans(item, shape)
    if name in CONVOLUTIONS:
        return math.prod(shape[1:]), shape[0] * math.prod(shape[2:])
    if name == "linear":
        return shape[-1], shape[-2] if len(shape) > 1 else 1
    return (shape[-2], shape[-1]) if len(shape) > 1 else (math.prod(shape), math.prod(shape))


def _transposed_fans(item: Field, shape: tuple[int, ...]) -> tuple[int, int]:
    """Each input makes a whole window; an output is in one window for each step of the stride that the kernel spans."""
    assert item.call is not None
    given = dict(zip(TRANSPOSED, item.call.args, strict=False)) | item.call.kwargs
    stride, groups, window = given.get("stride", 1), given.get("groups", 1), math.prod(shape[2:])
    steps = math.prod(stride) if isinstance(stride, (tuple, list)) else stride ** (len(shape) - 2)
    return max(shape[0] // groups * window // steps, 1), shape[1] * window


def _is_expert(name: str, weight: Weight, root: Weight) -> bool:
    stacked = len(root.shape) > 2 and weight.call is not None and weight.call.name in ("getitem", "select", "unbind")
    return stacked or "experts." in name or (".expert" in name and "shared" not in name)


def nearest_matrices(item: Record, through_products: bool = True) -> list[str]:
    """Weights of the nearest contractions above a record; `through_products`: also above products of two signals."""
    found: dict[str, None] = {}
    stack, seen = [item], set()
    while stack:
        record = stack.pop()
        if id(record) in seen or not isinstance(record, Field):
            continue
        seen.add(id(record))
        weights = [source for source in record.inputs if isinstance(source, Weight)]
        contracts = record.call is not None and record.call.name in CONTRACTIONS
        if contracts and weights:
            found.update((name, None) for name, _ in weights[0].roots)
        elif through_products or not contracts:
            stack.extend(source for source in record.inputs if not _weighs(source, record))
    return list(found)


def _weighs(source: Record, record: Field) -> bool:
    """One number per token, such as a router's weight of an expert; the shares of all experts."""
    if record.call is not None and record.call.name == "expert_sum":
        return source is not record.inputs[0]
    return len(source.shape) == len(record.shape) and source.shape[-1:] == (1,) != record.shape[-1:]


def readouts(traced: TracedModel) -> set[str]:
    """Matrices that make what is predicted: the first output, else what the model's own loss judges. Where that is a
    product of two signals, the similarities of two towers, there is none."""
    return {name for item in traced.predictions for name in nearest_matrices(item, through_products=False)}


def _routers(fields: list[Field]) -> set[str]:
    found: set[str] = set()
    for item in fields:
        if item.call is not None and item.call.name == "topk":
            found.update(nearest_matrices(item))
    return found

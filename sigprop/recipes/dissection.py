"""From a trace to an `Anatomy`: which sums are residual, what each branch holds and ends with, who reads the stream."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sigprop.recipes.anatomy import Anatomy, Junction, Spot
from sigprop.recipes.attending import Attending, attending
from sigprop.recipes.roles import find_parameters
from sigprop.recipes.walk import is_same
from sigprop.theory.ops.normalization import LayerNorm
from sigprop.trace.capture import ROOT, record_of
from sigprop.trace.record import Field, Record, Weight
from sigprop.trace.tracing import Trace, trace

SUMS = ("add", "radd")
VIEWS = ("view", "reshape", "flatten", "unflatten")
SCALINGS = ("mul", "rmul", "div", "truediv")
LOOK_BACK = 3
CARRIED = frozenset(
    [
        "view",
        "reshape",
        "flatten",
        "unflatten",
        "transpose",
        "permute",
        "contiguous",
        "clone",
        "to",
        "float",
        "dropout",
        "mul",
        "rmul",
        "div",
        "truediv",
        "getitem",
        "squeeze",
        "unsqueeze",
        "type_as",
        "movedim",
        "split",
        "chunk",
        "cat",
        "neg",
    ]
)


@dataclass
class Found:
    """A residual sum while it is being described: operands as fields, and what the branch passes through."""

    total: Field
    skip: Field
    source: Field
    branches: list[Field]
    passed: list[set[Record]] = field(default_factory=list)
    scaled: bool = False


class Graph:
    """Fields of a trace in order of execution, with who reads each."""

    def __init__(self, found: Trace):
        self.trace = found
        self.index: dict[Field, int] = {}
        for record in found.capture.records:
            if isinstance(record, Field):
                self.index.setdefault(record, len(self.index))
        self.readers: dict[Field, list[Field]] = {}
        for reader in self.index:
            for item in reader.inputs:
                if isinstance(item, Field):
                    self.readers.setdefault(item, []).append(reader)
        self.sums: dict[Field, Found] = {}
        for item in self.index:
            residual = self._residual(item)
            if residual is not None:
                self.sums[item] = residual

    def _residual(self, total: Field) -> Found | None:
        operands = [item for item in total.inputs if isinstance(item, Field)]
        if total.call is None or total.call.name not in SUMS or len(operands) != 2:
            return None
        if operands[0].shape != operands[1].shape:
            return None
        for skip, branch in (operands, operands[::-1]):
            stream = self._stream(skip)
            leaves = [leaf for leaf in self._leaves(branch) if leaf not in stream]
            passed = [self._passed(leaf, stream) for leaf in leaves]
            hits = [stream.index(source) for source, _ in passed if source is not None]
            if leaves and len(hits) == len(leaves):
                inside = [set(records) for _, records in passed]
                return Found(total, plain(skip), stream[min(hits)], leaves, inside, core(skip) is not skip)
        return None

    def _stream(self, skip: Field) -> list[Field]:
        """The skip operand, with and without its scale, and the skips that it is itself a sum of."""
        chain = list(dict.fromkeys((skip, core(skip), plain(skip))))
        for _ in range(LOOK_BACK):
            if chain[-1] not in self.sums:
                break
            chain.append(self.sums[chain[-1]].skip)
        return chain

    def _leaves(self, branch: Field) -> list[Field]:
        """Summands of a branch that is itself a sum of branches (parallel blocks)."""
        operands = [item for item in branch.inputs if isinstance(item, Field)]
        is_sum = branch.call is not None and branch.call.name in SUMS and branch not in self.sums
        if is_sum and len(operands) == 2 and operands[0].shape == operands[1].shape == branch.shape:
            return [leaf for item in operands for leaf in self._leaves(item)]
        return [branch]

    def _passed(self, branch: Field, stream: list[Field]) -> tuple[Field | None, set[Record]]:
        """The stream tensor that a branch reads, and all records on the way; None without weights between."""
        oldest = min(self.index.get(item, 0) for item in stream)
        waiting: list[Field] = [branch]
        inside: set[Record] = {branch}
        reached: list[Field] = []
        while waiting:
            for item in waiting.pop().inputs:
                if item in stream:
                    reached.append(item)  # type: ignore[arg-type]
                elif item not in inside and (isinstance(item, Weight) or self._since(item, oldest)):
                    inside.add(item)
                    if isinstance(item, Field):
                        waiting.append(item)
        learned = any(isinstance(item, Weight) for item in inside)
        return (min(reached, key=stream.index), inside) if reached and learned else (None, inside)

    def _since(self, item: Record, oldest: int) -> bool:
        return isinstance(item, Field) and self.index.get(item, oldest) >= oldest

    def is_norm(self, reader: Field, depth: int = 6) -> bool:
        """Whether a reader is a norm, or a step of one that is spelt out."""
        if isinstance(op_of(reader), LayerNorm) or reader.statistic is not None:
            return True
        readers = self.readers.get(reader, [])
        simple = reader.root is not None or (reader.call is not None and reader.call.name in ("to", "float"))
        return simple and depth > 0 and bool(readers) and all(self.is_norm(item, depth - 1) for item in readers)

    def only_norms(self, item: Field, but: tuple[Field, ...] = ()) -> bool:
        """Whether everything that reads a field, apart from the given ones, is a norm."""
        readers = [reader for reader in self.readers.get(item, []) if reader not in but]
        return bool(readers) and all(self.is_norm(reader) for reader in readers)

    def scale_free(self, total: Field) -> bool:
        """Whether every reader of a sum is a norm or the next junction's skip."""
        readers = self.readers.get(total, [])
        return bool(readers) and all(
            self.is_norm(item) or self._skips(item, total) or (is_view(item) and self.scale_free(item))
            for item in readers
        )

    def norm_names(self, total: Field) -> list[str]:
        """Modules of the norms that read a sum."""
        readers = [reader for reader in self.readers.get(total, []) if self.is_norm(reader)]
        return [reader.call.module for reader in readers if reader.call is not None]

    def _skips(self, reader: Field, total: Field) -> bool:
        if reader in self.sums:
            return self.sums[reader].skip is plain(total)
        scaled = reader.slope is not None and bool(self.readers.get(reader))
        return scaled and all(self._skips(item, total) for item in self.readers[reader])


def op_of(item: Field) -> Any:
    """The op behind a field, if its node was made."""
    return None if item._node is None else item._node.op


def core(item: Field) -> Field:
    """The field without the numbers that multiply it."""
    while item.slope is not None and item.call is not None and item.call.name in SCALINGS and item.inputs:
        inner = item.inputs[0]
        if not isinstance(inner, Field):
            break
        item = inner
    return item


def is_view(item: Field) -> bool:
    return item.call is not None and item.call.name in VIEWS and len(item.inputs) == 1


def plain(item: Field) -> Field:
    """The field without numbers that multiply it and without views of it."""
    item = core(item)
    while is_view(item) and isinstance(item.inputs[0], Field):
        item = core(item.inputs[0])
    return item


def last_weights(branch: Field) -> tuple[str, ...]:
    """Names of the parameters that a branch is linear in: its last weight and bias; empty when it has none."""
    biases: list[str] = []
    while True:
        weights = [item for item in branch.inputs if isinstance(item, Weight)]
        fields = [item for item in branch.inputs if isinstance(item, Field)]
        if weights and not all(item.shape == () for item in weights):
            if not all(is_same(item) for item in weights):
                return ()
            return tuple(dict.fromkeys(name for item in weights for name, _ in item.roots())) + tuple(biases)
        added = [item for item in fields if item.inputs and all(isinstance(i, Weight) for i in item.inputs)]
        if branch.call is not None and branch.call.name in SUMS and len(fields) == 2 and len(added) == 1:
            biases += [name for item in added[0].inputs if isinstance(item, Weight) for name, _ in item.roots()]
            fields.remove(added[0])
        elif branch.call is None or branch.call.name not in CARRIED or len(fields) != 1:
            return ()
        branch = fields[0]


def dissect(model: nn.Module, batch: Any) -> Anatomy:
    """Trace the model on the batch and describe it."""
    with _entries() as entered:
        found = trace(model, batch)
    names = {id(module): name or ROOT for name, module in found.capture.model.named_modules()}
    entries: dict[Record, str] = {}
    for module, record in entered:
        if id(module) in names and names[id(module)] != ROOT:
            entries.setdefault(record, names[id(module)])
    graph = Graph(found)
    exits = {item: label for label, item in found.sites if "@" not in label and "[" not in label}
    junctions = _junctions(graph, entries, exits)
    starts = {junction.stream: spot for junction, spot in reversed(list(zip(junctions, _spots(graph), strict=True)))}
    return Anatomy(
        find_parameters(found, graph, junctions),
        junctions,
        _spots(graph),
        width=next((item.shape[-1] for item in graph.sums), 0),
        dropout=_dropout(model),
        kinds=tuple(_kinds(starts[stream].source) for stream in sorted(starts)),
        trace=found,
        model=model,
        batch=batch,
    )


def _spots(graph: Graph) -> list[Spot]:
    spots = []
    for total, found in graph.sums.items():
        for branch, passed in zip(found.branches, found.passed, strict=True):
            unscaled = core(branch)
            mixed = next((spot for item in passed if isinstance(item, Field) and (spot := attending(item))), None)
            scaled = found.scaled or unscaled is not branch
            spots.append(Spot(total, found.skip, unscaled, found.source, scaled, mixed))
    return spots


def _kinds(item: Field) -> int:
    """How many tensors made of parameters or input alone add up to the start of a stream."""
    fields = [inner for inner in item.inputs if isinstance(inner, Field)]
    if item.call is not None and item.call.name in SUMS and len(fields) == 2:
        return sum(_kinds(inner) for inner in fields)
    if len(fields) == 1 and not any(isinstance(inner, Weight) and len(inner.shape) > 1 for inner in item.inputs):
        return _kinds(fields[0])
    return 1


@contextmanager
def _entries() -> Iterator[list[tuple[nn.Module, Record]]]:
    """Every module with the record of its first positional input, in order."""
    found: list[tuple[nn.Module, Record]] = []

    def enter(module: nn.Module, inputs: tuple) -> None:
        record = record_of(inputs[0]) if inputs and isinstance(inputs[0], Tensor) else None
        if record is not None:
            found.append((module, record))

    handle = nn.modules.module.register_module_forward_pre_hook(enter)
    try:
        yield found
    finally:
        handle.remove()


def _junctions(graph: Graph, entries: dict[Record, str], exits: dict[Field, str]) -> list[Junction]:
    made: list[Junction] = []
    number: dict[Field, int] = {}
    stream_of: dict[Field, int] = {}
    orders: dict[int, int] = {}
    for total, found in graph.sums.items():
        origin = _origin(graph, found.skip)
        stream = stream_of.setdefault(total, stream_of[origin] if origin is not None else len(orders))
        orders[stream] = orders.get(stream, 0) + 1
        norms = _norms(graph, found)
        for branch, passed in zip(found.branches, found.passed, strict=True):
            parallel = branch is not found.branches[0]
            attentions = [spot for item in passed if isinstance(item, Field) and (spot := attending(item))]
            made.append(
                Junction(
                    exit=exits.get(core(branch), ""),
                    entry=entries.get(found.source, ""),
                    weights=last_weights(branch),
                    inside=tuple(dict.fromkeys(_names(graph, passed))),
                    stream=stream,
                    order=orders[stream],
                    attention=bool(attentions),
                    cross=any(_crosses(graph, item, passed) for item in attentions),
                    norms=norms | ({"out"} if _ends_in_norm(branch) else set()),
                    scale_free=graph.scale_free(total),
                    previous=len(made) - 1 if parallel else number.get(found.skip),
                    parallel=parallel,
                    readers=tuple(dict.fromkeys(graph.norm_names(total))),
                )
            )
        number[total] = len(made) - 1
    return made


def _norms(graph: Graph, found: Found) -> frozenset[str]:
    inside = set().union(*found.passed)
    readers = [item for item in graph.readers.get(found.source, []) if item in inside]
    pre = bool(readers) and all(graph.is_norm(item) for item in readers)
    return frozenset({"pre"} if pre else ()) | frozenset({"post"} if graph.only_norms(found.total) else ())


def _ends_in_norm(branch: Field) -> bool:
    while branch.call is not None and branch.call.name in CARRIED and len(branch.inputs) == 1:
        if isinstance(op_of(branch), LayerNorm) or not isinstance(branch.inputs[0], Field):
            break
        branch = branch.inputs[0]
    inner = [item for item in branch.inputs if isinstance(item, Field)]
    return isinstance(op_of(branch), LayerNorm) or any(isinstance(op_of(item), LayerNorm) for item in inner[:1])


def _origin(graph: Graph, item: Field) -> Field | None:
    """The last sum of the stream that a skip comes from, through norms and other single-input steps."""
    seen = 0
    while item not in graph.sums:
        fields = [inner for inner in item.inputs if isinstance(inner, Field)]
        seen += 1
        if len(fields) != 1 or seen > 12:
            return None
        item = fields[0]
    return item


def _crosses(graph: Graph, attention: Attending, passed: set[Record]) -> bool:
    """Whether the values come from outside the branch."""
    value: Any = attention.value
    while isinstance(value, Field):
        fields = [item for item in value.inputs if isinstance(item, Field)]
        if any(isinstance(item, Weight) for item in value.inputs):
            return (
                bool(fields)
                and fields[0] not in passed
                and not any(fields[0] is found.source for found in graph.sums.values())
            )
        value = fields[0] if fields else None
    return False


def _names(graph: Graph, passed: set[Record]) -> list[str]:
    known = {name: place for place, name in enumerate(graph.trace.capture.parameters)}
    names = {name for item in passed if isinstance(item, Weight) for name, _ in item.roots()}
    return sorted(names, key=lambda name: known.get(name, math.inf))


def _dropout(model: nn.Module) -> float:
    """The dropout probability of a model in training mode, from its dropout modules."""
    if not model.training:
        return 0.0
    found = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    return max(found, default=0.0)

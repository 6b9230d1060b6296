"""Residual sums of a trace: which additions join a branch to the stream it reads, and where norms stand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sigprop.capture.record import Field, Record, Weight
from sigprop.capture.roles import CONTRACTIONS, everything
from sigprop.capture.tracing import TracedModel
from sigprop.compat import BatchNorm
from sigprop.structure.attention import FoundAttention, attention_at
from sigprop.structure.homogeneity import Readers, made_between
from sigprop.theory.ops.layer_norm import LayerNorm

SUMS = ("add", "radd")
DIFFERENCES = ("sub", "subtract", "rsub")
REDUCED = ("sum", "mean")
NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm")
VIEWS = ("view", "reshape", "flatten", "unflatten")
TURNED = ("transpose", "permute", "movedim", "contiguous", "clone", "to", "float", "type_as")
SCALINGS = ("mul", "rmul", "div", "truediv")
MOVES = (*TURNED, "getitem", "squeeze")
CARRIED = frozenset([*VIEWS, *SCALINGS, *MOVES, "unsqueeze", "split", "chunk", "cat", "neg", "dropout", "expert_sum"])
LINEAR = CONTRACTIONS | CARRIED | frozenset([*NORMS, "avg_pool2d", "max_pool2d", "pad", "sum", "expand"])
LOOK_BACK = 3
BLOCK = 100


@dataclass(eq=False)
class Sum:
    """One residual sum: its skip without scales and views, its branches, and what each of them passes through.

    `source` is the tensor of the stream that the branches read. `skip_scale`: the number that multiplies the skip.
    `branch_share`: the number that the sum itself multiplies its branches by (`lerp`, a mean). `projected`: the skip
    path has a weight of its own, and `source` is where the two paths part.
    """

    total: Field
    skip: Field
    source: Field
    branches: list[Field]
    passed: list[set[Record]]
    skip_scale: float = 1.0
    branch_share: float = 1.0
    projected: bool = False

    @property
    def scaled(self) -> bool:
        """Whether the model multiplies skip or branch by a number of its own."""
        shared = self.skip_scale != 1.0 or self.branch_share != 1.0
        return shared or any(core(branch) is not branch for branch in self.branches)


class Tensors:
    """Fields of a trace in order of execution, who reads each, and the residual sums among them."""

    def __init__(self, found: TracedModel):
        self.traced = found
        self.index: dict[Field, int] = {}
        for record in found.capture.records:
            if isinstance(record, Field):
                self.index.setdefault(record, len(self.index))
        self.readers: dict[Field, list[Field]] = {}
        self.modules = dict(found.capture.model.named_modules())
        for reader in sorted(everything(self.index), key=lambda item: item.number):
            for item in reader.inputs:
                if isinstance(item, Field):
                    self.readers.setdefault(item, []).append(reader)
        self.uses = Readers(everything(self.index))
        self._outputs = {item for _, item in found.sites}
        self.sums: dict[Field, Sum] = {}
        for item in self.index:
            operands = summands(item)
            if len(operands) == 2:
                residual = self._residual(item, operands) or self._projected(item, *operands)
                if residual is not None:
                    self.sums[item] = residual
        self._sources = {found.source for found in self.sums.values()}
        self._places = {name: place for place, name in enumerate(found.capture.parameters)}

    def _residual(self, total: Field, operands: dict[Field, float]) -> Sum | None:
        first, second = operands
        if first.shape != second.shape or self._becomes_scores(total):
            return None
        for skip, branch in ((first, second), (second, first)):
            stream = self._stream(skip)
            leaves = [leaf for leaf in self._leaves(branch) if leaf not in stream]
            passed = [self._passed(leaf, stream) for leaf in leaves]
            hits = [stream.index(source) for source, _ in passed if source is not None]
            inside = [records for _, records in passed]
            if leaves and len(hits) == len(leaves) and not any(self._leaves_the_stream(i, stream) for i in inside):
                scale = factor(skip) * operands[skip]
                return Sum(total, plain(skip), stream[min(hits)], leaves, inside, scale, operands[branch])
        return None

    def _leaves_the_stream(self, inside: set[Record], stream: list[Field]) -> bool:
        """Whether a path runs along another stream (values of the first layer that later ones add to their own)."""
        own = {self.sums[item].skip for item in inside if isinstance(item, Field) and item in self.sums}
        return any(skip not in inside and skip not in stream for skip in own)

    def _becomes_scores(self, total: Field, steps: int = 3) -> bool:
        """Whether a sum (of scores and a position bias) goes into a softmax, possibly with a mask added."""
        readers = self.readers.get(total, [])
        names = {reader.call.name for reader in readers if reader.call is not None}
        if "softmax" in names:
            return True
        return steps > 0 and names <= {*SUMS, *VIEWS} and any(self._becomes_scores(r, steps - 1) for r in readers)

    def _projected(self, total: Field, first: Field, second: Field) -> Sum | None:
        """`P x + f(x)` with `P` one weight without an activation, and more than one weight in `f`, which is not linear
        too: `W x + B A x`, a low-rank adapter, is one linear map. Or `P` mixes several streams (hyper-connections)."""
        source = self._meeting(first, second)
        if source is None:
            return None
        for skip, branch in ((first, second), (second, first)):
            _, path = self._passed(skip, [source])
            reached, inside = self._passed(branch, [source])
            one = matrices(path) == 1 < matrices(inside) or (mixes_streams(path) and matrices(inside))
            if reached is not None and one and is_linear(path) and not is_linear(inside):
                return Sum(total, skip, source, [branch], [inside], projected=True)
        return None

    def _meeting(self, first: Field, second: Field) -> Field | None:
        """The latest field that both were made from, within the reach of a block."""
        waiting = {first: 1, second: 2}
        for _ in range(BLOCK):
            if not waiting:
                return None
            item = max(waiting, key=lambda field: field.number)
            mark = waiting.pop(item)
            if mark == 3:
                return item
            for inner in item.inputs:
                if isinstance(inner, Field):
                    waiting[inner] = waiting.get(inner, 0) | mark
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
        """Summands of a branch that is a sum of branches (parallel blocks), unless a module puts it out whole."""
        added = branch
        while is_view(added) and isinstance(added.inputs[0], Field):
            added = added.inputs[0]
        operands = added.fields
        is_sum = added.made_by in SUMS and added not in self.sums
        if {branch, added} & self._outputs:
            return [branch]
        if is_sum and len(operands) == 2 and operands[0].shape == operands[1].shape == added.shape:
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

    def norms(self, found: Sum) -> frozenset[str]:
        """`pre` where the branches read norms of the stream, `post` where only norms read the sum and the stream goes
        through it (no other sum has the same skip)."""
        entering = self._normed(found.source, made_between(found.source, found.branches))
        passed_by = any(other.skip is found.skip for other in self.sums.values() if other is not found)
        leaving = None if passed_by else self._normed(found.total)
        return frozenset(place for place, norms in (("pre", entering), ("post", leaving)) if norms)

    def _normed(self, item: Field, within: set[Field] | None = None) -> list[Field] | None:
        """The norms of any kind that read a field before any matrix, if nothing else does."""
        return self.uses.undoing(item, within=within, norms=self._is_batch_norm, matrices=False)

    def norm_names(self, total: Field) -> list[str]:
        """Modules of the norms that undo the scale of a sum."""
        norms = self.uses.undoing(total, lambda reader: self._skips(reader, total), norms=self._is_batch_norm) or []
        return [norm.call.module for norm in norms if norm.call is not None]

    def scale_free(self, total: Field) -> bool:
        """Whether the scale of a sum is undone wherever it is read, the next junction's skip aside."""
        return self.uses.undoing(total, lambda reader: self._skips(reader, total)) is not None

    def _skips(self, reader: Field, total: Field) -> bool:
        if reader in self.sums:
            return self.sums[reader].skip is plain(total)
        scaled = reader.slope is not None and bool(self.readers.get(reader))
        return scaled and all(self._skips(item, total) for item in self.readers[reader])

    def _is_batch_norm(self, item: Field) -> bool:
        """Its statistics are fixed numbers in evaluation mode, so that it does not undo a scale."""
        return item.call is not None and isinstance(self.modules.get(item.call.module), BatchNorm)

    def attention(self, passed: set[Record]) -> FoundAttention | None:
        """The attention of a branch, fused or spelt out."""
        return next((spot for item in passed if isinstance(item, Field) and (spot := attention_at(item))), None)

    def crosses(self, attention: FoundAttention, passed: set[Record]) -> bool:
        """Whether the values come from outside the branch."""
        value: Any = attention.value
        while isinstance(value, Field):
            fields = value.fields
            if any(isinstance(item, Weight) for item in value.inputs):
                return bool(fields) and fields[0] not in passed and fields[0] not in self._sources
            value = fields[0] if fields else None
        return False

    def parameters(self, passed: set[Record]) -> tuple[str, ...]:
        """Names of the parameters of a branch, in the order of the model."""
        names = {name for item in passed if isinstance(item, Weight) for name, _ in item.roots}
        return tuple(sorted(names, key=lambda name: self._places.get(name, math.inf)))


def op_of(item: Field) -> Any:
    """The op behind a field, if its node was made."""
    return item.node.op if item.is_made else None


def core(item: Field) -> Field:
    """The field without the numbers that multiply it."""
    while item.slope is not None and item.made_by in SCALINGS and item.inputs:
        inner = item.inputs[0]
        if not isinstance(inner, Field):
            break
        item = inner
    return item


def factor(item: Field) -> float:
    """The number that multiplies the core of a field."""
    return 1.0 if core(item) is item or item.slope is None else item.slope


def summands(item: Field) -> dict[Field, float]:
    """The tensors that a field is the sum of, with the numbers that the sum itself multiplies them by, signs aside."""
    call, fields = item.call, item.fields
    if call is None:
        return {}
    if call.name in REDUCED and len(fields) == 1 and fields[0].made_by == "stack":
        stacked = fields[0].fields
        parts = [inner for part in stacked for inner in part.inputs if isinstance(inner, Field)]
        joined = all(item.shape == part.shape for part in parts)
        return dict.fromkeys(parts, 1.0 if call.name == "sum" else 1.0 / len(parts)) if joined else {}
    if call.name == "lerp" and len(fields) == 2:
        weight = [*call.args, *call.kwargs.values()][2]
        return {fields[0]: 1.0 - weight, fields[1]: weight} if isinstance(weight, (int, float)) else {}
    if call.name == "addcmul" and call.args and call.args[0] is fields[0]:
        return dict.fromkeys(fields[:2], 1.0)
    return dict.fromkeys(fields, 1.0) if call.name in (*SUMS, *DIFFERENCES) and len(fields) == 2 else {}


def is_view(item: Field) -> bool:
    return item.made_by in (*VIEWS, *TURNED) and len(item.inputs) == 1


def plain(item: Field) -> Field:
    """The field without numbers that multiply it and without views of it."""
    item = core(item)
    while is_view(item) and isinstance(item.inputs[0], Field):
        item = core(item.inputs[0])
    return item


def is_linear(passed: set[Record]) -> bool:
    """Whether a path has nothing but linear maps and norms."""
    return all(item.made_by in LINEAR for item in passed if isinstance(item, Field))


def matrices(passed: set[Record]) -> int:
    """How many contractions with a weight lie on a path."""
    return sum(
        item.made_by in CONTRACTIONS and any(isinstance(i, Weight) for i in item.inputs)
        for item in passed
        if isinstance(item, Field)
    )


def mixes_streams(passed: set[Record]) -> bool:
    """Whether a path multiplies by weights and sums over something other than channels."""
    fields = [item for item in passed if isinstance(item, Field)]
    weighed = any(isinstance(source, Weight) for item in fields for source in item.inputs)
    summed = any(item.made_by == "sum" for item in fields)
    return weighed and summed and not matrices(passed)


def scale_of(item: Field) -> float:
    """The number that multiplies the plain field behind a field."""
    number, item = factor(item), core(item)
    while is_view(item) and isinstance(item.inputs[0], Field):
        item = item.inputs[0]
        number, item = number * factor(item), core(item)
    return number


def ends_in_norm(branch: Field) -> bool:
    """Whether the last step of a branch, gains and views aside, is a norm."""
    while branch.made_by in CARRIED and len(branch.inputs) == 1:
        if isinstance(op_of(branch), LayerNorm) or not isinstance(branch.inputs[0], Field):
            break
        branch = branch.inputs[0]
    inner = branch.fields
    return isinstance(op_of(branch), LayerNorm) or any(isinstance(op_of(item), LayerNorm) for item in inner[:1])

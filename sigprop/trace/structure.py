"""What a model is made of, read off its trace: residual junctions, repeated blocks, parameter roles."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sigprop.trace.layout import KEY
from sigprop.trace.record import Field, Record, Weight
from sigprop.trace.roles import CONTRACTIONS, ParameterInfo, find_roles

if TYPE_CHECKING:
    from sigprop.trace.tracing import Trace

NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm")


@dataclass(frozen=True)
class Branch:
    """One branch of a junction: its output site, the weights that end it, all weights on it.

    `kind`: attention, cross attention, mlp or convolution. `scale`: its factor after its last weight.
    """

    site: str
    kind: str
    last_weights: tuple[str, ...]
    weights: tuple[str, ...]
    starts_with_norm: bool
    ends_with_norm: bool
    scale: float


@dataclass(frozen=True)
class Junction:
    """`skip_scale * skip + sum of branches`, named like the sites of `measure(junctions=True)`.

    `placement`: pre, post, sandwich or none. `projected`: the skip path has weights of its own.
    """

    name: str
    module: str
    skip_site: str
    branches: tuple[Branch, ...]
    placement: str
    skip_scale: float = 1.0
    projected: bool = False

    @property
    def branch_sites(self) -> tuple[str, ...]:
        return tuple(branch.site for branch in self.branches)

    @property
    def last_weights(self) -> tuple[str, ...]:
        return tuple(name for branch in self.branches for name in branch.last_weights)


@dataclass(frozen=True)
class Structure:
    """Junctions in order of execution; `blocks` are lists of alike modules, each list in order."""

    junctions: tuple[Junction, ...]
    blocks: tuple[tuple[str, ...], ...]
    parameters: dict[str, ParameterInfo]
    final_norm: str | None = None

    def junctions_in(self, module: str) -> tuple[Junction, ...]:
        return tuple(j for j in self.junctions if j.module == module or j.module.startswith(module + "."))


@dataclass
class _Found:
    """A junction under construction."""

    record: Field
    skip: Field
    branches: list[Field]
    name: str
    projected: bool = False
    scale: float = 1.0
    terms: list[Field] = field(default_factory=list)


def find_structure(trace: Trace) -> Structure:
    """Read the structure off the records of a trace."""
    fields = [item for item in trace.capture.records if isinstance(item, Field)]
    finder = _Finder(trace, fields)
    junctions = tuple(finder.finished(found) for found in finder.found)
    blocks = _blocks(trace, junctions)
    return Structure(junctions, blocks, find_roles(trace, fields, blocks), finder.final_norm())


class _Finder:
    """Walks the graph of records once, adds in order of execution."""

    def __init__(self, trace: Trace, fields: list[Field]):
        self.trace = trace
        self.sites: dict[Field, str] = {}
        for name, item in trace.sites:
            self.sites[item] = name
        self.order = {item: number for number, item in enumerate(fields)}
        self.consumers: dict[Record, list[Field]] = {}
        self.found: list[_Found] = []
        self.by_record: dict[Field, _Found] = {}
        self._counts: dict[str, int] = {}
        for item in fields:
            for source in item.inputs:
                self.consumers.setdefault(source, []).append(item)
        for item in fields:
            if item.call is not None and item.call.name in ("add", "radd", "sub"):
                self._add(item)

    def _add(self, item: Field) -> None:
        operands = [source for source in item.inputs if isinstance(source, Field)]
        if len(operands) != 2 or not item.is_source:
            return
        for skip, branch in (operands, operands[::-1]):
            origin, scale = _origin(skip)
            if _depends(branch, origin):
                self._record(_Found(item, origin, self._terms(branch, origin), "", scale=scale))
                return
            before = self.by_record.get(origin)
            if before is not None and _depends(branch, before.skip) and not _depends(branch, origin):
                if before in self.found:
                    self.found.remove(before)
                merged = _Found(item, before.skip, [*before.branches, branch], "", scale=before.scale)
                self._record(merged)
                return
        shared = _shared_ancestor(*operands)
        if shared is not None and not self._feeds_sum(item):
            shorter = min(operands, key=lambda operand: len(_weights_between(operand, shared)))
            other = operands[1] if shorter is operands[0] else operands[0]
            self._record(_Found(item, shared, [other], "", projected=bool(_weights_between(shorter, shared))))

    def _feeds_sum(self, item: Field) -> bool:
        """A sum of branches that is itself added to the stream."""
        users = self.consumers.get(item, [])
        return bool(users) and all(user.call is not None and user.call.name in ("add", "radd") for user in users)

    def _terms(self, branch: Field, origin: Field) -> list[Field]:
        inner = [source for source in branch.inputs if isinstance(source, Field)]
        is_sum = branch.call is not None and branch.call.name in ("add", "radd") and branch not in self.by_record
        if is_sum and len(inner) == 2 and all(_depends(term, origin) for term in inner):
            return [leaf for term in inner for leaf in self._terms(term, origin)]
        return [branch]

    def _record(self, found: _Found) -> None:
        module = found.record.call.module if found.record.call is not None else ""
        name = f"{module}.add"
        count = self._counts[name] = self._counts.get(name, 0) + 1
        found.name = name if count == 1 else f"{name}@{count}"
        self.found.append(found)
        self.by_record[found.record] = found

    def finished(self, found: _Found) -> Junction:
        branches = tuple(self._branch(branch, found.skip) for branch in found.branches)
        module = found.record.call.module if found.record.call is not None else ""
        return Junction(
            found.name,
            module,
            self._site(found.skip),
            branches,
            self._placement(found, branches),
            found.scale,
            found.projected,
        )

    def _branch(self, item: Field, skip: Field) -> Branch:
        last, normed, scale = _ending(item)
        subgraph = list(_between(item, skip))
        weights = [name for record in subgraph for name in _names(record)]
        first = [record for record in subgraph if any(_origin_is(source, skip) for source in record.inputs)]
        return Branch(
            self._site(item),
            _kind(subgraph, skip),
            tuple(dict.fromkeys(last)),
            tuple(dict.fromkeys(weights)),
            bool(first) and all(_is_norm(record) or _is_statistic(record) for record in first),
            normed,
            scale,
        )

    def _placement(self, found: _Found, branches: tuple[Branch, ...]) -> str:
        users = [user for user in self.consumers.get(found.record, []) if not _is_statistic(user)]
        if any(branch.starts_with_norm for branch in branches):
            return "sandwich" if any(branch.ends_with_norm for branch in branches) else "pre"
        if users and all(_is_norm(user) for user in users):
            return "post"
        return "sandwich" if any(branch.ends_with_norm for branch in branches) else "none"

    def _site(self, item: Field) -> str:
        """The nearest module output at or above a record."""
        for record in _upwards(item):
            if record in self.sites:
                return self.sites[record]
            if record in self.by_record:
                return self.by_record[record].name
        return ""

    def final_norm(self) -> str | None:
        """The norm that the stream passes after the last junction."""
        for item in self.consumers.get(self.found[-1].record, []) if self.found else []:
            if _is_norm(item) and item.call is not None:
                return item.call.module
        return None


# -- the graph


def _upwards(item: Field) -> Iterable[Field]:
    """The record and what it is a view, scale or gain of."""
    while True:
        yield item
        fields = [source for source in item.inputs if isinstance(source, Field)]
        if item.is_source or len(fields) != 1:
            return
        item = fields[0]


def _origin(item: Field) -> tuple[Field, float]:
    """What a skip path scales or views, and by how much."""
    scale = 1.0
    while item.call is not None and not item.is_source and item.inputs:
        above = item.inputs[0]
        if not isinstance(above, Field) or _is_norm(item):
            break
        if item.slope is not None and above.slope is None and above.function is None:
            scale *= item.slope
        elif item.call.name not in ("dropout", "mul", "to", "contiguous") and item.layout.dims != above.layout.dims:
            break
        item = above
    return item, scale


def _origin_is(source: Record, skip: Field) -> bool:
    return isinstance(source, Field) and (source is skip or source.base is skip)


def _depends(item: Record, origin: Record) -> bool:
    return any(record is origin for record in _ancestors(item, getattr(origin, "number", 0)))


def _ancestors(item: Record, oldest: int = 0) -> Iterable[Record]:
    """Everything a record was made from, not looking behind records older than `oldest`."""
    stack, seen = [item], set()
    while stack:
        record = stack.pop()
        if id(record) in seen or getattr(record, "number", oldest) < oldest:
            continue
        seen.add(id(record))
        yield record
        stack.extend(getattr(record, "inputs", ()))


def _between(item: Field, skip: Field) -> Iterable[Field]:
    """Records on the way from `skip` (left out) down to `item`."""
    stack, seen = [item], {id(skip)}
    while stack:
        record = stack.pop()
        if id(record) in seen:
            continue
        seen.add(id(record))
        yield record
        stack.extend(source for source in record.inputs if isinstance(source, Field))


def _shared_ancestor(first: Field, second: Field) -> Field | None:
    mine = {id(record) for record in _ancestors(first)}
    for record in _ancestors(second):
        if id(record) in mine and isinstance(record, Field) and record.inputs and record is not first:
            return record
    return None


def _weights_between(item: Field, skip: Field) -> list[str]:
    return [name for record in _between(item, skip) for name in _names(record)]


def _names(record: Field) -> list[str]:
    return [name for source in record.inputs if isinstance(source, Weight) for name, _ in source.roots()]


def _is_norm(item: Field) -> bool:
    if item.call is None:
        return False
    return item.call.name in NORMS or any(
        source.statistic for source in item.call.records() if isinstance(source, Field)
    )


def _is_statistic(item: Field) -> bool:
    return item.statistic is not None or (item.root is not None and item.function is not None)


def _ending(item: Field) -> tuple[list[str], bool, float]:
    """Last weights of a branch, whether a norm follows them, and the scale after them."""
    last: list[str] = []
    normed, scale = False, 1.0
    stack: list[Field] = [item]
    while stack:
        record = stack.pop()
        if record.call is not None and record.call.name in CONTRACTIONS and _names(record):
            weights = [source for source in record.inputs if isinstance(source, Weight)]
            last.extend(name for name, _ in weights[0].roots())
            continue
        normed = normed or _is_norm(record)
        if record.slope is not None and len(stack) == 0:
            scale *= record.slope
        stack.extend(source for source in record.inputs if isinstance(source, Field))
    return last, normed, scale


def _kind(subgraph: list[Field], skip: Field) -> str:
    for record in subgraph:
        if any(axis.role == KEY for source in record.inputs if isinstance(source, Field)
               for dim in source.layout.dims for axis in dim):  # fmt: skip
            value = record.inputs[-1]
            return "attention" if _depends(value, skip) else "cross attention"
    if any(record.call is not None and record.call.name.startswith("conv") for record in subgraph):
        return "convolution"
    return "mlp"


def _blocks(trace: Trace, junctions: tuple[Junction, ...]) -> tuple[tuple[str, ...], ...]:
    """Modules of one class under numbered names of one list, that hold the junctions."""
    groups: dict[tuple[str, type], list[str]] = {}
    modules = dict(trace.capture.model.named_modules())
    for name, module in modules.items():
        numbered = re.fullmatch(r"(.*?)\.?(\d+)", name)
        if numbered and any(j.module == name or j.module.startswith(name + ".") for j in junctions):
            groups.setdefault((numbered.group(1), type(module)), []).append(name)
    outer = [names for names in groups.values() if not any(_inside(names, other) for other in groups.values())]
    return tuple(tuple(names) for names in outer)


def _inside(names: list[str], others: list[str]) -> bool:
    return names is not others and all(any(n.startswith(o + ".") for o in others) for n in names)

"""What a model is made of, read off its trace: residual junctions, repeated blocks, parameter roles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sigprop.trace.record import Field, Record
from sigprop.trace.residual import Graph, Sum, ends_in_norm, factor
from sigprop.trace.roles import ParameterInfo, find_roles, nearest_matrices

if TYPE_CHECKING:
    from sigprop.trace.tracing import Trace


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
    def last_weights(self) -> tuple[str, ...]:
        return tuple(name for branch in self.branches for name in branch.last_weights)


@dataclass(frozen=True)
class Structure:
    """Junctions in order of execution; `blocks` are lists of alike modules, each list in order."""

    junctions: tuple[Junction, ...]
    blocks: tuple[tuple[str, ...], ...]
    parameters: dict[str, ParameterInfo]
    final_norm: str | None = None


def find_structure(trace: Trace) -> Structure:
    """Read the structure off the records of a trace."""
    graph = Graph(trace)
    junctions = _Junctions(graph).found
    blocks = _blocks(trace, junctions)
    return Structure(junctions, blocks, find_roles(trace, list(graph.index), blocks), _final_norm(graph))


class _Junctions:
    """Residual sums under their public names; branches of one source, added one after the other, are one junction."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.sites: dict[Field, str] = {item: name for name, item in graph.trace.sites}
        self.names: dict[Field, str] = {}
        counts: dict[str, int] = {}
        for total in graph.sums:
            name = f"{_module(total)}.add"
            counts[name] = counts.get(name, 0) + 1
            self.names[total] = name if counts[name] == 1 else f"{name}@{counts[name]}"
        joined: dict[Field, list[Sum]] = {}
        for total, item in graph.sums.items():
            together = joined.get(item.skip, [])
            if together and item.source is together[0].source is not item.skip:
                joined[total] = [*joined.pop(item.skip), item]
            else:
                joined[total] = [item]
        self.found = tuple(self._junction(sums) for sums in joined.values())

    def _junction(self, sums: list[Sum]) -> Junction:
        first, last = sums[0], sums[-1]
        pairs = [pair for item in sums for pair in zip(item.branches, item.passed, strict=True)]
        before, after = ("pre" in self.graph.norms(first), "post" in self.graph.norms(last))
        branches = tuple(self._branch(branch, passed, before) for branch, passed in pairs)
        inner = any(branch.ends_with_norm for branch in branches)
        placement = "sandwich" if inner and (before or not after) else "pre" if before else "post" if after else "none"
        skip = first.source if first.projected else first.skip
        return Junction(
            self.names[last.total], _module(last.total), self._site(skip), branches, placement, first.skip_scale,
            first.projected,
        )  # fmt: skip

    def _branch(self, item: Field, passed: set[Record], starts_with_norm: bool) -> Branch:
        return Branch(
            self._site(item),
            self._kind(passed),
            tuple(nearest_matrices(item)),
            self.graph.parameters(passed),
            starts_with_norm,
            ends_in_norm(item),
            factor(item),
        )

    def _kind(self, passed: set[Record]) -> str:
        attention = self.graph.attention(passed)
        if attention is not None:
            return "cross attention" if self.graph.crosses(attention, passed) else "attention"
        calls = [item.call.name for item in passed if item.call is not None]
        return "convolution" if any(name.startswith("conv") for name in calls) else "mlp"

    def _site(self, item: Field) -> str:
        """The nearest module output or junction at or above a record."""
        while True:
            if item in self.sites or item in self.names:
                return self.sites.get(item) or self.names[item]
            fields = [source for source in item.inputs if isinstance(source, Field)]
            if item.is_source or len(fields) != 1:
                return ""
            item = fields[0]


def _module(item: Field) -> str:
    return item.call.module if item.call is not None else ""


def _final_norm(graph: Graph) -> str | None:
    """The norm that the stream passes after the last junction."""
    return next(iter(graph.norm_names(list(graph.sums)[-1])), None) if graph.sums else None


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

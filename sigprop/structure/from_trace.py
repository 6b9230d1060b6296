"""`read_structure`: one trace, and what it says a model is made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import as_batch, first_batch, mapped, tensors_in
from sigprop.capture.layout import LARGEST
from sigprop.capture.record import Field, Record, Weight
from sigprop.capture.roles import CONTRACTIONS, readouts
from sigprop.capture.tracing import trace
from sigprop.distributions import skeleton_of
from sigprop.errors import SigpropError, TooLarge
from sigprop.graph.graph import record_of
from sigprop.inputs import made_up_batch
from sigprop.sites import ADDITION, ROOT, CallCounter, inside
from sigprop.structure.linear import ending, find_routers, find_scores, table_scales
from sigprop.structure.model import Junction, Spot, Structure
from sigprop.structure.parameters import find_parameters
from sigprop.structure.residual import CARRIED, SUMS, Sum, Tensors, core, ends_in_norm, factor, plain, scale_of

STEPS = 12
TOKENS = 64
FEW, EXAMPLES = 640, (1 << 40, 256, 64, 16, 4, 2)
"""Positions whose pairs are followed in seconds, and how many examples of a batch are tried for no more of them."""


def read_structure(model: nn.Module, batch: Any = None, positions: int = LARGEST) -> Structure:
    """Parameters, junctions and blocks of a model, from one run without weights on a batch (random if None); a tensor
    of more `positions` is refused."""
    batch = made_up_batch(model, TOKENS) if batch is None else as_batch(batch, model)
    with _entries() as entered:
        found = trace(_traceable(model), _in_single_precision(batch), positions=positions)
    names = {id(module): name or ROOT for name, module in found.capture.model.named_modules()}
    calls = Counter(id(module) for module, _ in entered)
    entries: dict[Record, str] = {}
    for module, record in entered:
        if id(module) in names and names[id(module)] != ROOT and calls[id(module)] == 1:
            entries.setdefault(record, names[id(module)])
    graph = Tensors(found)
    several = {label.partition("@")[0] for label, _ in found.sites if "@" in label}
    exits = {item: label for label, item in found.sites if "[" not in label and label.partition("@")[0] not in several}
    sums = list(graph.sums.values())
    junctions, spots = _junctions(graph, sums, entries, exits), _spots(graph, sums)
    blocks = _blocks(found.capture.model, [junction.name for junction in junctions])
    visited = _visited(found.sites, [name for names in blocks for name in names], several)
    junctions = [
        replace(junction, block=visited(junction.name, spot.total))
        for junction, spot in zip(junctions, spots, strict=True)
    ]
    starts = {junction.stream: spot for junction, spot in reversed(list(zip(junctions, spots, strict=True)))}
    return Structure(
        find_parameters(found, graph, junctions, blocks, _frozen(model)),
        junctions,
        spots,
        found,
        width=next((item.total.layout.channels for item in sums), 0),
        dropout=_dropout(model),
        kinds=tuple(_kinds(starts[stream].source) for stream in sorted(starts)),
        blocks=blocks,
        final_norm=next(iter(graph.norm_names(sums[-1].total)), None) if sums else None,
        readout_input=_readout_input(graph),
        scores=find_scores(graph),
        routers=find_routers(graph),
        table_scales=table_scales(graph),
        judged=tuple(dict.fromkeys(item.call.name for item in found.losses if item.call is not None)),
        model=model,
        batch=batch,
    )


def structure_of(model: nn.Module, batch: Any = None) -> Structure:
    """`read_structure` on as many examples of a large batch as have few positions, two at least; the structure keeps
    the whole batch."""
    batch = made_up_batch(model, TOKENS) if batch is None else as_batch(batch, model)
    for count in EXAMPLES:
        positions = FEW if count > EXAMPLES[-1] else LARGEST
        try:
            return replace(read_structure(model, few_examples(batch, count), positions), batch=batch)
        except TooLarge:
            if positions == LARGEST:
                raise
        except SigpropError:
            if count == EXAMPLES[0]:
                raise
            break
    return read_structure(model, batch)  # fewer examples do not run


def few_examples(batch: Any, count: int = 2) -> Any:
    """The first examples: what a model is made of does not depend on their number, what a trace costs does."""
    batch = first_batch(batch)
    first = next((item for _, item in tensors_in(batch) if item.dim()), None)
    size = 0 if first is None else len(first)
    return mapped(batch, lambda item: item[:count] if isinstance(item, Tensor) and item.shape[:1] == (size,) else item)


def _traceable(model: nn.Module) -> nn.Module:
    """The model itself, or a skeleton of it: in float32, since some forwards mix float32 numbers of their own with
    weights, and with its frozen weights as weights, not as numbers."""
    if any(item.is_floating_point() and item.dtype != torch.float32 for item in model.parameters()):
        return skeleton_of(model, frozen=True).float()
    return skeleton_of(model, frozen=True) if _frozen(model) else model


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, item in model.named_parameters() if item.is_floating_point() and not item.requires_grad}


def _in_single_precision(batch: Any) -> Any:
    """Floating-point inputs in float32: structure does not depend on their precision, and not all rules take others."""
    return mapped(batch, lambda item: item.float() if isinstance(item, Tensor) and item.is_floating_point() else item)


def _spots(graph: Tensors, sums: list[Sum]) -> list[Spot]:
    return [
        Spot(item.total, item.skip, core(branch), item.source, item.scaled, graph.attention(passed))
        for item in sums
        for branch, passed in zip(item.branches, item.passed, strict=True)
    ]


def _kinds(item: Field) -> int:
    """How many tensors made of parameters or input alone add up to the start of a stream."""
    fields = item.fields
    if item.made_by in SUMS and len(fields) == 2:
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


def _junctions(graph: Tensors, sums: list[Sum], entries: dict[Record, str], exits: dict[Field, str]) -> list[Junction]:
    made: list[Junction] = []
    number: dict[Field, int] = {}
    stream_of: dict[Field, int] = {}
    orders: dict[int, int] = {}
    names = _names(sums)
    for item in sums:
        origin = _origin(stream_of, item.skip)
        stream = stream_of.setdefault(item.total, stream_of[origin] if origin is not None else len(orders))
        orders[stream] = orders.get(stream, 0) + 1
        for branch, passed in zip(item.branches, item.passed, strict=True):
            parallel = branch is not item.branches[0]
            last, attention = ending(branch), graph.attention(passed)
            taken = item.source if plain(item.source) is plain(item.skip) else item.skip
            exit, passed_by, dropped = _exit(branch, exits)
            made.append(
                Junction(
                    exit=exit,
                    entry=entries.get(taken, ""),
                    weights=last.names,
                    inside=graph.parameters(passed),
                    stream=stream,
                    order=orders[stream],
                    attention=attention is not None,
                    cross=attention is not None and graph.crosses(attention, passed),
                    norms=graph.norms(item) | ({"out"} if ends_in_norm(branch) else set()),
                    scale_free=graph.scale_free(item.total),
                    previous=len(made) - 1 if parallel else number.get(item.skip),
                    parallel=parallel,
                    readers=tuple(dict.fromkeys(graph.norm_names(item.total))),
                    shift=last.shift,
                    projected=item.projected,
                    name=names[item.total],
                    kind=_kind(graph, passed),
                    skip_scale=item.skip_scale,
                    branch_scale=factor(branch) * item.branch_share,
                    own=item.skip_scale / (passed_by * scale_of(taken)) if passed_by * scale_of(taken) else 1.0,
                    dropped=dropped,
                )
            )
        number[item.total] = len(made) - 1
    return made


def _readout_input(graph: Tensors) -> tuple[str, ...]:
    """The last parameters of the tensor that the readout reads; none where they enter with a shift, or where it is the
    stream itself or is shared."""
    names = readouts(graph.traced)
    for item in reversed(graph.index):
        weights = item.weights
        reads = item.made_by in CONTRACTIONS and isinstance(item.inputs[0], Field)
        if reads and weights and names & {name for name, _ in weights[0].roots}:
            source: Any = item.inputs[0]
            alone = len(graph.readers.get(source, [])) == 1 and plain(source) not in graph.sums
            found = ending(source) if alone else None
            return found.names if found is not None and found.shift == 0.0 else ()
    return ()


def _exit(branch: Field, exits: dict[Field, str]) -> tuple[str, float, bool]:
    """The module whose output is the branch, up to steps without weights that scale with it, such as a dropout that
    several branches share; empty where there is none. With the number that it is multiplied by on the way to the sum,
    and whether some of it is dropped there."""
    item, number, dropped = core(branch), factor(branch), False
    while item not in exits:
        inner = item.fields
        if item.made_by not in CARRIED or len(item.inputs) != len(inner) or len(inner) != 1:
            return "", number, dropped
        dropped = dropped or item.made_by == "dropout"
        item, number = inner[0], number * (factor(item) if item.slope is not None else 1.0)
    return exits[item], number, dropped


def _names(sums: list[Sum]) -> dict[Field, str]:
    """The sums under their public names: the module that adds, `.add` (`.sub`, ...), and `@2` from the second on."""
    names: dict[Field, str] = {}
    calls = CallCounter()
    for item in sums:
        call = item.total.call
        assert call is not None
        names[item.total] = calls.next(inside(call.module, ADDITION if call.name in SUMS else call.name))
    return names


def _kind(graph: Tensors, passed: set[Record]) -> str:
    attention = graph.attention(passed)
    if attention is not None:
        return "cross attention" if graph.crosses(attention, passed) else "attention"
    calls = [item.call.name for item in passed if item.call is not None]
    return "convolution" if any(name.startswith("conv") for name in calls) else "mlp"


def _blocks(model: nn.Module, sums: list[str]) -> tuple[tuple[str, ...], ...]:
    """Modules of one class under numbered names of one list, that hold the junctions."""
    groups: dict[tuple[str, type], list[str]] = {}
    for name, module in model.named_modules():
        numbered = re.fullmatch(r"(.*?)\.?(\d+)", name)
        if numbered and any(total.startswith(name + ".") for total in sums):
            groups.setdefault((numbered.group(1), type(module)), []).append(name)
    lists = [names for names in groups.values() if not _is_container(model, names, groups.values())]
    outer = [names for names in lists if not any(_within(names, other) for other in lists)]
    return tuple(tuple(names) for names in outer)


def _visited(sites: list[tuple[str, Field]], blocks: list[str], several: set[str]) -> Callable[[str, Field], str]:
    """The site of the block, or of the visit to a reused module, in which a sum of that name is made."""
    reused = sorted((name for name in several if name != ROOT), key=len)

    def find(name: str, total: Field) -> str:
        owner = next((block for block in (*blocks, *reused) if name.startswith((block + ".", block + "@"))), None)
        made = [label for label, item in sites if label.partition("@")[0] == owner and item.number >= total.number]
        return made[0] if made else ""

    return find


def _within(names: list[str], others: list[str]) -> bool:
    return names is not others and all(any(n.startswith(o + ".") for o in others) for n in names)


def _is_container(model: nn.Module, names: list[str], groups: Iterable[list[str]]) -> bool:
    """Numbered modules around lists of blocks: one (`nn.Sequential(table, encoder)`) or stages unlike in shape."""
    inner = [other for other in groups if len(other) > 1 and _within(other, names)]
    shapes = {tuple(item.shape for item in model.get_submodule(name).parameters()) for name in names}
    return bool(inner) and (len(names) == 1 or len(shapes) > 1)


def _origin(sums: dict[Field, int], item: Field) -> Field | None:
    """The last sum of the stream that a skip comes from, through norms and other single-input steps; of several tensors
    put together (a U-net's), the last."""
    for _ in range(STEPS):
        if item in sums:
            return item
        fields = item.fields
        if len(fields) != 1 and not (fields and item.made_by == "cat"):
            return None
        item = max(fields, key=lambda field: field.number)
    return None


def _dropout(model: nn.Module) -> float:
    """The largest dropout probability of a model's modules, which act while it trains."""
    found = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    return max(found, default=0.0)

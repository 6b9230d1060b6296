"""What a model is made of, as data: parameters by role (`results.parameters`), residual junctions, repeated blocks.

A fused matrix has `parts`: pieces along its output axis, each with its own role.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from sigprop.capture.record import Field
from sigprop.capture.tracing import TracedModel
from sigprop.errors import UnsupportedError
from sigprop.results.parameters import MATRICES, TABLES
from sigprop.structure.attention import FoundAttention, visible_keys
from sigprop.structure.linear import Scores, TableScale

STARTS = (*TABLES, "input")


@dataclass(frozen=True)
class Part:
    """A piece of a parameter along its output axis."""

    role: str
    size: int


@dataclass(frozen=True)
class Parameter:
    """One parameter: role, fans as the contraction uses them, and the junction whose branch it lies in.

    `parts` split its output axis `axis`; `tied` says that an embedding is also the readout; `expert` that only the
    tokens sent to it see it; `frozen` that it is not trained; `block` is the repeated block that holds it; `constant`
    the value that the model itself gives to all its entries, if it does.
    """

    name: str
    shape: tuple[int, ...]
    role: str
    fan_in: int = 0
    fan_out: int = 0
    axis: int = 0
    parts: tuple[Part, ...] = ()
    junction: int | None = None
    tied: bool = False
    head_width: int = 0
    constant: float | None = None
    expert: bool = False
    frozen: bool = False
    block: str = ""

    @property
    def is_matrix(self) -> bool:
        return self.role in MATRICES and len(self.shape) > 1


@dataclass(frozen=True)
class Junction:
    """One branch of a residual sum `x + f(x)`; `name` is the sum's, as `measure(junctions=True)` calls it, `block` the
    site of the repeated block, or of the visit to a reused one, that it lies in.

    `kind`: attention, cross attention, mlp or convolution. `skip_scale`, `branch_scale`: the model's own factors.
    `own` is the factor of what `entry` takes in over that of what `exit` puts out, as they enter the sum; `dropped`
    says that a dropout stands between `exit` and the sum.
    `exit` is the module whose output is `f(x)`, or `f(x)` before what several branches share (dropout); `entry` one
    that takes in the skip. Both are called once. `weights` are the last parameters of
    `f`, matrices first: `f` is multiplied by a number when all of them are; they enter as `shift + w`. `inside` are
    all parameters of the branch. `stream` numbers the residual streams (encoder, decoder), `order` the junctions of one
    stream from 1; parallel branches share their order. `norms` says where norms stand: `pre` (the branch reads a norm
    of `x`), `post` (a norm reads the sum), `out` (the branch ends in one). `previous` is the number of the junction
    whose sum is the skip here, with no norm between; `parallel` says that it is one sum with that junction.
    `scale_free`: everything that reads the sum is a norm or another junction, so that a common factor of the stream is
    undone later. `readers` are those norms. `projected`: the skip has a weight of its own, `P x + f(x)`.
    """

    exit: str
    entry: str
    weights: tuple[str, ...]
    inside: tuple[str, ...]
    stream: int
    order: int
    attention: bool
    cross: bool
    norms: frozenset[str]
    scale_free: bool
    previous: int | None = None
    parallel: bool = False
    readers: tuple[str, ...] = ()
    shift: float = 0.0
    projected: bool = False
    name: str = ""
    block: str = ""
    kind: str = ""
    skip_scale: float = 1.0
    branch_scale: float = 1.0
    own: float = 1.0
    dropped: bool = False

    @property
    def placement(self) -> str:
        """`pre`, `post` or `none`; where `norms` has `out` besides, the branch ends in a norm (sandwich)."""
        return "pre" if "pre" in self.norms else "post" if "post" in self.norms else "none"


@dataclass(frozen=True, eq=False)
class Spot:
    """Where a junction lies in the trace: its sum, its two operands without their own scales, what the branch reads.

    `scaled` says that the model multiplies one of the operands by a number of its own; `attention` is the branch's.
    """

    total: Field
    skip: Field
    branch: Field
    source: Field
    scaled: bool
    attention: FoundAttention | None = None


@dataclass
class Structure:
    """Parameters by name and junctions in order, with their `sums` in the trace; what they were read from.

    `kinds`: for each stream, how many embeddings add up to its start. `blocks`: lists of identical modules that hold
    the junctions, each in order. `final_norm`: the module of the norm that the stream passes after the last junction.
    `readout_input`: the parameters that what the readout reads is linear in (gain and bias of the final norm), where
    nothing else reads it. `scores`: every attention. `routers`: modules whose softmax is over what a matrix makes of
    each token. `table_scales`: numbers that multiply what is looked up, by table. `judged`: the loss functions that the
    model calls itself.
    """

    parameters: dict[str, Parameter]
    junctions: list[Junction]
    sums: list[Spot]
    traced: TracedModel = field(repr=False)
    width: int
    dropout: float = 0.0
    kinds: tuple[int, ...] = ()
    blocks: tuple[tuple[str, ...], ...] = ()
    final_norm: str | None = None
    readout_input: tuple[str, ...] = ()
    scores: tuple[Scores, ...] = ()
    routers: frozenset[str] = frozenset()
    table_scales: dict[str, TableScale] = field(default_factory=dict)
    judged: tuple[str, ...] = ()
    model: nn.Module | None = field(default=None, repr=False)
    batch: Any = field(default=None, repr=False)
    _keys: dict[tuple[int, bool], Tensor] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters.values())

    @cached_property
    def streams(self) -> list[list[Junction]]:
        """The junctions of each residual stream."""
        count = max((junction.stream for junction in self.junctions), default=-1) + 1
        return [[junction for junction in self.junctions if junction.stream == n] for n in range(count)]

    def layers(self, stream: int = 0) -> int:
        """Layers of a stream: an attention and an mlp branch (and a cross attention) make one layer."""
        branches = self.streams[stream]
        attention = sum(junction.attention and not junction.cross for junction in branches)
        return attention or len(branches)

    def layer_of(self, junction: Junction) -> int:
        """The layer of a junction in its stream, from 1."""
        branches = self.streams[junction.stream]
        if not any(item.attention for item in branches):
            return junction.order
        earlier = branches[: branches.index(junction) + 1]
        return max(1, sum(item.attention and not item.cross for item in earlier))

    @property
    def starting(self) -> list[str]:
        """Parameters that the streams start from."""
        return [item.name for item in self if item.role in STARTS and item.junction is None]

    @property
    def tied_table(self) -> Parameter | None:
        """The embedding that is also the readout."""
        return next((item for item in self if item.tied), None)

    def table_scale(self, name: str) -> float:
        """The number that the model multiplies the rows of a table with."""
        return self.table_scales[name].number if name in self.table_scales else 1.0

    @property
    def expert_share(self) -> float:
        """The share of the tokens that an expert sees, where routers choose a fixed number of them."""
        counts = {item.fan_out for item in self if item.role == "router"}
        shares = set()
        for record in self.traced.capture.records:
            if record.call is None or record.call.name != "topk":
                continue
            scores = record.call.args[0]
            chosen = record.call.kwargs.get("k", record.call.args[1] if len(record.call.args) > 1 else None)
            if isinstance(chosen, int) and getattr(scores, "shape", (0,))[-1] in counts:
                shares.add(chosen / scores.shape[-1])
        return shares.pop() if len(shares) == 1 else 1.0

    @property
    def placement(self) -> str:
        """The placement that all junctions share, else `mixed`."""
        found = {junction.placement for junction in self.junctions}
        return found.pop() if len(found) == 1 else "mixed" if found else "none"

    @property
    def is_transformer(self) -> bool:
        """Whether tokens attend, on residual branches or without."""
        return any(junction.attention for junction in self.junctions) or bool(self.scores)

    def junction_of(self, parameter: Parameter) -> Junction | None:
        return None if parameter.junction is None else self.junctions[parameter.junction]

    def visible_keys(self, junction: Junction) -> Tensor:
        """How many keys each query of a branch's attention can see, from one sample of its weights."""
        key = (junction.stream, junction.cross)
        if key not in self._keys:
            found = self.sums[self.junctions.index(junction)].attention
            if found is None:
                raise UnsupportedError(f"no attention in the branch at {junction.exit}")
            self._keys[key] = visible_keys(found, self.traced.states)
        return self._keys[key]

    def require(self, recipe: str, needs: str = "", norms: str = "") -> None:
        """Refuse a model without residual `junctions`, without attention in them (`transformer`), or with norms placed
        otherwise."""
        if needs == "junctions" and not self.junctions:
            raise UnsupportedError(f"{recipe} scales residual branches: this model has no residual junction")
        if needs == "transformer" and not any(junction.attention for junction in self.junctions):
            raise UnsupportedError(f"{recipe} is for Transformers: no residual branch of this model has attention")
        if norms and self.placement != norms:
            names = {"post": "Post-LN", "pre": "Pre-LN", "none": "no norm on its residual branches"}
            raise UnsupportedError(
                f"{recipe} is for models with {names[norms]}: "
                f"this one has {names.get(self.placement, 'mixed norm placements')}"
            )

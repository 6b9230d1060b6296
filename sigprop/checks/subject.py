"""What a finding looks at: one model, its batch, and everything known of it, each computed once when first asked."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from sigprop.checks.branches import Branch, find_branches
from sigprop.checks.draws import Draw, DrawnParameters, read_draws
from sigprop.checks.ends import End, gradient_ends
from sigprop.checks.evaluation import Experiment
from sigprop.checks.influence import Influence, influence
from sigprop.checks.observation import Activity, Observation, observe
from sigprop.checks.registry import JUDGED, checks
from sigprop.checks.streams import Stream, find_streams
from sigprop.checks.wiring import Wired, wiring
from sigprop.distributions import build
from sigprop.errors import SigpropError, UnsupportedError
from sigprop.losses import OWN
from sigprop.plans import ParameterPlan, Plan
from sigprop.plans.application import APPLIED
from sigprop.results import Init, Profile, SiteRow
from sigprop.results.parameters import KEEP
from sigprop.results.profile import streams
from sigprop.results.report import Finding
from sigprop.sites import BLOCK_NUMBER, unwrap
from sigprop.structure import Parameter, Structure, read_structure

HEAVY = 3.5
NORM = re.compile(r"norm|(^|\.)ln(_|$|\d)", re.IGNORECASE)


@dataclass
class Subject:
    """The model under examination. Profiles are None where they could not be made; `notes` says why, and `warnings`
    what is told in every report.

    `skeleton` is the model without weights, where there is one already; `quick`: neither trace nor theory;
    `made_up`: the batch is nobody's.
    """

    model: nn.Module
    batch: Any
    predicted: Profile | None = None
    measured: Profile | None = None
    plan: Plan | None = None
    base: nn.Module | None = None
    optimizer: str | None = None
    lr: float = 1e-3
    evaluation: Experiment | None = None
    skeleton: nn.Module | None = None
    quick: bool = False
    made_up: bool = False

    def __post_init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self._tried: dict[tuple, Subject | Profile | None] = {}

    def under(self, plan: Plan, attributes: Mapping[str, float] | None = None) -> Subject | None:
        """The same experiment under a plan (and with other numbers in modules), measured where there are weights, else
        predicted; None where neither can be done."""
        attributes = attributes or {}
        key = tuple((row.name, row.init) for row in plan if row.init != KEEP) + tuple(map(str, plan.scales))
        key += tuple(attributes.items())
        known = self._tried.get(key)
        if isinstance(known, Subject) or (known is None and key in self._tried):
            return known
        self._let_go()
        try:
            twin = self._under(plan, attributes, known)
        except (SigpropError, RuntimeError, TypeError) as error:
            self.notes.append(f"a fix could not be tried: {str(error).splitlines()[0]}")
            twin = None
        self._tried[key] = twin
        return twin

    def _under(self, plan: Plan, attributes: Mapping[str, float], measured: Profile | None) -> Subject:
        assert self.evaluation is not None
        if self.measured is None:
            if attributes:
                raise UnsupportedError("numbers of modules are changed only where there are weights to measure")
            twin = replace(self, predicted=self.evaluation.predicted(plan))
        else:
            model = self.evaluation.applied(plan)
            for name, value in attributes.items():
                owner, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(owner), leaf, value)
            experiment = replace(self.evaluation, model=model)
            measured = measured or experiment.measured()
            twin = replace(self, model=model, predicted=None, measured=measured, evaluation=experiment)
        twin.__dict__["structure"] = self.structure
        return twin

    def _let_go(self) -> None:
        """Only the latest trial keeps weights of its own: of those before stays what was found, or measured."""
        for key, twin in self._tried.items():
            if not isinstance(twin, Subject) or twin.model is self.model:
                continue
            if {"signals", "observed"} <= vars(twin).keys():
                twin.model, twin.evaluation = self.model, self.evaluation
            else:
                self._tried[key] = twin.measured

    def edited(self, inits: dict[str, Init], attributes: Mapping[str, float] | None = None) -> Subject | None:
        """The same experiment with some parameters changed."""
        return self.under(repair_plan(self.draws, inits), attributes)

    @cached_property
    def signals(self) -> list[Finding]:
        """What is found about signals and gradients."""
        return [finding for kind in checks().values() if kind.group in JUDGED for finding in kind(self)]

    # -- the weights

    @cached_property
    def draws(self) -> DrawnParameters:
        return read_draws(self.model)

    @cached_property
    def moved_gains(self) -> float:
        """Share of norms whose gains are not one constant; training does not scatter them around zero."""
        gains = [row for row in self.draws if len(row.shape) == 1 and is_norm_gain(row)]
        moved = [row for row in gains if 1e-4 * max(abs(row.mean), 1e-4) < row.std < abs(row.mean)]
        return len(moved) / len(gains) if gains else 0.0

    @cached_property
    def trained(self) -> bool:
        """Most gains of norms have moved, or (without norms) most matrices have heavier tails than a draw."""
        if self.draws.recorded:
            return False
        if any(len(row.shape) == 1 and is_norm_gain(row) for row in self.draws):
            return self.moved_gains > 0.5
        rows = [row for row in self.draws.matrices if row.total >= 1024 and row.largest < 100]
        heavy = [row for row in rows if row.kurtosis > HEAVY + 12 / math.sqrt(row.count)]
        return len(rows) > 2 and len(heavy) > 0.5 * len(rows)

    @cached_property
    def class_laws(self) -> dict[str, Draw] | None:
        """How the model's own class draws every parameter, for models that are built of a config; None under a plan."""
        config = getattr(self.model, "config", None)
        planned = self.plan is not None or hasattr(unwrap(self.model), APPLIED)
        if self.quick or config is None or not hasattr(config, "to_dict") or self.draws.recorded or planned:
            return None
        kind, copied = type(self.model), copy.deepcopy(config)
        try:
            return read_draws(build(lambda: kind(copied))).rows
        except Exception as error:
            self.notes.append(
                f"the initialization of {kind.__name__} could not be read again: {type(error).__name__}: {error}"
            )
            return None

    # -- the structure

    @property
    def without_weights(self) -> nn.Module:
        """A skeleton that was made before, so that laws are not read off the weights again; else the model itself."""
        if self.skeleton is not None:
            return self.skeleton
        return self.model if self.evaluation is None else self.evaluation.skeleton

    @cached_property
    def structure(self) -> Structure | None:
        """Read from the graph; None in a quick check."""
        if self.quick:
            return None
        try:
            if self.evaluation is not None:
                return self.evaluation.structure(self.without_weights)
            return read_structure(self.without_weights, self.batch)
        except SigpropError as error:
            self.notes.append(f"structure not read: {str(error).splitlines()[0]}")
            return None

    @cached_property
    def branch_ends(self) -> frozenset[str]:
        """The last weights of all residual branches."""
        if self.structure is None:
            return frozenset()
        return frozenset(name for junction in self.structure.junctions for name in junction.weights)

    @cached_property
    def block_matrices(self) -> frozenset[str]:
        """Matrices inside residual branches."""
        if self.structure is None:
            return frozenset()
        return frozenset(name for junction in self.structure.junctions for name in junction.inside)

    @cached_property
    def expert_counts(self) -> frozenset[int]:
        """How many experts a router may choose among: the lengths of lists, and first sizes of stacks of matrices."""
        lists = {len(module) for module in self.model.modules() if isinstance(module, nn.ModuleList)}
        return frozenset(lists | {row.shape[0] for row in self.draws if len(row.shape) == 3})

    @cached_property
    def layers(self) -> int:
        """Repeated blocks: of one family of parameters, the numbers that stand first in its names; those of a container
        that holds them all are passed over; or the blocks of one residual stream, each visit counted."""
        found = [int(any(BLOCK_NUMBER.search(row.name) for row in self.draws))]
        for rows in self.draws.families().values():
            places = zip(*(BLOCK_NUMBER.findall(row.name) for row in rows), strict=False)
            found.append(next((len(kinds) for kinds in map(set, places) if len(kinds) > 1), 0))
        streams = [] if self.structure is None else self.structure.streams
        return max([*found, *(len({item.block for item in stream if item.block}) for stream in streams)])

    @property
    def model_name(self) -> str:
        return type(self.model).__name__

    @property
    def model_type(self) -> str:
        return str(getattr(getattr(self.model, "config", None), "model_type", ""))

    def depths_of(self, names: Iterable[str]) -> tuple[int, int] | None:
        """First and last block (from 1) that the names lie in."""
        found = [int(match.group(1)) + 1 for match in map(BLOCK_NUMBER.search, names) if match]
        return (min(found), max(found)) if found else None

    # -- the profiles

    @property
    def profile(self) -> Profile | None:
        """What findings about signals go by: the measurement where there is one, else the prediction."""
        return self.measured if self.measured is not None else self.predicted

    @property
    def source(self) -> str:
        return "measured" if self.measured is not None else "predicted"

    @cached_property
    def streams(self) -> list[Stream]:
        """Residual streams, or the chain of matrices where there are none; lists of blocks in a quick check."""
        if self.quick:
            rows = [] if self.profile is None else self.profile.sites
            return [Stream(tuple(row.name for row in found), True) for found in streams(rows).values()]
        return find_streams(self.structure, self.model, self.profile)

    def finite_rows(self, stream: Stream, column: str) -> tuple[list[SiteRow], str]:
        """The rows of a stream as measured; as predicted where the measurement overflowed."""
        rows = stream.rows(self.profile)
        if all(math.isfinite(getattr(row, column)) for row in rows) or self.predicted is None:
            return rows, self.source
        return stream.rows(self.predicted), "predicted"

    @cached_property
    def branches(self) -> list[Branch]:
        """Every residual branch with the variance of its output and of the stream that it is added to."""
        return find_branches(self.structure, self.streams, self.profile)

    def scale_free(self, stream: Stream) -> bool:
        """Whether all that reads a stream divides by its scale: then only its gradient times its scale counts. Sites of
        a stream are the ends of blocks, which the first block does not read."""
        if self.structure is None or not stream.residual:
            return False
        found = [item for item in self.structure.junctions if item.block in stream.names[1:]]
        return bool(found) and all("pre" in item.norms and item.scale_free for item in found)

    def relative_gradients(self, stream: Stream, rows: Sequence[SiteRow]) -> list[float]:
        """Gradient variance along a stream, times that of the stream where all that reads it normalizes."""
        free = self.scale_free(stream)
        return [row.grad_variance * (row.variance if free else 1.0) for row in rows]

    @property
    def attends(self) -> bool:
        """Whether there is attention, in a residual branch or not."""
        return self.structure is not None and bool(self.structure.scores or self.structure.is_transformer)

    @property
    def scores(self) -> list[SiteRow]:
        return self.scores_of(self.profile)

    def scores_of(self, profile: Profile | None) -> list[SiteRow]:
        """Rows of attention scores, with entropy and largest weight; what routers choose by is left out."""
        rows = [] if profile is None else profile.sites
        routers = frozenset() if self.structure is None else self.structure.routers
        return [row for row in rows if "entropy" in row.extras and row.name.rpartition(".scores")[0] not in routers]

    @cached_property
    def observed(self) -> Observation:
        """What one forward pass shows beyond moments; empty without weights."""
        if self.measured is None:
            return Observation()
        return observe(self.model, self.batch, None if self.evaluation is None else self.evaluation.loss)

    @cached_property
    def influence(self) -> Influence:
        """What single inputs, places and examples change; nothing without weights."""
        if self.measured is None or self.evaluation is None:
            return Influence()
        return influence(self.model, self.batch, self.observed, self.evaluation.loss)

    @cached_property
    def wiring(self) -> Wired:
        """How the pass is wired; nothing without weights, and in a quick check."""
        if self.measured is None or self.evaluation is None or self.quick:
            return Wired()
        return wiring(self.model, self.batch, self.evaluation.loss)

    @cached_property
    def gradient_ends(self) -> tuple[dict[str, str], dict[str, End]]:
        """By parameter the state of its gradient, and where it ends; nothing without weights."""
        if self.evaluation is None or self.measured is None:
            return {}, {}
        return gradient_ends(self.model, self.batch, self.evaluation.loss)

    @property
    def activity(self) -> dict[str, Activity]:
        return self.observed.activity

    @cached_property
    def readout(self) -> Parameter | None:
        """The matrix that makes the output, an embedding where it is tied."""
        if self.structure is None:
            return None
        found = [item for item in self.structure if item.role == "readout" and len(item.shape) > 1]
        tied = [item for item in self.structure if item.tied]
        return (found or tied or [None])[-1]

    @cached_property
    def logits_site(self) -> str | None:
        """The site of the module that multiplies by the readout."""
        if self.readout is None:
            return None
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        weight = parameters.get(self.readout.name)
        users = [name for name, module in self.model.named_modules() if getattr(module, "weight", None) is weight]
        users = [name for name in users if not isinstance(self.model.get_submodule(name), nn.Embedding)]
        return next((name for name in reversed(users) if name in self._rows), None)

    @cached_property
    def classes(self) -> int | None:
        """How many classes the readout tells apart."""
        if self.readout is None or self.logits_site is None or not self._ends_in_logits:
            return None
        weight = self.model.get_submodule(self.logits_site).weight
        count = int(weight.shape[0])  # type: ignore[union-attr,index]
        return count if count > 1 else None

    @property
    def _ends_in_logits(self) -> bool:
        """Whether the readout makes the model's output, and that output tells classes apart as far as one can know."""
        has_loss = self._loss_of_classes
        ids = isinstance(self.batch, Tensor) and not self.batch.is_floating_point()
        images = isinstance(self.batch, Tensor) and self.batch.dim() == 4
        names = [row.name for row in self.profile.sites] if self.profile is not None else []
        after = names[names.index(self.logits_site) + 1 :] if self.logits_site in names else ["unknown"]
        modules = dict(self.model.named_modules())
        last = all(modules.get(name) is self.model or name not in modules for name in after)
        return has_loss or ((ids or images) and last)

    @property
    def measured_loss(self) -> float | None:
        """The value of the loss, where it is the model's own or cross entropy, and was measured."""
        return self.measured.meta.get("loss_value") if self.measured is not None and self._loss_of_classes else None

    @property
    def _loss_of_classes(self) -> bool:
        """Whether what was differentiated is a cross entropy."""
        name = None if self.profile is None else self.profile.meta.get("loss")
        judged = () if self.structure is None else self.structure.judged
        return name == "cross_entropy" or (name == OWN and bool({"cross_entropy", "nll_loss"} & set(judged)))

    def row(self, name: str) -> SiteRow | None:
        """The row of a site in the profile that findings go by."""
        return self._rows.get(name) or self._rows.get(f"{name}[0]")

    @cached_property
    def _rows(self) -> dict[str, SiteRow]:
        return {} if self.profile is None else {row.name: row for row in self.profile.sites}


def is_norm_gain(row: Draw) -> bool:
    parent, _, leaf = row.name.rpartition(".")
    return leaf in ("weight", "gain", "scale") and ("Norm" in row.kind or bool(NORM.search(parent)))


def repair_plan(draws: DrawnParameters, inits: dict[str, Init]) -> Plan:
    """Everything kept as it is but the parameters that are changed."""
    rows = []
    for row in draws:
        init = inits.get(row.name, KEEP)
        rows.append(ParameterPlan(row.name, row.shape, init, why="repair" if row.name in inits else "as it is"))
    return Plan(rows, meta={"recipe": "repair"})


def effect(subject: Subject, inits: dict[str, Init]) -> float:
    """What a change does to the output: mean square of the difference over that of the output; nan where unknown."""
    twin = subject.edited(inits) if subject.evaluation is not None else None
    before, after = subject.observed.output, None if twin is None else twin.observed.output
    if before is None or after is None or before.shape != after.shape:
        return math.nan
    scale = float((before - before.mean()).square().mean())
    return float((before - after).square().mean()) / scale if scale > 0 else math.nan

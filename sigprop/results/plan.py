"""`Plan`: a prescription as data, one row per parameter, keyed by the parameter's name.

A plan says how every parameter is drawn, by what its learning rate, weight decay and epsilon are multiplied,
and which few modules multiply their signal in the forward pass. It is printed, saved and compared like any
result, and applied separately (`application.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigprop.errors import InputError, UnknownNameError, require
from sigprop.results import application, checkpoint, junctions, optimizers, schedules, suggestion
from sigprop.results.export import Export, export_plan
from sigprop.results.files import Document, written
from sigprop.results.init import KEEP, Init, is_finite
from sigprop.results.plan_display import ShownPlan

if TYPE_CHECKING:
    import torch

PLAN_SCHEMA_VERSION = 1
PLACES = ("input", "output")
FACTORS = ("multiplier", "lr", "weight_decay", "eps")


@dataclass(frozen=True)
class ParameterPlan:
    """One parameter: its draw, the factor it enters the forward pass with, and its optimizer multipliers.

    `role`: see `results.roles`.
    """

    name: str
    shape: tuple[int, ...]
    init: Init = KEEP
    multiplier: float = 1.0
    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    why: str = ""
    role: str = ""

    def __post_init__(self) -> None:
        require(all(size >= 0 for size in self.shape), "shape", self.shape, "sizes that are not negative")
        for name in FACTORS:
            require(is_finite(getattr(self, name)), name, getattr(self, name), "a finite number")
        for name in ("lr", "weight_decay", "eps"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "a number that is not negative")


@dataclass(frozen=True)
class JunctionPlan:
    """One residual junction, `skip * x + branch * f(x)`, named by the module that computes `f`.

    `folded` says that the parameter rows already carry both scales; nothing is left to apply. Otherwise hooks on
    this module and on `entry`, the module that takes `x` in, apply them, and a `learnable` branch scale of the
    given `shape` becomes a parameter. `weights` are the last parameters of `f`, entering as `shift + w`; folded, they
    carry the factor `branch / level`, `level` being the scale that the stream has gathered there (0: cannot be folded).
    `own` is the factor that the model itself gives the skip, over that of what this module puts out; `dropped` says
    that a dropout follows it, which would take the skip with it in training.
    `place="input"` scales inside a branch instead: the input `f` of this module becomes `skip * v + branch * f`, with
    `v` the output of `entry`.
    """

    name: str
    skip: float = 1.0
    branch: float = 1.0
    folded: bool = True
    entry: str = ""
    weights: tuple[str, ...] = ()
    shift: float = 0.0
    level: float = 1.0
    own: float = 1.0
    dropped: bool = False
    learnable: bool = False
    shape: tuple[int, ...] = ()
    place: str = "output"
    why: str = ""

    def __post_init__(self) -> None:
        require(self.place in PLACES, "junction place", self.place, " or ".join(PLACES))
        for name in ("skip", "branch", "shift", "level", "own"):
            require(is_finite(getattr(self, name)), f"junction {name}", getattr(self, name), "a finite number")


@dataclass(frozen=True)
class ScalePlan:
    """One module that multiplies its signal by `factor`: its `input`, its `output`, or, with
    `place="attribute:NAME"`, one of its own numbers."""

    module: str
    factor: float
    place: str = "input"
    why: str = ""

    def __post_init__(self) -> None:
        known = self.place in PLACES or self.place.startswith("attribute:")
        require(is_finite(self.factor), "scale factor", self.factor, "a finite number")
        require(known, "scale place", self.place, f"one of {', '.join(PLACES)} or attribute:NAME")


@dataclass(frozen=True)
class PlanDifference:
    """One field in which two plans differ; a side is None where that plan has no such row."""

    name: str
    field: str
    left: Any
    right: Any


@dataclass(repr=False)
class Plan(ShownPlan):
    """Rows for parameters, residual junctions and forward scales, with what produced them in `meta`."""

    parameters: list[ParameterPlan]
    junctions: list[JunctionPlan] = field(default_factory=list)
    scales: list[ScalePlan] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [row.name for row in self.parameters]
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise InputError(f"the plan has more than one row for {', '.join(twice)}; give each parameter one row")

    def __iter__(self) -> Iterator[ParameterPlan]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def __getitem__(self, name: str) -> ParameterPlan:
        for row in self.parameters:
            if row.name == name:
                return row
        raise UnknownNameError("parameter", name, [row.name for row in self.parameters])

    def check(self, model: torch.nn.Module) -> None:
        """Raise unless the rows cover every parameter of the model exactly once, with its shape."""
        application.match(self, model)

    def apply_(self, model: torch.nn.Module, generator: torch.Generator | None = None) -> torch.nn.Module:
        """Draw every parameter in place, set the forward scales, and return the model.

        Everything is checked first, and an error or an interrupt leaves the model as it was.
        """
        return application.apply_plan(self, model, generator)

    def attach_(
        self, model: torch.nn.Module, weights: str | Path | Mapping[str, torch.Tensor] | None = None
    ) -> torch.nn.Module:
        """Put the plan's hooks and changed numbers on a model with loaded weights; nothing is drawn.

        A plan without unfolded junctions and scales leaves nothing but weights, and needs no attaching. Learned scales
        are parameters that a reload by other means leaves out: `weights` (the file, its folder, or a state dict) gives
        their values, and `verify` names those that were not loaded.
        """
        names = junctions.learned_names(self.junctions)
        learned = None if weights is None else checkpoint.learned_values(weights, names)
        return application.attach_plan(self, model, learned)

    def verify(self, model: torch.nn.Module, drawn: bool = False) -> list[str]:
        """What the model lacks of this plan, one line each: empty when it carries it.

        `drawn=True` also compares the sizes of all parameters with the plan's draws, before training.
        """
        return application.verify_plan(self, model, drawn)

    def save_weights(self, model: torch.nn.Module, path: str | Path) -> None:
        """Write the model's weights as safetensors, with this plan's digest in the metadata."""
        checkpoint.save_weights(self, model, path)

    def load_weights(self, model: torch.nn.Module, path: str | Path) -> torch.nn.Module:
        """Read what `save_weights` wrote with this plan, and attach it; another plan's file is refused."""
        return checkpoint.load_weights(self, model, path)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name what the plan does: its rows without the words."""
        rows = self.to_dict()
        bare = [[{**row, "why": ""} for row in rows[key]] for key in ("parameters", "junctions", "scales")]
        return hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()[:16]

    def fold_for_inference(self, model: torch.nn.Module) -> torch.nn.Module:
        """Put every junction's scale, as learned by now, into the weights and take the hooks off."""
        return application.fold_for_inference(self, model)

    def param_groups(
        self,
        model: torch.nn.Module,
        lr: float | Mapping[str, float],
        weight_decay: float = 0.0,
        eps: float | tuple[float | None, float] | None = None,
        roles: Sequence[str] | None = None,
        optimizer: str | None = None,
        decay_vectors: bool = False,
        merge: float = 0.0,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Parameter groups for a torch optimizer, one per distinct set of multipliers.

        `lr`: one base rate, or several by role, width class or optimizer: `{"embedding": 0.01, "default": 0.002}`.
        `eps` defaults to torch's 1e-8 where the plan multiplies it; of Adafactor's pair, the second is multiplied.
        `optimizer` keeps the rows that this one trains (`muon`, and `adamw` for the rest), `roles` those of some roles
        (`hidden` stands for all matrices inside, `vector` for gains and biases). Gains and biases decay only with
        `decay_vectors`. `merge` puts settings that differ by less than this share into one group (0.1: 10 percent),
        where many small groups cost time. `options` (betas, momentum, ...) go to every group unchanged. Each group also
        carries `param_names`.
        """
        return optimizers.param_groups(
            self, model, lr, weight_decay, eps, roles, optimizer, decay_vectors, merge, options
        )

    def optimizers(
        self,
        model: torch.nn.Module,
        lr: float | Mapping[str, float] | None = None,
        weight_decay: float | None = None,
        eps: float | tuple[float | None, float] | None = None,
        **options: Any,
    ) -> list[torch.optim.Optimizer]:
        """The torch optimizers that the plan was made for, on its groups: one, or Muon (MuonH, AdamH, NorMuon) for the
        matrices inside and AdamW for the rest. Without `lr`, at `suggested_lr`; without `weight_decay`, at the plan's
        (`tokens=`, `batch_tokens=`), else none."""
        return optimizers.make_optimizers(self, model, lr, weight_decay, eps, **options)

    def suggested_lr(self, targets: int | None = None) -> suggestion.SuggestedRate:
        """A learning rate to start with, for a batch of so many targets (tokens with a label, images): `.lr`.

        It comes from the plan alone, also from one that was read from a file, and carries how far optima lay from it;
        refused where nothing is known of them. `.advise(old)` says what to do with a rate that was used before.
        """
        return suggestion.suggested_lr(self, targets)

    def scheduler(
        self, optimizer: torch.optim.Optimizer, steps: int, warmup: float = 0.1, final: float = 0.1
    ) -> torch.optim.lr_scheduler.LambdaLR:
        """Warm-up and cosine down to `final` of each group's own rate, so that the plan's factors stay."""
        return schedules.scheduler(optimizer, steps, warmup, final)

    def export(self, target: str, path: str | Path | None = None) -> Export:
        """This plan as code for `python`, `torchtitan`, `megatron`, `nanochat` or `optax`, also written to `path`.

        `.not_expressed` has every row that the target has no words for."""
        return export_plan(self, target, path)

    def diff(self, other: Plan) -> list[PlanDifference]:
        """Every field in which this plan (left) differs from the other (right)."""
        found: list[PlanDifference] = []
        for left, right in zip(self._keyed_rows(), other._keyed_rows(), strict=True):
            for name in dict.fromkeys([*left, *right]):
                found += _row_differences(name, left.get(name), right.get(name))
        return found

    def _keyed_rows(self) -> list[dict[str, Any]]:
        tables = ({row.name: row for row in self.parameters}, {row.name: row for row in self.junctions})
        return [*tables, {f"{row.module} {row.place}": row for row in self.scales}]

    def to_dict(self) -> dict[str, Any]:
        rows = {key: [asdict(row) for row in getattr(self, key)] for key in ("parameters", "junctions", "scales")}
        return {"schema_version": PLAN_SCHEMA_VERSION, "meta": self.meta, **rows}

    def to_json(self, path: str | Path | None = None) -> str:
        """JSON text; also written to `path` when given, whole or not at all."""
        return written(self.to_dict(), path)

    @classmethod
    def from_json(cls, source: str | Path) -> Plan:
        """Read what `to_json` wrote, from a path or from the text itself."""
        document = Document(source, "plan", PLAN_SCHEMA_VERSION)
        return cls(
            document.rows("parameters", ParameterPlan),
            document.rows("junctions", JunctionPlan),
            document.rows("scales", ScalePlan),
            document.mapping("meta"),
        )


def _row_differences(name: str, left: Any, right: Any) -> list[PlanDifference]:
    if left is None or right is None:
        return [PlanDifference(name, "row", left, right)]
    return [
        PlanDifference(name, item.name, getattr(left, item.name), getattr(right, item.name))
        for item in fields(left)
        if item.name != "why" and getattr(left, item.name) != getattr(right, item.name)
    ]

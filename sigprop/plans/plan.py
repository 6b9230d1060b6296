"""`Plan`: a prescription as data, one row per parameter, keyed by the parameter's name.

A plan says how every parameter is initialized, by what its learning rate, weight decay and epsilon are multiplied,
and which few modules multiply their signal in the forward pass. It is printed, saved and compared like any
result, and applied separately (`application.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sigprop.errors import InputError
from sigprop.grid import Grid
from sigprop.plans import application, hooks, optimizers, suggestion
from sigprop.plans.export import Export, export_plan
from sigprop.plans.rows import JunctionPlan, ParameterPlan, PlanDifference, ScalePlan
from sigprop.results.files import Result, named
from sigprop.sites import modules_of

if TYPE_CHECKING:
    import torch

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
MULTIPLIERS = {"lr": "lr", "decay": "weight_decay", "eps": "eps"}
FOLLOWING = ("decay", "eps")
"""Multipliers that follow from the learning rate's: in the table only when all is asked for."""
MUON_STEPS = {
    "none": "1",
    "shape": "sqrt(max(1, rows / columns))",
    "unit": "sqrt(rows / columns)",
    "rms": "0.2 sqrt(max(rows, columns))",
}


@dataclass(repr=False)
class Plan(Result):
    """Rows for parameters, residual junctions and forward scales, with what produced them in `meta`."""

    DOCUMENT = ("plan", 2)

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
        return named(self.parameters, name, "parameter")

    def check(self, model: torch.nn.Module) -> None:
        """Raise unless the rows cover every parameter of the model exactly once, with its shape."""
        application.match(self, model)

    def apply_(self, model: torch.nn.Module, generator: torch.Generator | None = None) -> torch.nn.Module:
        """Initialize every parameter in place, set the forward scales, and return the model.

        Everything is checked first, and an error or an interrupt leaves the model as it was.
        """
        return application.apply_plan(self, model, generator)

    def attach_(
        self, model: torch.nn.Module, weights: str | Path | Mapping[str, torch.Tensor] | None = None
    ) -> torch.nn.Module:
        """Put the plan's hooks and changed numbers on a model with loaded weights; nothing is initialized.

        A plan without unfolded junctions and scales leaves nothing but weights, and needs no attaching. Learned scales
        are parameters that a reload by other means leaves out: `weights` (the file, its folder, or a state dict) gives
        their values, and `verify` names those that were not loaded.
        """
        names = hooks.learned_names(self.junctions)
        learned = None if weights is None else application.learned_values(weights, names)
        return application.attach_plan(self, model, learned)

    def verify(self, model: torch.nn.Module, sizes: bool = False) -> list[str]:
        """What the model lacks of this plan, one line each: empty when it carries it.

        `sizes=True` also compares the sizes of all parameters with the plan, before training.
        """
        return application.verify_plan(self, model, sizes)

    def save_weights(self, model: torch.nn.Module, path: str | Path) -> None:
        """Write the model's weights as safetensors, with this plan's digest in the metadata."""
        application.save_weights(self, model, path)

    def load_weights(self, model: torch.nn.Module, path: str | Path) -> torch.nn.Module:
        """Read what `save_weights` wrote with this plan, and attach it; another plan's file is refused."""
        return application.load_weights(self, model, path)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name what the plan does: its rows without the words."""
        rows = self.to_dict()
        bare = [[{**row, "why": ""} for row in rows[key]] for key in ("parameters", "junctions", "scales")]
        return hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()[:16]

    def fold_for_inference(self, model: torch.nn.Module) -> torch.nn.Module:
        """Put every junction's scale, as learned by now, into the weights and take the hooks off; rows stay as they
        are."""
        hooks.fold_for_inference(self.junctions, modules_of(model))
        return model

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

    def suggested_lr(self, targets: int | None = None) -> suggestion.SuggestedLr:
        """A learning rate to start with, for a batch of so many targets (tokens with a label, images): `.lr`.

        It comes from the plan alone, also from one that was read from a file, and carries how far optima lay from it;
        refused where nothing is known of them. `.advise(old)` says what to do with a rate that was used before.
        """
        return suggestion.suggested_lr(self, targets)

    def scheduler(
        self, optimizer: torch.optim.Optimizer, steps: int, warmup: float = 0.1, final: float = 0.1
    ) -> torch.optim.lr_scheduler.LambdaLR:
        """Warm-up and cosine down to `final` of each group's own rate, so that the plan's factors stay."""
        return optimizers.scheduler(optimizer, steps, warmup, final)

    def export(self, target: str, path: str | Path | None = None) -> Export:
        """This plan as code for `python`, `torchtitan`, `megatron`, `nanochat` or `optax`, also written to `path`.

        `.not_expressed` has every row that the target has no words for."""
        return export_plan(self, target, path)

    def table(self, all: bool = False) -> Grid:
        """What changes, rows that are identical up to numbers as one with first and last values; `all` shows every
        row."""
        changed = [row for row in self.parameters if all or _changes(row)]
        used = [key for key, name in MULTIPLIERS.items() if any(getattr(row, name) != 1.0 for row in changed)]
        shown = [key for key in used if all or key not in FOLLOWING or "lr" not in used]
        rows = [_parameter(row, shown) for row in changed]
        rows += [_junction(row, len(shown)) for row in self.junctions if all or not row.folded or row.why]
        scales = [f"{row.place} x {row.factor:.3g}" for row in self.scales]
        rows += [
            [f"module {row.module}", text, *[""] * len(shown), row.why]
            for row, text in zip(self.scales, scales, strict=True)
        ]
        cells = rows if all else _collapsed(self._unprefixed(rows))
        why = len(shown) + 2
        kept = len(self.parameters) - len(changed)
        notes = [f"{kept} more parameters keep what they have."] if kept else []
        notes += ["Weight decay and epsilon are multiplied too: table(all=True)."] if shown != used else []
        kind, _, scale = str(self.meta.get("optimizer", "")).partition(":")
        if kind == "muon":
            step = MUON_STEPS.get(scale, MUON_STEPS["shape"])
            notes += [f"Muon's step of a matrix is its orthogonal update times {step}; AdamW trains the rest."]
        loss = self.meta.get("initial_loss")
        notes += [f"The loss starts at {loss:.3g}, predicted for cross entropy."] if loss is not None else []
        run = self.meta.get("run")
        if run:
            told = ", ".join(f"{key} {value:.3g}" for key, value in run.items() if isinstance(value, (int, float)))
            notes += [f"A run of this length: {told}; betas {tuple(run['betas'])}."]
        return Grid(["parameter", "init", *shown, "why"], cells, notes=notes, names=(0,), wrapped=(1, why))

    def _unprefixed(self, rows: list[list[str]]) -> list[list[str]]:
        """Reasons without the recipe's name before them, which the summary has said."""
        prefix = f"{self.meta.get('recipe', '')}: "
        return [[*row[:-1], row[-1].removeprefix(prefix)] for row in rows]

    def explain(self) -> Grid:
        """The plan as a table: `print(plan.explain())`."""
        return self.table()

    def summary(self) -> str:
        """What the plan does, in a sentence."""
        changed = sum(row.init.kind != "keep" or row.init.value != 1.0 for row in self.parameters)
        rates = sum(row.lr != 1.0 for row in self.parameters)
        scaled = sum(not row.folded for row in self.junctions)
        parts = [f"initializes {changed} of {len(self.parameters)} parameters"]
        parts += [f"multiplies the learning rate of {rates}"] if rates else []
        parts += [f"scales {scaled} residual junctions in the forward pass"] if scaled else []
        parts += [f"scales {len(self.scales)} modules"] if self.scales else []
        return f"{self.meta.get('recipe', 'plan')}: {', '.join(parts)}"

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per parameter."""
        return [
            {"name": row.name, "shape": row.shape, "role": row.role, "init": str(row.init)}
            | {name: getattr(row, name) for name in MULTIPLIERS.values()}
            | {"why": row.why}
            for row in self.parameters
        ]

    def plot(self, path: Any = None) -> Any:
        """Standard deviation at initialization and learning-rate multiplier of every parameter, by role."""
        from sigprop.results.figures import plan_figure

        return plan_figure(self, path)

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


def _row_differences(name: str, left: Any, right: Any) -> list[PlanDifference]:
    if left is None or right is None:
        return [PlanDifference(name, "row", left, right)]
    return [
        PlanDifference(name, item.name, getattr(left, item.name), getattr(right, item.name))
        for item in fields(left)
        if item.name != "why" and getattr(left, item.name) != getattr(right, item.name)
    ]


def _changes(row: ParameterPlan) -> bool:
    kept = row.init.kind == "keep" and row.init.value == 1.0
    return not kept or any(getattr(row, name) != 1.0 for name in MULTIPLIERS.values())


def _parameter(row: ParameterPlan, shown: list[str]) -> list[str]:
    return [row.name, str(row.init), *(f"{getattr(row, MULTIPLIERS[key]):.3g}" for key in shown), row.why]


def _junction(row: JunctionPlan, columns: int) -> list[str]:
    where = "" if row.folded else ", as hooks"
    scales = f"{row.skip:.3g} x + {row.branch:.3g} f(x){where}"
    return [f"junction {row.name}", scales, *[""] * columns, row.why]


def _collapsed(rows: list[list[str]]) -> list[list[str]]:
    """Rows that say the same up to numbers, as one: their common name, and their first and last values."""
    groups: dict[Any, list[list[str]]] = {}
    for cells in rows:
        kind = cells[0].startswith(("junction ", "module "))
        groups.setdefault((kind, *(NUMBER.sub("*", cell) for cell in cells[1:])), []).append(cells)
    found = []
    for (*_, why), members in groups.items():
        if len(members) == 1:
            found.append(members[0])
            continue
        values = [_span(column) for column in list(zip(*members, strict=True))[1:-1]]
        told = members[0][-1] if len({cells[-1] for cells in members}) == 1 else why
        found.append([f"{_common([cells[0] for cells in members])} ({len(members)})", *values, told])
    return found


def _common(names: list[str]) -> str:
    """`blocks.*.attention.*.weight` for names that share those parts; `*.weight` where only the end is shared."""
    kind, space, _ = names[0].rpartition(" ")
    split = [name.removeprefix(kind + space).split(".") for name in names]
    return kind + space + _shared(split)


def _shared(split: list[list[str]]) -> str:
    if len({len(parts) for parts in split}) == 1:
        return ".".join(parts[0] if len(set(parts)) == 1 else "*" for parts in zip(*split, strict=True))
    return f"*.{split[0][-1]}" if len({parts[-1] for parts in split}) == 1 else "*"


def _span(values: Sequence[str]) -> str:
    """The value, or the first and the last of them, a shared first word said once."""
    if len(set(values)) == 1:
        return values[0]
    first, last = values[0], values[-1]
    word = first.split(" ")[0]
    return f"{first} … {last.removeprefix(word + ' ')}"

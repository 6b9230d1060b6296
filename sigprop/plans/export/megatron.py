"""Megatron: one std for all matrices, one for those that end a branch, one for embeddings; every other row is named."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sigprop.plans.export.targets import TARGETS, folded, forward_rows, settings, spelled
from sigprop.plans.rows import ParameterPlan

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan

INSIDE, LAST = ("query_key", "value", "hidden", "router"), ("output",)
TABLES, READOUT = ("embedding", "positional"), ("readout",)
DECOUPLED = ("embedding", "readout")
"""Roles that `--decoupled-lr` trains: Megatron marks the words' table and the readout, not the table of positions."""


@TARGETS.register("megatron")
def written(plan: Plan) -> tuple[str, list[str]]:
    """Groups by role; what a group has most is written, what differs from it is a row not expressed."""
    missing = forward_rows(plan)
    stds = {
        key: _common(plan, roles)
        for key, roles in (("inside", INSIDE), ("last", LAST), ("tables", TABLES), ("readout", READOUT))
    }
    inside = stds["inside"] or 0.02
    last, tables = stds["last"] or inside, stds["tables"] or inside
    wanted = {
        **dict.fromkeys(INSIDE, inside),
        **dict.fromkeys(LAST, last),
        **dict.fromkeys(TABLES, tables),
        **dict.fromkeys(READOUT, inside),
    }
    decoupled = _rate(plan, DECOUPLED) / _rate(plan, (*INSIDE, *LAST))
    for name, (_, row) in folded(plan, lambda row: (spelled(row.init), settings(row))).items():
        missing += [f"{name}: {told}" for told in _beyond(row, wanted, decoupled, plan)]
    optimizer = str(plan.meta.get("optimizer", "adamw")).partition(":")[0]
    if optimizer not in ("adamw", "adam", "sgd"):
        missing.append(f"optimizer {optimizer}: Megatron has adam and sgd")
    lines = [
        "from functools import partial",
        "",
        "from torch import nn",
        "",
        "# pretrain_gpt.py arguments; multiply the base learning rate by LR",
        f"LR = {_rate(plan, (*INSIDE, *LAST))!r}",
        "ARGUMENTS = {",
        f'    "--init-method-std": {inside!r},  # matrices inside, and the readout',
        f'    "--embedding-init-method-std": {tables!r},',
        "}",
        f"DECOUPLED_LR = {decoupled!r}  # --decoupled-lr is this times --lr: embedding and readout",
        "",
        "",
        "def transformer_config(**rest):",
        '    """`TransformerConfig` with the three initializers; `rest` are its other fields."""',
        "    from megatron.core.transformer import TransformerConfig",
        "",
        "    return TransformerConfig(",
        f"        init_method=partial(nn.init.normal_, mean=0.0, std={inside!r}),",
        f"        output_layer_init_method=partial(nn.init.normal_, mean=0.0, std={last!r}),  # ends of branches",
        f"        embedding_init_method=partial(nn.init.normal_, mean=0.0, std={tables!r}),",
        "        **rest,",
        "    )",
        "",
    ]
    return "\n".join(lines), missing


def _common(plan: Plan, roles: tuple[str, ...]) -> float:
    """The std that most entries of these roles have."""
    count: Counter[float] = Counter()
    for row in plan.parameters:
        if row.role in roles and row.init.kind in ("normal", "truncated", "uniform", "orthogonal"):
            count[row.init.std] += 1
    return count.most_common(1)[0][0] if count else 0.0


def _rate(plan: Plan, roles: tuple[str, ...]) -> float:
    count = Counter(row.lr for row in plan.parameters if row.role in roles)
    return count.most_common(1)[0][0] if count else 1.0


def _beyond(row: ParameterPlan, wanted: dict[str, float], decoupled: float, plan: Plan) -> list[str]:
    told = []
    own = {"norm gain": ("constant", 1.0), "bias": ("constant", 0.0)}.get(row.role)
    if own is not None:
        if spelled(row.init) not in (own, ("keep", 1.0)):
            told.append(f"initialized as {row.init}, Megatron has {own[1]:g}")
    elif spelled(row.init) not in (("normal", wanted.get(row.role)), ("keep", 1.0)):
        has = f"normal {wanted[row.role]:.4g}" if row.role in wanted else "no setting for it"
        told.append(f"initialized as {row.init}, Megatron has {has}")
    base = _rate(plan, (*INSIDE, *LAST))
    given = base * (decoupled if row.role in DECOUPLED else 1.0)
    if abs(row.lr / given - 1.0) > 1e-9 if given else row.lr:
        told.append(f"learning rate times {row.lr:.6g}, Megatron has {given:.6g}")
    for name in ("weight_decay", "eps"):
        if getattr(row, name) != 1.0:
            told.append(f"{name} times {getattr(row, name):.6g}, Megatron has one for all")
    return told

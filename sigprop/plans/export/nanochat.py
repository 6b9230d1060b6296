"""nanochat: an `init_weights` for its GPT class, and factors for the rates of `setup_optimizers`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sigprop.plans.export.targets import TARGETS, folded, forward_rows, init_rows, settings
from sigprop.plans.export.torchtitan import HELPERS, call_of

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan

RATES = {
    "embedding_lr": ("embedding", "positional"),
    "unembedding_lr": ("readout",),
    "matrix_lr": ("query_key", "value", "hidden", "output"),
    "scalar_lr": ("gain", "norm gain", "scale", "bias", "vector"),
}
CODE = '''

@torch.no_grad()
def init_weights(self):
    """In place of `GPT.init_weights`; call it on the model after `to_empty`."""
    for name, parameter in self.named_parameters():
        name = name.replace("_orig_mod.", "")
        starred = ".".join("*" if part.isdigit() else part for part in name.split("."))
        (INIT.get(name) or INIT[starred])(parameter)
    head_dim = self.config.n_embd // self.config.n_head
    self.cos, self.sin = self._precompute_rotary_embeddings(self.rotary_seq_len, head_dim)
'''


@TARGETS.register("nanochat")
def written(plan: Plan) -> tuple[str, list[str]]:
    missing, optimizer = forward_rows(plan), str(plan.meta.get("optimizer", "adamw"))
    if optimizer not in ("muon", "muon:shape"):
        missing.append(
            f"optimizer {optimizer}: nanochat trains matrices with Muon, these are the factors of {optimizer}"
        )
    lines = [HELPERS, *init_rows(plan, call_of)]
    lines += ["# multiply the arguments of `setup_optimizers` by these", "RATES = {"]
    for argument, roles in RATES.items():
        rows = [row for row in plan.parameters if row.role in roles]
        if not rows:
            continue
        common = Counter(row.lr for row in rows).most_common(1)[0][0]
        lines.append(f"    {argument!r}: {common!r},  # {len(rows)} parameters")
        for name, (value, row) in folded(plan, settings).items():
            if row.role in roles and value != (common, 1.0, 1.0):
                missing.append(
                    f"{name}: factors {value} of rate, decay and epsilon; {argument} has {common:.6g} for all"
                )
    known = {role for roles in RATES.values() for role in roles}
    missing += [
        f"{name}: no rate for the role {row.role!r}"
        for name, (value, row) in folded(plan, settings).items()
        if row.role not in known
    ]
    return "\n".join([*lines, "}"]) + CODE, missing

"""Parameters that get no gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.results.report import Datum, Finding, Prescription


@check("no_gradient", "gradient", "parameters that the loss does not reach")
def no_gradient(subject: Subject) -> Iterator[Finding]:
    """None at all: not used, or detached. Exactly zero: behind a matrix of zeros, or behind dead units."""
    profile = subject.measured
    if profile is None:
        return
    trainable = {name for name, value in subject.model.named_parameters() if value.requires_grad}
    rows = [row for row in profile.parameters if row.name in trainable]
    if not any(row.grad_second_moment > 0 for row in rows):
        return
    unused = [row.name for row in rows if math.isnan(row.grad_second_moment)]
    dead = [row.name for row in rows if row.grad_second_moment == 0 and len(row.shape) > 1]
    zeros = [row.name for row in subject.draws if row.is_matrix and row.std == 0 and row.mean == 0]
    zeros += [row.name for row in subject.draws if row.std == 0 and row.mean == 0 and _is_scale(row.name)]
    zeros += _factors_of_zero(subject, dead)
    roles = {} if subject.structure is None else {item.name: item for item in subject.structure}
    cut = [name for name in unused if name in roles and roles[name].role != "unused" and not roles[name].expert]
    if unused:
        severe = bool(cut) and any(roles[name].junction is not None for name in cut)
        yield Finding(
            "no_gradient",
            "gradient",
            "warning" if severe else "note",
            f"{len(unused)} of {len(rows)} parameters get no gradient, {(cut if severe else unused)[0]} first",
            "They take part in the forward pass and get no gradient: something detaches what they make." if severe else
            "They are not used on this batch (a pooler, an unused head, experts that no token chose).",
            parameters=tuple(unused),
            evidence=(Datum("parameters without a gradient", len(unused), "measured", expected=0),),
            prescription=Prescription("look for a `detach`, `no_grad` or `.data` behind them" if severe else
                                      "freeze them, or leave them out"),
        )  # fmt: skip
    if dead:
        yield Finding(
            "no_gradient",
            "gradient",
            "note" if zeros else "problem",
            f"{len(dead)} matrices have a gradient of exactly zero, {dead[0]} first",
            f"They lie behind {zeros[0]}, which is zero: they start to learn once it has moved, as schemes with "
            "zero-initialized branches intend." if zeros else
            "Everything that they make is cut off: dead units, a factor of exactly zero behind them, or weights that "
            "are normalized over a single choice (a router that takes one expert).",
            parameters=tuple(dead),
            evidence=(Datum("matrices with zero gradient", len(dead), "measured"),),
            prescription=None if zeros else Prescription("find the zero factor between them and the loss"),
        )  # fmt: skip


def _factors_of_zero(subject: Subject, dead: list[str]) -> list[str]:
    """Parameters of zeros that do get a gradient, in a module that holds one that gets none; biases are no factors."""
    assert subject.measured is not None
    learns = {row.name for row in subject.measured.parameters if row.grad_second_moment > 0}
    zeros = [row for row in subject.draws if row.std == 0 and row.mean == 0 and row.name in learns]
    owners = {row.name: row.name.rpartition(".")[0] for row in zeros if "bias" not in row.name.rpartition(".")[2]}
    return [name for name, owner in owners.items() if any(item.startswith(owner and owner + ".") for item in dead)]


def _is_scale(name: str) -> bool:
    return any(word in name.lower() for word in ("scale", "gamma", "alpha", "gate", "lambda", "norm"))

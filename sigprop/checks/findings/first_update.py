"""A group whose first update would replace it, or do nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import ParameterRow
from sigprop.results.report import Datum, Finding, Prescription

SIGN_LIKE = ("adam", "adamw", "lion", "nadam", "radam", "adamax")
KNOWN = (*SIGN_LIKE, "sgd", "momentum")


@check("first_update", "gradient", "the first update dominates the weight, or is rounded away")
def first_update(subject: Subject) -> Iterator[Finding]:
    """Adam and Lion move every entry by the learning rate; SGD by the learning rate times the gradient."""
    profile = subject.profile
    if subject.optimizer is None or profile is None:
        return
    multipliers = {} if subject.plan is None else {row.name: row.lr for row in subject.plan.parameters}
    found: list[tuple[float, ParameterRow]] = []
    for row in profile.parameters:
        size = row.extras.get("second_moment", row.init_std**2) ** 0.5
        step = _step(subject, row) * multipliers.get(row.name, 1.0)
        if len(row.shape) > 1 and size > 0 and math.isfinite(step) and step > 0:
            found.append((step / size, row))
    large = [item for item in found if item[0] > limit("update_ratio")]
    small = [item for item in found if item[0] < limit("update_nothing")]
    for items, title, cause, cure in (
        (
            large,
            "would be replaced by its first update",
            "The step of this optimizer does not know the scale of the weight; it is as large as the weight itself.",
            "lower the learning rate of this group",
        ),
        (
            small,
            "would not move at its first update",
            "The step is below what float32 can add to the weight.",
            "raise the learning rate of this group, or use an optimizer that divides by the gradient's size",
        ),
    ):
        if items:
            share, row = max(items, key=lambda item: abs(math.log(item[0])))
            yield say(
                "warning",
                f"{row.name} {title}: {share:.2g} of it with {subject.optimizer} at {subject.lr:g}",
                cause,
                "effective, eqs. 1.99 to 1.116",
                parameters=tuple(item.name for _, item in items),
                evidence=(Datum("update over weight, root mean square", share, subject.source),),
                prescription=Prescription(f"{cure} by {_factor(share):.2g}"),
            )


def _step(subject: Subject, row: ParameterRow) -> float:
    if str(subject.optimizer).lower() in SIGN_LIKE:
        return subject.lr if row.grad_second_moment > 0 else math.nan
    return subject.lr * row.grad_second_moment**0.5


def _factor(share: float) -> float:
    """What brings a large update down to a tenth of the weight, and a small one up to the last digit."""
    return 10.0 * share if share > 1 else limit("update_nothing") / share

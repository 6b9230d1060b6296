"""`Sample`: what one sampled step has shown, as plain numbers.

Rows are keyed by the name of the site or parameter and hold what could be had there:

| sites | |
|---|---|
| `mean`, `variance`, `token_correlation`, `grad_variance`, `grad_token_correlation` | as in a `Profile` |
| `branch_ratio` | root mean square of the branch over that of the skip, at residual junctions `NAME.add` |
| `entropy`, `uniform_entropy`, `largest_weight`, `largest_score` | attention, at `NAME.scores` |
| `fp16_underflow`, `fp16_overflow`, `fp16_headroom` (`bf16_`, `grad_`) | what the format in use loses |

| parameters | |
|---|---|
| `second_moment`, `grad_second_moment` | per entry, before the step; the gradient as the optimizer gets it |
| `update_ratio` | root mean square of the step over that of the parameter |
| `unmoved` | share of entries that the step left as they were |
| `against` | cosine between the step and the negative of the parameter: 1 when it only shrinks |
| `lr`, `weight_decay`, `eps`, `denominator` | of its group; the root mean square of Adam's denominator |
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

Rows = dict[str, dict[str, float]]
DIGITS = 7


@dataclass
class Sample:
    """One sampled step; `bad` names the first place that was not finite: (`forward` | `backward` | ..., name)."""

    step: int
    loss: float = math.nan
    sites: Rows = field(default_factory=dict)
    parameters: Rows = field(default_factory=dict)
    groups: Rows = field(default_factory=dict)
    run: dict[str, float] = field(default_factory=dict)
    bad: tuple[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON data: rounded numbers; what is missing is left out, infinities are words."""
        return {key: _plain(value) for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Sample:
        known = {key: _number(value) for key, value in data.items() if key in cls.__dataclass_fields__}
        known["bad"] = tuple(known["bad"]) if known.get("bad") else None
        return cls(**known)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    return float(value) if value in ("nan", "inf", "-inf") else value

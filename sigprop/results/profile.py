"""`Profile`: the moments of a network, one row per site and one per parameter.

`predict` and `measure` return the same type with the same site names, so that a prediction and a
measurement join on the name. The columns mean the same for both:

- `mean`: over all entries of the tensor;
- `variance`: about that mean;
- `token_correlation`: the cosine between the channel vectors of two different tokens of one sequence,
  about that mean, averaged over pairs (padding left out), then over sequences;
- `grad_variance`: the mean square of the gradient of the (mean) loss with respect to the tensor;
- `grad_token_correlation`: likewise for the gradient, about zero.

Over several initializations a column is the average; `errors` holds its standard error and `medians` its
median, under the column's name. A value that does not exist (one token, no gradient) is `nan`.

`source` says in one word where a row's numbers come from: `theory`, `confirmed` (theory, which real initializations
agree with), `simulated` (the real model at some initializations) or `measured`; `Profile.provenance` says it of all.
A predicted row's `status` says how far it can be trusted, and `reason` why. Where the real model was run at fresh
initializations, `verification` has for each column what was `predicted`, what was `simulated`, its `standard_error`,
and `z`, the difference in standard errors. The status is then `verified`; or `disputed`, and the column is the
simulated one. `stated_errors` has for variance and gradient how far, relatively, the truth may be (see `stated_errors`
of this room); a number without one is a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sigprop.errors import UnknownNameError
from sigprop.results.comparison import Comparison, compare_profiles
from sigprop.results.files import Document, written
from sigprop.results.profile_display import ShownProfile

SCHEMA_VERSION = 1
NAN = math.nan


@dataclass
class SiteRow:
    """Moments of one tensor of the network and of the gradient with respect to it."""

    name: str
    depth: int
    mean: float = NAN
    variance: float = NAN
    token_correlation: float = NAN
    grad_variance: float = NAN
    grad_token_correlation: float = NAN
    status: str = "measured"
    reason: str = ""
    errors: dict[str, float] = field(default_factory=dict)
    medians: dict[str, float] = field(default_factory=dict)
    extras: dict[str, float] = field(default_factory=dict)
    verification: dict[str, dict[str, float]] = field(default_factory=dict)
    stated_errors: dict[str, float] = field(default_factory=dict)
    source: str = ""

    COLUMNS = ("mean", "variance", "token_correlation", "grad_variance", "grad_token_correlation")


@dataclass
class ParameterRow:
    """Initialization of one parameter and the second moment of its gradient, per entry."""

    name: str
    shape: tuple[int, ...]
    role: str = ""
    init_std: float = NAN
    grad_second_moment: float = NAN
    status: str = "measured"
    errors: dict[str, float] = field(default_factory=dict)
    medians: dict[str, float] = field(default_factory=dict)
    extras: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    verification: dict[str, dict[str, float]] = field(default_factory=dict)
    stated_errors: dict[str, float] = field(default_factory=dict)
    source: str = ""

    COLUMNS = ("init_std", "grad_second_moment")


@dataclass(repr=False)
class Profile(ShownProfile):
    """Rows of sites and parameters, with what produced them in `meta`."""

    sites: list[SiteRow]
    parameters: list[ParameterRow] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in (*self.sites, *self.parameters):
            row.source = row.source or ("measured" if row.status == "measured" else "theory")

    def __iter__(self) -> Iterator[SiteRow]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, name: str) -> SiteRow:
        for row in self.sites:
            if row.name == name:
                return row
        raise UnknownNameError("site", name, [row.name for row in self.sites])

    def parameter(self, name: str) -> ParameterRow:
        for row in self.parameters:
            if row.name == name:
                return row
        raise UnknownNameError("parameter", name, [row.name for row in self.parameters])

    def column(self, name: str) -> list[float]:
        """One column over all sites, in order."""
        return [getattr(row, name) for row in self.sites]

    def select(self, *parts: str) -> Profile:
        """The sites whose name ends with one of the given parts; parameters are kept."""
        kept = [row for row in self.sites if row.name.endswith(parts)]
        return Profile(kept, self.parameters, self.meta)

    def compare(self, other: Profile) -> Comparison:
        """Relative errors of this profile against another, joined by name, with standard errors."""
        return compare_profiles(self, other)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "provenance": self.provenance,
            "meta": self.meta,
            "sites": [asdict(row) for row in self.sites],
            "parameters": [asdict(row) for row in self.parameters],
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """Strict JSON text (a missing number is null); also written to `path` when given."""
        return written(self.to_dict(), path)

    @classmethod
    def from_json(cls, source: str | Path) -> Profile:
        """Read what `to_json` wrote, from a path or from the text itself."""
        document = Document(source, "profile", SCHEMA_VERSION)
        sites, parameters = document.rows("sites", SiteRow), document.rows("parameters", ParameterRow)
        return cls(sites, parameters, document.mapping("meta"))

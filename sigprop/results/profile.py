"""`Profile`: the moments of a network, one row per site and one per parameter.

`predict` and `measure` return the same type with the same site names, so that a prediction and a measurement join on
the name; docs/do/measure.md says what the columns mean, the same for both. Over several initializations a column is the
average; `errors` holds its standard error and `medians` its median, under the column's name. A value that does not
exist (one token, no gradient) is `nan`.

`source` says in one word where a row's numbers come from: `theory`, `confirmed` (theory, which real initializations
agree with), `simulated` (the real model at some initializations) or `measured`; `Profile.provenance` says it of all.
A predicted row's `status` says how far it can be trusted, and `reason` why. Where the real model was run at fresh
initializations, `verification` has for each column what was `predicted`, what was `simulated`, its `standard_error`,
and `z`, the difference in standard errors. The status is then `verified`; or `disputed`, and the column is the
simulated one. `stated_errors` has for variance and gradient how far, relatively, the truth may be (see
`stated_errors.py`); a number without one is a guess.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sigprop.grid import Grid, clean, factor, number, thinned
from sigprop.results.comparison import Comparison, compare_profiles
from sigprop.results.files import Result, named

NAN = math.nan
MOST = 14
"""Rows of a table without `all`."""
OTHERS = {"simulated": "simulated instead", "theory": "by theory alone"}


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
class Profile(Result):
    """Rows of sites and parameters, with what produced them in `meta`."""

    DOCUMENT = ("profile", 1)

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
        return named(self.sites, name, "site")

    def parameter(self, name: str) -> ParameterRow:
        return named(self.parameters, name, "parameter")

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

    def table(self, all: bool = False) -> Grid:
        """One row per block and its ratio to the first (gradients: to the last); `all` shows every site."""
        found = {} if all else streams(self.sites)
        rows = [(row, items) for items in found.values() for row in thinned(items, MOST)]
        rows = rows or [(row, []) for row in (self.sites if all else thinned(self.sites, 2 * MOST))]
        measured = self._source == "measured"
        ends = ["error"] if measured else ["source", "within"]
        headings = ["site", "variance", "/first", "corr", "gradient", "/last", *ends]
        cells = [
            [row.name, *_moments(row, items), *([_error(row)] if measured else [row.source, _within(row)])]
            for row, items in rows
        ]
        kinds = {2, 5} if any(items for _, items in rows) else set()
        kept = [i for i in range(len(headings)) if i in kinds or i not in (2, 5)]
        return Grid(
            [headings[i] for i in kept],
            [[row[i] for i in kept] for row in cells],
            notes=[] if all or len(rows) == len(self.sites) else [self._rest(len(rows))],
            left=[] if measured else [len(kept) - 2],
        )

    @property
    def _source(self) -> str:
        return "measured" if self.sites and self.sites[0].status == "measured" else "predicted"

    def _rest(self, shown: int) -> str:
        return f"{shown} of {len(self.sites)} sites; table(all=True), or --all, shows the rest."

    def summary(self) -> str:
        """A few sentences: what was done, how signal and gradient change along each stream, how sure it is."""
        model = self.meta.get("model") or self.meta.get("blueprint") or "model"
        lines = [f"{model}, {self._source}: {len(self.sites)} sites, {len(self.parameters)} parameters"]
        for name, rows in streams(self.sites).items():
            ends = f"{rows[-1].token_correlation:.2g}"
            lines.append(
                f"{clean(name) or 'the stack'} ({len(rows)} blocks): "
                f"variance {factor(growth(rows))} from first to last, "
                f"gradient {factor(gradient_growth(rows))} from last to first"
                + ("" if ends == "nan" else f", token correlation {ends} at the end")
            )
        lines.insert(1, f"source: {self.provenance}")
        return "\n".join(lines + _certainty(self.sites))

    @property
    def provenance(self) -> str:
        """Where the numbers come from, in a few words."""
        rows = (*self.sites, *self.parameters)
        found = Counter(row.source for row in rows)
        note = self.meta.get("verification")
        note = note if isinstance(note, dict) else {}
        count = note.get("draws", self.meta.get("draws", len(self.meta.get("seeds", [0]))))
        times = f"{count} initialization" + ("" if count == 1 else "s")
        if found["measured"]:
            return f"measured ({times})"
        if found["simulated"] == len(rows) and rows:
            why = str(self.meta.get("theory") or self.meta.get("tokens") or "asked for").splitlines()[0]
            return f"simulated ({clean(why)}, {times})"
        if not found["confirmed"] and not found["simulated"]:
            return "theory"
        where = " at reduced size" if "reduced size" in note else ""
        others = [f"{found[kind]} {how}" for kind, how in OTHERS.items() if found[kind]]
        return "; ".join([f"theory, confirmed by {times}{where}: {found['confirmed']} of {len(rows)} rows", *others])

    def records(self) -> list[dict[str, Any]]:
        """One flat dict per site."""
        return [
            {"name": row.name, "depth": row.depth}
            | {column: getattr(row, column) for column in row.COLUMNS}
            | {f"{column}_error": value for column, value in row.errors.items()}
            | {"source": row.source, "status": row.status, "reason": row.reason}
            for row in self.sites
        ]

    def plot(self, path: str | Path | None = None, **others: Profile) -> Any:
        """Four panels over depth; other profiles by name are drawn beside it: `predicted.plot(measured=actual)`."""
        from sigprop.results.figures import profile_figure

        return profile_figure({self._source: self, **others}, path)

    def derived(self) -> dict[str, Any]:
        return {"provenance": self.provenance}


COLUMNS_IN_WORDS = (
    "variance: of all entries. gradient: mean square of the gradient of the loss. corr: token correlation. "
    "/first, /last: beside the first and the last block. within: how far off the truth may be. error: a standard error."
)


def streams(rows: Iterable[SiteRow]) -> dict[str, list[SiteRow]]:
    """Rows whose name ends in the only number in it (`blocks.3`), by the list they stand in; no lists of one."""
    found: dict[str, list[SiteRow]] = {}
    for row in rows:
        *parents, last = row.name.split(".")
        if last.isdigit() and not any(part.isdigit() for part in parents):
            found.setdefault(".".join(parents), []).append(row)
    return {name: items for name, items in found.items() if len(items) > 1}


def growth(rows: list[SiteRow]) -> float:
    """Variance at the last row over that at the first."""
    return _ratio(rows[-1].variance, rows[0].variance)


def gradient_growth(rows: list[SiteRow]) -> float:
    """Gradient variance at the first row over that at the last."""
    return _ratio(rows[0].grad_variance, rows[-1].grad_variance)


def _ratio(value: float, reference: float) -> float:
    return value / reference if reference and math.isfinite(reference) else math.nan


def _moments(row: SiteRow, items: list[SiteRow]) -> list[str]:
    first, last = (items[0], items[-1]) if items else (row, row)
    return [
        number(row.variance),
        factor(growth([first, row])),
        "-" if row.token_correlation != row.token_correlation else f"{row.token_correlation:.2f}",
        number(row.grad_variance),
        factor(gradient_growth([row, last])),
    ]


def _error(row: SiteRow) -> str:
    """The larger relative standard error of variance and gradient."""
    pairs = [(row.errors.get(key), getattr(row, key)) for key in ("variance", "grad_variance")]
    found = [error / abs(value) for error, value in pairs if error is not None and value]
    return f"{max(found):.1%}" if found else "-"


def _within(row: SiteRow) -> str:
    """The larger error that the prediction states for variance and gradient."""
    found = [row.stated_errors[key] for key in ("variance", "grad_variance") if key in row.stated_errors]
    return f"{max(found):.0%}" if found else "a guess"


def _certainty(rows: list[SiteRow]) -> list[str]:
    counts = Counter(row.status for row in rows)
    if not counts or set(counts) == {"measured"}:
        return []
    reasons = Counter(row.reason for row in rows if row.status == "assumed" and row.reason)
    why = f" (mostly: {reasons.most_common(1)[0][0]})" if reasons else ""
    return ["status: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()) + why]

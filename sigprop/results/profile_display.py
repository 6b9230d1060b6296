"""A profile as a table and in sentences: one row per block, with ratios along the stream."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sigprop.grid import Grid, Shown, clean, factor, number, thinned
from sigprop.results.blocks import gradient_growth, growth, streams

if TYPE_CHECKING:
    from pathlib import Path

    from sigprop.results.profile import Profile, SiteRow

MOST = 14
OTHERS = {"simulated": "simulated instead", "theory": "by theory alone"}


class ShownProfile(Shown):
    """How a `Profile` shows itself."""

    def table(self: Profile, all: bool = False) -> Grid:  # type: ignore[misc]
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
    def _source(self: Profile) -> str:  # type: ignore[misc]
        return "measured" if self.sites and self.sites[0].status == "measured" else "predicted"

    def _rest(self: Profile, shown: int) -> str:  # type: ignore[misc]
        return f"{shown} of {len(self.sites)} sites; table(all=True), or --all, shows the rest."

    def summary(self: Profile) -> str:  # type: ignore[misc]
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
    def provenance(self: Profile) -> str:  # type: ignore[misc]
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

    def records(self: Profile) -> list[dict[str, Any]]:  # type: ignore[misc]
        """One flat dict per site."""
        return [
            {"name": row.name, "depth": row.depth}
            | {column: getattr(row, column) for column in row.COLUMNS}
            | {f"{column}_error": value for column, value in row.errors.items()}
            | {"source": row.source, "status": row.status, "reason": row.reason}
            for row in self.sites
        ]

    def plot(self: Profile, path: str | Path | None = None, **others: Profile) -> Any:  # type: ignore[misc]
        """Four panels over depth; other profiles by name are drawn beside it: `predicted.plot(measured=actual)`."""
        from sigprop.results.figures.profile import profile_figure

        return profile_figure({self._source: self, **others}, path)


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

"""`Grid`: a table as plain data, shown as text that fits 80 columns, as HTML, or given to pandas.

Names come from users' models: control characters, markup and HTML in them are shown, never obeyed.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sigprop.errors import UnsupportedError

WIDTH = 80
NARROWEST, PREFERRED = 8, 12


@dataclass(frozen=True)
class Grid:
    """Headings and cells. Columns in `names` are shortened from the left, in `wrapped` broken into lines."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    names: Sequence[int] = (0,)
    wrapped: Sequence[int] = ()
    left: Sequence[int] = field(default=())

    def text(self, width: int = WIDTH) -> str:
        """The table in so many columns."""
        rows = [[clean(cell) for cell in row] for row in self.rows]
        sizes = self._sizes(rows, width)
        lines = textwrap.wrap(clean(self.title), width) if self.title else []
        lines += ["  ".join(self._fit(self.headings[i], i, sizes[i])[0] for i in range(len(sizes))).rstrip()]
        lines.append("-" * min(width, sum(sizes) + 2 * (len(sizes) - 1)))
        for row in rows:
            cells = [self._fit(cell, i, sizes[i]) for i, cell in enumerate(row)]
            for line in range(max(map(len, cells))):
                parts = [cell[line] if line < len(cell) else " " * sizes[i] for i, cell in enumerate(cells)]
                lines.append("  ".join(parts).rstrip())
        lines += [line for note in self.notes for line in textwrap.wrap(clean(note), width)]
        return "\n".join(lines)

    def _sizes(self, rows: list[list[str]], width: int) -> list[int]:
        sizes = [max(len(row[i]) for row in [list(self.headings), *rows]) for i in range(len(self.headings))]
        flexible = [*self.names, *self.wrapped]
        while flexible and sum(sizes) + 2 * (len(sizes) - 1) > width:
            widest = max(flexible, key=lambda i: sizes[i] - (PREFERRED if i in self.names else 0))
            if sizes[widest] <= NARROWEST:
                break
            sizes[widest] -= 1
        return sizes

    def _fit(self, cell: str, column: int, size: int) -> list[str]:
        """The lines of one cell, each as wide as its column."""
        if column in self.wrapped:
            return [line.ljust(size) for line in textwrap.wrap(cell, size) or [""]]
        if len(cell) > size:
            cell = "…" + cell[len(cell) - size + 1 :]
        return [cell.ljust(size) if column in (*self.names, *self.left) else cell.rjust(size)]

    def html(self) -> str:
        """The table for a notebook."""
        head = self._html_row(self.headings, "th")
        body = "".join(self._html_row(row, "td") for row in self.rows)
        title = f"<p><b>{_escaped(self.title)}</b></p>" if self.title else ""
        notes = "".join(f"<p>{_escaped(note)}</p>" for note in self.notes)
        return f"<div>{title}<table><thead>{head}</thead><tbody>{body}</tbody></table>{notes}</div>"

    def _html_row(self, cells: Sequence[str], tag: str) -> str:
        """Words on the left, numbers on the right, names as they stand in code."""
        worded = {*self.names, *self.wrapped, *self.left}
        sides = ["left" if column in worded else "right" for column in range(len(cells))]
        texts = [_escaped(cell) for cell in cells]
        if tag == "td":
            texts = [f"<code>{text}</code>" if i in self.names and text else text for i, text in enumerate(texts)]
        pairs = zip(texts, sides, strict=True)
        return "<tr>" + "".join(f"<{tag} style='text-align:{side}'>{text}</{tag}>" for text, side in pairs) + "</tr>"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()


class Shown:
    """A result that shows itself: a short `repr`, a table on `print`, HTML in a notebook, a frame for pandas.

    A subclass has `table(all=False)`, `summary()` and `records()`.
    """

    def table(self, all: bool = False) -> Grid:
        raise NotImplementedError

    def summary(self) -> str:
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {clean(self.summary().splitlines()[0])}>"

    def __str__(self) -> str:
        return f"{filled(self.summary())}\n\n{self.table()}"

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{_escaped(line)}</p>" for line in self.summary().splitlines())
        return f"{lines}{self.table().html()}"

    def to_dataframe(self) -> Any:
        """One row per record, as a pandas DataFrame."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise UnsupportedError("to_dataframe() needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.records())


def _escaped(text: Any) -> str:
    return html.escape(clean(text))


def filled(text: str, width: int = WIDTH) -> str:
    """Sentences in so many columns; lines that fit stay as they are."""
    return "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, width) or [""])


def clean(text: Any) -> str:
    """Text on one line, with control characters (ANSI codes among them) shown as what they are."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))


def number(value: float | None) -> str:
    """Three significant digits; a dash for a value that does not exist."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.3g}"


def counted(value: int) -> str:
    """A large count as people say it: 75, 102 thousand, 1.24 million, 70.6 billion."""
    for size, word in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if value >= size:
            return f"{value / size:.3g} {word}"
    return str(value)


def factor(value: float) -> str:
    """A ratio as people say it: 13x, 0.02x, 1x."""
    return "-" if math.isnan(value) else f"{value:.3g}x"


def thinned(rows: Sequence[Any], most: int) -> list[Any]:
    """At most so many rows, evenly spread, first and last included."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(index * step)] for index in range(most)]

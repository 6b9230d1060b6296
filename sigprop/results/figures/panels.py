"""What all figures share: colours, quiet axes with sensible spans, a legend below, a title on the left."""

from __future__ import annotations

import io
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from sigprop.compat import Figure as PlainFigure
from sigprop.results.files import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0b5fa5", "#c2571a", "#3a7d44", "#7a4e9c", "#a01f3c", "#555555", "#c9a227", "#2a9d8f")
TITLE = 100
"""Characters in a line of the title."""
LEAST_SPAN = 4.0
"""The least factor that a logarithmic axis spans, so that a constant looks constant."""


class Figure(PlainFigure):
    """A figure that shows itself in a notebook, without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def blank(rows: int, columns: int, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, in reading order."""
    figure = Figure(figsize=(5.0 * columns, height * rows), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def label(axis: Axes, title: str, below: str = "") -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(below)
    axis.grid(True, color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def widen(axis: Axes) -> None:
    """A logarithmic axis that spans at least `LEAST_SPAN`."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if 0 < low < high < LEAST_SPAN * low:
        middle = math.sqrt(low * high)
        axis.set_ylim(middle / math.sqrt(LEAST_SPAN), middle * math.sqrt(LEAST_SPAN))
        ticks = [middle / 1.6, middle, middle * 1.6]
        axis.set_yticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
        axis.minorticks_off()


def finish(figure: Figure, title: str, path: str | Path | None, most: int = 6) -> Figure:
    """The legend of all panels below them, the title, and the file."""
    found = {
        name: handle for axis in figure.axes for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if found:
        style = {"ncols": min(most, len(found)), "fontsize": 8, "frameon": False}
        figure.legend(list(found.values()), list(found), loc="outside lower center", **style)
    figure.suptitle(textwrap.fill(title, TITLE), fontsize=12, x=0.01, ha="left")
    if path is not None:
        write_figure(Path(path), figure)
    return figure

"""chi_J of whole networks: theory of blueprints against the measured diagrams of Figs. 4 to 7.

`python -m studies.apjn_blueprints` reads the data of the figures, writes docs/data/apjn_blueprints.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor

from sigprop.research.phase.diagram import PhaseDiagram
from sigprop.research.phase.diagrams import SIZES
from sigprop.research.phase.predicted import block_factor, blueprint_at, blueprint_diagram
from studies.stored import read, write

PANELS = [(4, 0), (4, 1), (5, 0), (5, 1), (6, 0), (6, 1), (7, 0), (7, 1)]
FAINT = 0.3  # points below are left out: their gradients die within a block or two


def main(out: Path = Path("docs")) -> None:
    """Relative deviations of theory from measurement, over all points of a panel; the drawn Mixer at 16 of them."""
    rows = []
    for figure, index in PANELS:
        stored = read(out / "data" / f"apjn_figure{figure}.json")
        measured = PhaseDiagram.from_dict(stored["panels"][index])
        rows.append({"figure": figure, "panel": index, **_compared(measured)})
        print(rows[-1], flush=True)
    write(out / "data" / "apjn_blueprints.json", rows)


def _compared(measured: PhaseDiagram) -> dict[str, Any]:
    keys = ("residual", "sigma_b")
    fixed = {key: measured.settings[key] for key in keys if key in measured.settings}
    name = measured.settings["model"]
    options = {key: value for key, value in measured.settings.items() if key in ("norm", "norm_placement")}
    settings = {**SIZES[name], **options}
    chi, error = torch.tensor(measured.chi), torch.tensor(measured.standard_error)
    if name == "mixer" and fixed["residual"] != 1:
        rows, columns = torch.meshgrid(torch.arange(4, 32, 8), torch.arange(4, 32, 8), indexing="ij")
        chi, error = chi[rows, columns], error[rows, columns]
        points = zip(columns.flatten().tolist(), rows.flatten().tolist(), strict=True)
        values = [_drawn({**fixed, "sigma_w": measured.x[j], "sigma_b": measured.y[i]}) for j, i in points]
        theory = torch.tensor(values).reshape(4, 4)
    else:
        x, y = (measured.x_name, measured.x), (measured.y_name, measured.y)
        theory = torch.tensor(blueprint_diagram(name, x, y, fixed, settings).chi)
    kept = chi > FAINT
    ratio = (theory / chi - 1)[kept]
    return {
        "model": name, **options, **fixed, "points": len(ratio), "median": _round(ratio.median()),
        "median_size": _round(ratio.abs().median()), "ninetieth": _round(ratio.abs().quantile(0.9)),
        "largest": _round(ratio.abs().max()), "standard_error": _round((error / chi)[kept].median()),
    }  # fmt: skip


def _drawn(point: dict[str, float], draws: int = 3, depth: int = 10) -> float:
    """Three draws of ten blocks: at mu = 0.5 nothing remains of the inputs by then."""
    settings = [{"depth": depth, "seed": seed} for seed in range(draws)]
    return sum(float(block_factor(blueprint_at("mixer", dict(point), one))) for one in settings) / draws


def _round(value: Tensor) -> float:
    return round(value.item(), 4)


if __name__ == "__main__":
    typer.run(main)

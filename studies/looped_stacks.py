"""Growth of looped stacks: `python -m studies.looped_stacks`; with `--page` the page is written from what is stored.

A Pre-LN block of width 64 is visited 1 to 32 times, with one set of weights or with weights of its own at every visit.
An exponent is the slope of the logarithm of a variance against that of the number of visits.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import sigprop as sp
from studies.compositions.networks import Attention, Feedforward, he
from studies.stored import fill, read, stamp, table, write

DATA, PAGE = Path("docs/data/looped_stacks.json"), Path("docs/evidence/looped-stacks.md")
WIDTH, SEEDS, VISITS, FITTED = 64, 60, (1, 2, 4, 8, 16, 32), (4, 8, 16, 32)
BRANCHES = {
    "MLP": [lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))],
    "attention and MLP": [lambda: Attention(WIDTH, 4, causal=True), lambda: Feedforward(WIDTH)],
}
TOKENS = {"MLP": (16,), "attention and MLP": (2, 16)}
QUANTITIES = {"stream at the end": ("end", "variance"), "gradient at the start": ("start", "grad_variance")}


class Looped(nn.Module):
    """`x + branch(LayerNorm(x))` for every branch of a block, for every visit; weights of variance 2 / fan_in."""

    def __init__(self, block: str, weights: str, visits: int):
        super().__init__()
        self.loops = visits if weights == "shared" else 1
        self.start, self.end = nn.Linear(WIDTH, WIDTH), nn.Identity()
        made = [branch() for _ in range(visits // self.loops) for branch in BRANCHES[block]]
        self.branches = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), branch) for branch in made)
        he(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for _ in range(self.loops):
            for branch in self.branches:
                x = x + branch(x)
        return self.end(x)


def point(block: str, weights: str, visits: int, seeds: int = SEEDS) -> list[list[Any]]:
    """Of each quantity: predicted, its stated error (none for a guess), measured, its standard error."""
    build = partial(Looped, block, weights, visits)
    inputs = torch.randn(*TOKENS[block], WIDTH, generator=torch.Generator().manual_seed(7))
    theory = sp.predict(build, inputs, loss="noise", verify=0)
    real = sp.measure(build, inputs, "noise", seeds=range(1000 * visits, 1000 * visits + seeds), progress=False)
    return [
        [getattr(theory[name], of), theory[name].stated_errors.get(of), getattr(real[name], of), real[name].errors[of]]
        for name, of in QUANTITIES.values()
    ]


def slope(values: Sequence[float], errors: Sequence[float]) -> tuple[float, float]:
    """The exponent over the fitted visits and its standard error, of values with relative errors."""
    weight = np.array(errors) ** -2.0
    x = np.log(FITTED) - np.average(np.log(FITTED), weights=weight)
    spread = (weight * x**2).sum()
    return float((weight * x * np.log(values)).sum() / spread), float(spread**-0.5)


def tables(results: dict[str, dict[str, list[list[Any]]]]) -> dict[str, list[str]]:
    exponents, numbers = [], []
    for name, points in results.items():
        for number, quantity in enumerate(QUANTITIES):
            theory, _, real, error = zip(*(points[str(visits)][number] for visits in FITTED), strict=True)
            errors = [error / value for value, error in zip(real, error, strict=True)]
            measured = "{:.2f} ± {:.2f}".format(*slope(real, errors))
            guesses = sum(rows[number][1] is None for rows in points.values())
            exponents.append(
                [name, quantity, f"{slope(theory, errors)[0]:.2f}", measured, f"{guesses} of {len(points)}"]
            )
        numbers += [[name, visits, *(cell for row in rows for cell in _cells(*row))] for visits, rows in points.items()]
    columns = [text for name in QUANTITIES for text in (f"{name}, theory", "measured")]
    return {
        "exponents": table(["block, weights", "quantity", "theory", "measured", "guesses"], exponents),
        "numbers": table(["block, weights", "visits", *columns], numbers),
    }


def _cells(predicted: float, stated: float | None, measured: float, error: float) -> list[str]:
    return [f"{predicted:.4g} ({f'{stated:.0%}' if stated else 'guess'})", f"{measured:.4g} ± {error / measured:.1%}"]


if __name__ == "__main__":
    if "--page" not in sys.argv:
        every = {f"{b}, {w}": {v: point(b, w, v) for v in VISITS} for b in BRANCHES for w in ("shared", "separate")}
        write(DATA, stamp("looped_stacks", seeds=SEEDS, results=every))
    fill(PAGE, tables(read(DATA)["results"]))

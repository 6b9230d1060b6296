"""The judge of random networks, and its long run: `python -m tests.robustness.fuzz FILE [COUNT SEED]` goes on where it
stopped. Without a seed the networks are those of hypothesis' own.

FILE is one line of JSON for each network: its recipe, and `predicted`, `refused` with the words, or `wrong` with rows.
"""

import json
import math
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

import sigprop as sp
from sigprop.errors import SigpropError
from tests.robustness.networks import harder

SURE = ("exact", "asymptotic", "quadrature", "sampled", "fitted", "verified")
ALLOWED, ERRORS = 0.30, 5.0
FIRST, CONFIRM = 8, 64
CASES = 300
ROUNDING = 1e-7
REPLAYED = 3_000
"""Calls that theory draws at most, about half a second: networks that need more are simulated, as by default."""


def wrong_rows(profile, actual):
    """Rows marked better than assumed that are off by more than 30 % and five standard errors."""
    found = []
    largest = {column: max(getattr(row, column) for row in actual.sites) for column in ("variance", "grad_variance")}
    largest["grad_second_moment"] = max(row.grad_second_moment for row in actual.parameters)
    pairs = [(row, actual, "variance", "grad_variance") for row in profile.sites]
    pairs += [(row, actual, "grad_second_moment") for row in profile.parameters]
    for row, measured, *columns in pairs:
        other = _named(measured, row)
        for column in columns if other is not None and row.status in SURE else ():
            value, truth = getattr(row, column), getattr(other, column)
            error = math.hypot(other.errors.get(column, 0.0), row.errors.get(column, 0.0))
            if value == 0.0 and truth < ROUNDING * largest[column]:
                continue  # exactly zero, as a bias before a batch norm, and float32
            if truth > 1e-12 and abs(value - truth) > max(ALLOWED * truth, ERRORS * error):
                found.append(f"{row.name} {column}: {value:.3g} ({row.status}), measured {truth:.3g} ± {error:.1g}")
    return found


def _named(profile, row):
    table = profile.sites if hasattr(row, "depth") else profile.parameters
    return next((other for other in table if other.name == row.name), None)


def judged(recipe, verify=24):
    """What became of a network: `predicted`, `refused` or `wrong`, and why. Any other error is raised."""
    batch = recipe.batch()
    torch.manual_seed(0)
    try:
        profile = sp.predict(recipe.brought(), batch, verify=verify, replayed=REPLAYED)
    except SigpropError as error:
        return "refused", [str(error)]
    if not wrong_rows(profile, sp.measure(None, batch, build=recipe, seeds=range(10_000, 10_000 + FIRST))):
        return "predicted", []
    confirmed = wrong_rows(profile, sp.measure(None, batch, build=recipe, seeds=range(20_000, 20_000 + CONFIRM)))
    return ("wrong" if confirmed else "predicted"), confirmed


def drawn(count, number=None):
    """A decorator: the function is called with so many recipes, the same in every run, or those of a seed."""
    quiet = settings(
        max_examples=count,
        deadline=None,
        derandomize=number is None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seeded = (lambda function: function) if number is None else seed(number)
    return lambda function: seeded(quiet(given(recipe=harder)(function)))


def main() -> None:
    warnings.simplefilter("ignore")
    file, *numbers = Path(sys.argv[1]), *map(int, sys.argv[2:])
    done = {line["recipe"]: line for line in map(json.loads, file.read_text().splitlines())} if file.exists() else {}

    @drawn(*numbers or [CASES])
    def run(recipe):
        if repr(recipe) in done:
            return
        try:
            verdict, why = judged(recipe)
        except Exception as error:  # what the fuzz is after
            verdict, why = "raw error", [f"{type(error).__name__}: {error}"]
        done[repr(recipe)] = {"recipe": repr(recipe), "verdict": verdict, "why": why}
        with file.open("a") as lines:
            lines.write(json.dumps(done[repr(recipe)]) + "\n")

    run()
    print(Counter(line["verdict"] for line in done.values()))


if __name__ == "__main__":
    main()

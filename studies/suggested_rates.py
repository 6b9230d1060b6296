"""`Plan.suggested_lr` against swept learning rates, all points: `python -m studies.suggested_rates`.

Reads the runs of `prescription_training.json`. A sweep is all runs of one model, size, scheme, optimizer, batch and
number of steps; its optimum is the vertex of the parabola through the best rate and its two neighbours, in the
logarithm of the rate. Where the best rate is the first or the last that was tried, the sweep gives a bound only; where
all losses lie within one percent, nothing. An optimum that was not stored before is `fresh`: `suggested_lr` and what it
refuses were settled before it was known. Models are planned on the meta device, and plans whose rate is stored are
not made again unless `--again`. Writes `docs/data/suggested_rates.json`, the scatter and the table of the page.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import sigprop as sp
from sigprop.distributions import build as on_meta
from sigprop.errors import SigpropError
from sigprop.plans.suggestion import batch_factor, rate_of_response_one
from studies.prescription_models import BASE_LAYERS, RATES, STEPS, build, prescribe, with_usual
from studies.prescription_page import PAGE, Rates, compared
from studies.stored import read, replaced, stamp, write

DOCS = Path(__file__).parents[1] / "docs"
STORED = DOCS / "data/suggested_rates.json"
NAMES = {
    "llama": "Llama",
    "gpt2": "GPT-2",
    "postln": "Post-LN",
    "vit": "ViT",
    "bert": "BERT",
    "mixtral": "Mixtral",
    "gpt2-untied": "GPT-2, untied",
    "postln-untied": "Post-LN, untied",
}
POST = ("postln", "postln-untied", "bert")
"""Families whose norms follow the sums."""
TOKENS, MASKED = 256, 0.15
FLAT = 1.01
KEYS = ("family", "width", "layers", "scheme", "optimizer", "batch", "steps", "tokens")


def sweeps() -> dict[tuple, dict[float, float]]:
    """By sweep: the mean final loss over the seeds that all its rates were run with, by power of two."""
    losses: dict[tuple, Rates] = defaultdict(lambda: defaultdict(dict))
    for row in read(DOCS / "data/prescription_training.json")["rows"]:
        told = with_usual(row)
        key = tuple(told[name] for name in KEYS)
        losses[key][math.log2(row["rate"])][row["seed"]] = row["last"]
    return {key: compared(found) for key, found in sorted(losses.items())}


def optimum(found: dict[float, float]) -> tuple[float, str]:
    """(power of two, "") at the vertex, or the best power with the side that is open."""
    powers = sorted(found)
    best = min(powers, key=lambda power: found[power])
    place = powers.index(best)
    if place in (0, len(powers) - 1):
        return best, "or less" if place == 0 else "or more"
    left, middle, right = (min(found[power], 2 * found[best]) for power in powers[place - 1 : place + 2])
    return best + 0.5 * (left - right) / (left - 2 * middle + right), ""


def targets_of(family: str, batch: int, tokens: int) -> int:
    """Tokens with a label, or images, in one batch."""
    return batch if family == "vit" else int(batch * tokens * (MASKED if family == "bert" else 1.0))


def forecast(family: str, width: int, layers: int, scheme: str, optimizer: str) -> float:
    """The rate of response one for 4,096 targets (for Post-LN models too, which are told none), as a power of two."""
    model = on_meta(lambda: build(family, width, layers, TOKENS))
    plan = prescribe(scheme, model, family, layers, TOKENS, optimizer)
    if plan is None:
        batch: Any = torch.randn(2, 1, 28, 28) if family == "vit" else {"input_ids": torch.randint(256, (1, 128))}
        plan = sp.plan(model, "own", optimizer=optimizer, batch=batch)
    return math.log2(rate_of_response_one(plan))


def points(again: bool) -> list[dict[str, Any]]:
    made = []
    stored = read(STORED)["points"]
    plans: dict[tuple, float | str] = {
        tuple(point[key] for key in KEYS[:5]): point["planned"] for point in stored if "planned" in point and not again
    }
    known = {tuple(with_usual(point)[name] for name in KEYS): point for point in stored if not point["open"]}
    for key, found in sweeps().items():
        family, _, _, scheme, _, batch, _, tokens = key
        if (
            any(option in scheme for option in RATES)
            or len(found) < 2
            or max(found.values()) < FLAT * min(found.values())
        ):
            continue
        if key[:5] not in plans:
            try:
                plans[key[:5]] = forecast(*key[:5])
            except SigpropError as error:
                plans[key[:5]] = str(error).splitlines()[0]
        best, side = optimum(found)
        targets, told = targets_of(family, batch, tokens), plans[key[:5]]
        row = dict(zip(KEYS, key, strict=True)) | {"targets": targets, "best": round(best, 3), "open": side}
        row["fresh"] = not side and known.get(key, {"fresh": True}).get("fresh", False)
        if isinstance(told, float):
            row |= {"planned": round(told, 4), "forecast": round(told + math.log2(batch_factor(targets)), 3)}
        made.append(row if isinstance(told, float) else row | {"refused": told})
        print(made[-1], flush=True)
    return made


def usual(point: dict[str, Any]) -> bool:
    return point["optimizer"] == "adamw" and point["steps"] == STEPS and "forecast" in point


def refused(point: dict[str, Any]) -> bool:
    """Whether `suggested_lr` gives no rate: norms after the sums, or a depth rule that changes something."""
    return point["family"] in POST or (point["scheme"] == "mup+linear" and point["layers"] > BASE_LAYERS)


def summary(made: list[dict[str, Any]]) -> list[str]:
    lines = ["| model | sweeps with an optimum inside | within a factor of 2 | median factor | nine of ten | largest |"]
    lines.append("|---|---|---|---|---|---|")
    closed = [point for point in made if usual(point) and not point["open"]]
    told = [point for point in closed if not refused(point)]
    groups = {"all that are told one": told} | {NAMES[f]: [p for p in told if p["family"] == f] for f in NAMES}
    groups["of these, found after the refusals were drawn"] = [point for point in told if point["fresh"]]
    groups["`linear`, 16 and 64 layers (refused)"] = [p for p in closed if p["scheme"] == "mup+linear" and refused(p)]
    groups["norms after the sums (refused)"] = [p for p in closed if p["family"] in POST]
    for name, members in groups.items():
        errors = sorted(abs(point["best"] - point["forecast"]) for point in members)
        if errors:
            inside = sum(error <= 1.0 for error in errors)
            middle, ninth, last = (2 ** errors[int(share * (len(errors) - 1))] for share in (0.5, 0.9, 1.0))
            lines.append(f"| {name} | {len(errors)} | {inside} | {middle:.2f} | {ninth:.2f} | {last:.2f} |")
    return lines


def figure(made: list[dict[str, Any]], path: Path) -> None:
    drawing = Figure(figsize=(6.5, 5), layout="constrained")
    axis = drawing.subplots()
    families = [family for family in NAMES if any(point["family"] == family for point in made)]
    shapes = {"default": "o", "mup": "s", "mup+linear": "D", "ours": "^"}
    for point in made:
        if "forecast" not in point:
            continue
        colour = f"C{families.index(point['family'])}"
        shape = {"or less": "v", "or more": "^"}.get(point["open"], shapes.get(point["scheme"].partition(":")[0], "x"))
        face = "none" if point["open"] else colour
        jitter = 0.04 * (families.index(point["family"]) - 2)
        shade = 0.6 if usual(point) else 0.25
        edge = "black" if point["fresh"] else colour
        axis.plot(point["forecast"] + jitter, point["best"], shape, color=edge, alpha=shade, markerfacecolor=face)
    span = [-13.5, -4.5]
    axis.plot(span, span, color="black", linewidth=1)
    axis.fill_between(span, [x - 1 for x in span], [x + 1 for x in span], color="black", alpha=0.08)
    for family in families:
        axis.plot([], [], "o", color=f"C{families.index(family)}", label=NAMES[family])
    for scheme, shape in shapes.items():
        axis.plot([], [], shape, color="grey", label=scheme)
    axis.set(xlabel="suggested rate, power of two", ylabel="best rate of the sweep, power of two")
    axis.legend(fontsize=7, loc="upper left")
    told = (
        "open: the best rate is the last that was tried; pale: other optimizers (refused)\n"
        "black edge: found after the refusals were drawn; grey band: within a factor of 2"
    )
    axis.set_title(told, fontsize=8)
    drawing.savefig(path, dpi=150)


def main() -> None:
    warnings.filterwarnings("ignore")
    made = points("--again" in sys.argv[1:])
    write(STORED, stamp("suggested_rates", points=made))
    figure(made, DOCS / "figures/suggested_rates.png")
    PAGE.write_text(replaced(PAGE.read_text(), "suggested rates", summary(made)))


if __name__ == "__main__":
    main()

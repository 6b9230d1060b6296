"""Tables and figure of `docs/evidence/recipes.md` from the stored data: `python -m studies.recipes_page`.

Each table stands between `<!-- name -->` and `<!-- end name -->`; run it again after adding results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import typer

from studies.recipe_table import cells
from studies.recipes_shared import DATA
from studies.stored import fill, read, table

RECIPES = ("xavier", "deepscale", "unit")
POST = ("gradient_growth", "token_correlation", "sensitivity")
PRE = ("forward_growth", *POST)


def main(
    page: Path = Path("docs/evidence/recipes.md"), data: Path = DATA, figures: Path = Path("docs/figures")
) -> None:
    """Write the tables into the page and draw its figures."""
    profiles, found = results(data / "unit_profiles.json"), results(data / "recipe_table.json")
    runs = data / "deep_decoder.json"
    tables = {
        "unit table": unit_table(profiles),
        "loss table": loss_table(profiles),
        "recipe table": recipe_table(found),
        "normless table": normless_table(found),
        "refusals": refusals(found),
        "anyinit table": anyinit_table(results(data / "anyinit_comparison.json")),
    }
    fill(page, tables | ({"training": training(read(runs))} if runs.is_file() else {}))
    draw_profiles(profiles, figures / "unit_profiles.png")


def results(path: Path) -> dict[str, dict[str, Any]]:
    return read(path)["results"]


def unit_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """By model and depth: the worst sum and the gradient under each recipe."""
    rows = []
    for model in dict.fromkeys(" ".join(key.split()[:2]) for key in found):
        here = [found.get(f"{model} {name}", {}) for name in RECIPES]
        worst = [deviation(row) for row in here]
        gradients = [f"{row['gradient_ratio']:.3g}" if row else "" for row in here]
        tokens = next(str(row["tokens"]) for row in here if row)
        rows.append((model.replace(" ", ", "), tokens, *worst, *gradients))
    return table(("model, layers", "tokens", *RECIPES, *(f"gradient: {name}" for name in RECIPES)), rows)


def loss_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """`unit` with other branch strengths and with a loss of the pooled output."""
    rows = []
    models = dict.fromkeys(" ".join(key.split()[:2]) for key in found if len(key.split()) > 3)
    for model in models:
        for key in (key for key in found if key.startswith(f"{model} unit")):
            options = key.split()[3:]
            k = next((item[2:] for item in options if item.startswith("k=")), "2")
            loss = "of the average over tokens" if "pooled" in options else "of every token"
            row = found[key]
            rows.append((model.replace(" ", ", "), k, loss, deviation(row), f"{row['gradient_ratio']:.3g}"))
    return table(("model, layers", "k", "loss", "worst deviation from 1", "gradient first/last"), rows)


def deviation(row: dict[str, Any]) -> str:
    if not row:
        return ""
    digits = 2 if row["worst_deviation"] < 1 else 3
    return f"{row['worst_deviation']:.{digits}g} ± {row['its_standard_error']:.2g}"


def recipe_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """By recipe, both placements; recipes that refuse both are left out."""
    headings = ["Post-LN: gradient", "correlation", "sensitivity", "Pre-LN: variance", "gradient"]
    rows = []
    for name in sorted({key.split(" ", 1)[1] for key in found}):
        post, pre = (found.get(f"{placement} {name}", {}) for placement in ("post", "pre"))
        if "sensitivity" in post or "sensitivity" in pre:
            rows.append((name, *cells(post, POST), *cells(pre, PRE)))
    return table(("recipe", *headings, "correlation", "sensitivity"), rows)


def normless_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """Recipes on the model without norms; no number where it is not finite."""
    chosen = {key.split()[1]: row for key, row in found.items() if key.startswith("none ") and "refused" not in row}
    rows = [(name, *cells(row, PRE)) for name, row in chosen.items()]
    return table(("recipe", "variance", "gradient", "correlation", "sensitivity"), rows)


def refusals(found: dict[str, dict[str, Any]]) -> list[str]:
    """What the recipes say that predict nothing for either placement with norms."""
    lines = []
    for name in sorted({key.split()[1] for key in found}):
        rows = [found[f"{place} {name}"] for place in ("post", "pre")]
        if all("refused" in row for row in rows):
            told = dict.fromkeys(row["refused"].removeprefix(f"{name}: ") for row in rows)
            lines.append(f"- `{name}`: " + "; ".join(told))
    return lines


def draw_profiles(found: dict[str, dict[str, Any]], path: Path) -> None:
    """Variance of the scaled stream along the deepest stacks with two standard errors: all recipes, and close to 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(key.split()[0] for key in found if "-" in key))
    depth = max(int(key.split()[1]) for key in found if key.split()[0] in names)
    figure, axes = pyplot.subplots(2, len(names), figsize=(13, 5), sharey="row", sharex=True, layout="constrained")
    for column, name in enumerate(names):
        for number, recipe in enumerate(RECIPES):
            row = found[f"{name} {depth} {recipe}"]
            places, variance, error = (numpy.array(row[key]) for key in ("sum", "variance", "standard_error"))
            for axis in axes[:, column]:
                axis.plot(places, variance, label=recipe, linewidth=1.2, color=f"C{number}")
                axis.fill_between(places, variance - 2 * error, variance + 2 * error, alpha=0.25, color=f"C{number}")
        axes[0, column].set(title=f"{name}, {depth} layers", yscale="log")
        axes[1, column].set(xlabel="residual sum", ylim=(0.88, 1.12))
        axes[1, column].axhspan(0.95, 1.05, color="grey", alpha=0.2, linewidth=0)
    for axis in axes[:, 0]:
        axis.set_ylabel("variance of the stream")
    axes[0, 0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def anyinit_table(found: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for key, row in found.items():
        name, draw = key.split(" ", 1)
        numbers = (row["error"], "") if "error" in row else (f"{row['growth']:.3g}", f"{row['gradient_ratio']:.3g}")
        rows.append((name, draw, *numbers))
    return table(("model", "initialization", "variance last/first", "gradient first/last"), rows)


def training(found: dict[str, Any]) -> list[str]:
    """By run, the mean loss of the first and of the last hundred steps."""
    rows = []
    count = 100 // found["window"]
    for name, losses in found["losses"].items():
        ends = (losses[:count], losses[-count:])
        rows.append((*name.split(), *(f"{sum(part) / len(part):.2f}" for part in ends)))
    lines = table(("recipe", "seed", "loss, first 100 steps", "last 100 steps"), rows)
    return [*lines, "", "![Loss of the three runs of each recipe](../figures/deep_decoder.png)"]


if __name__ == "__main__":
    typer.run(main)

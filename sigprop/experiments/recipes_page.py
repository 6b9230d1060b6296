"""The tables of `docs/recipes.md` from the data of the experiments: `python -m sigprop.experiments.recipes_page`.

Each table stands between `<!-- name -->` and `<!-- end name -->`; run it again after adding results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from sigprop.experiments.recipes_shared import DATA

POST = ("gradient_growth", "token_correlation", "sensitivity")
PRE = ("forward_growth", *POST)


def main(page: Path = Path("docs/recipes.md"), data: Path = DATA) -> None:
    """Write the three tables into the page."""
    text = page.read_text()
    text = replaced(text, "unit table", unit_table(results(data / "unit_profiles.json")))
    text = replaced(text, "recipe table", recipe_table(results(data / "recipe_table.json")))
    text = replaced(text, "anyinit table", anyinit_table(results(data / "anyinit_comparison.json")))
    page.write_text(text)


def results(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(path.read_text())["results"]


def replaced(text: str, name: str, table: list[str]) -> str:
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    return "\n".join([before + start, *table, end + after])


def unit_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """By model and depth: the worst sum, the last one, the gradient."""
    rows = [
        header("model, layers", "width, draws", "recipe", "worst deviation from 1", "last sum", "gradient first/last")
    ]
    for key in sorted(found, key=lambda text: (text.split()[0], int(text.split()[1]), text.split()[2])):
        name, depth, recipe = key.split()
        row = found[key]
        worst = f"{row['worst_deviation']:.3g} ± {row['its_standard_error']:.2g}"
        shape = f"{row['width']}, {row['seeds']}"
        numbers = (f"{row['last_variance']:.3g}", f"{row['gradient_ratio']:.3g}")
        rows.append(line(f"{name}, {depth}", shape, recipe, worst, *numbers))
    return rows


def recipe_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """By recipe, both placements; recipes that refuse both are left out."""
    headings = ["Post-LN: gradient", "correlation", "sensitivity", "Pre-LN: variance", "gradient"]
    rows = [header("recipe", *headings, "correlation", "sensitivity")]
    for name in dict.fromkeys(key.split(" ", 1)[1] for key in found):
        post, pre = (found.get(f"{placement} {name}", {"refused": ""}) for placement in ("post", "pre"))
        if "refused" not in post or "refused" not in pre:
            rows.append(line(name, *cells(post, POST), *cells(pre, PRE)))
    return rows


def anyinit_table(found: dict[str, dict[str, Any]]) -> list[str]:
    rows = [header("model", "draw", "variance last/first", "gradient first/last")]
    for key, row in found.items():
        name, draw = key.split(" ", 1)
        numbers = (row["error"], "") if "error" in row else (f"{row['growth']:.3g}", f"{row['gradient_ratio']:.3g}")
        rows.append(line(name, draw, *numbers))
    return rows


def cells(row: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
    return ["" if "refused" in row else f"{row[key]:.3g}" for key in keys]


def header(*names: str) -> str:
    return line(*names) + "\n" + line(*["---"] * len(names))


def line(*values: str) -> str:
    return "| " + " | ".join(values) + " |"


if __name__ == "__main__":
    typer.run(main)

"""Tables and figures of the training study: `python -m studies.prescription_page [NEW.jsonl ...]`.

Rows that the trainings wrote are first added to `docs/data/prescription_training.json` (short runs) and
`prescription_long.json` (3,000 steps); of a run that is there already nothing changes, unless it was cut and is longer
now. Then the tables between `<!-- name -->` and `<!-- end name -->` of the evidence page and the figures are written.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from studies.prescription_models import BASE_LAYERS, BASE_WIDTH, STEPS, with_usual
from studies.stored import read, replaced

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "evidence/prescription.md"
SHORT, LONG = DOCS / "data/prescription_training.json", DOCS / "data/prescription_long.json"
SCHEMES = {"default": "own init", "mup": "muP", "mup+linear": "muP, 1/depth", "ours": "unit + mup"}
EVEN = "ours:shaped=0"
"""Ours with tied tables and positions at the rate itself."""
OTHERS = {key: SCHEMES[key] for key in ("default", "mup", "ours")}
FAMILIES = {
    "llama": "Llama", "mixtral": "Mixtral, 4 experts", "gpt2": "GPT-2 (tied)", "postln": "OpenAI-GPT (Post-LN)",
    "vit": "ViT on Fashion-MNIST", "bert": "BERT, masked bytes", "gpt2-untied": "GPT-2, untied",
}  # fmt: skip
OPTIMIZERS = {"momentum": "SGD", "muon:rms": "Muon"}
BERT_STEPS, BERT_TOKENS, LONG_STEPS = 2000, 32, 3000
KEYS = ("family", "width", "layers", "scheme", "rate", "seed", "optimizer", "steps", "batch", "tokens")
KEPT = (*KEYS, "decay", "first", "middle", "last", "parameters", "groups")
LONG_KEPT = (*KEYS[:6], "steps", "done", "last", "curve")
Size = tuple[str, int, int]
Rates = dict[float, dict[int, float]]
Curves = dict[Size, dict[str, Rates]]


# -- rows


def key_of(row: dict[str, Any]) -> tuple:
    told = with_usual(row)
    return tuple(told[name] for name in KEYS)


def add(paths: list[Path]) -> None:
    """New rows among the stored ones."""
    new = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    new = [row for row in new if "error" not in row]
    is_long = [row["steps"] == LONG_STEPS for row in new]
    _stored(SHORT, [row for row, long in zip(new, is_long, strict=True) if not long and "last" in row], KEPT)
    _stored(LONG, [row for row, long in zip(new, is_long, strict=True) if long], LONG_KEPT)


def _stored(path: Path, new: list[dict[str, Any]], kept: tuple[str, ...]) -> None:
    found = read(path)
    rows = {key_of(row): row for row in found["rows"]}
    for row in new:
        before = rows.get(key_of(row))
        if before is None or before.get("done", math.inf) < row["done"]:
            rows[key_of(row)] = {name: row.get(name) if name in KEYS else _rounded(row.get(name)) for name in kept}
    ordered = sorted(rows.items(), key=lambda item: [str(part) for part in item[0]])
    lines = ",\n".join("  " + json.dumps(row) for _, row in ordered)
    head = json.dumps({name: value for name, value in found.items() if name != "rows"}, indent=1)
    path.write_text(f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n')


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) and value > 0.01 else value


def curves(optimizer: str = "adamw", steps: int = STEPS, tokens: int = 256) -> Curves:
    """Final losses by family and size, scheme, rate and seed."""
    found: Curves = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in read(SHORT)["rows"]:
        key = dict(zip(KEYS, key_of(row), strict=True))
        if (key["optimizer"], key["steps"], key["tokens"]) == (optimizer, steps, tokens):
            found[row["family"], row["layers"], row["width"]][row["scheme"]][row["rate"]][row["seed"]] = row["last"]
    for (_, layers, width), schemes in found.items():  # at the base a rule changes nothing
        if width == BASE_WIDTH and "default" in schemes:
            schemes["mup"] = schemes["default"]
        elif layers == BASE_LAYERS and "mup" in schemes:
            schemes["mup"] = schemes["mup+linear"] | schemes["mup"]
        if layers == BASE_LAYERS and "mup" in schemes:
            schemes["mup+linear"] = schemes["mup"]
    return found


# -- tables


def compared(rates: Rates) -> dict[float, float]:
    """By rate, the mean loss over the seeds that all rates were run with: other means would compare seeds too."""
    seeds = set.intersection(*map(set, rates.values()))
    return {rate: sum(found[seed] for seed in seeds) / len(seeds) for rate, found in sorted(rates.items())}


def best(rates: Rates) -> tuple[float, list[float]]:
    """The rate with the lowest loss, and its losses over all its seeds; neighbours are told apart by all they share."""
    losses = compared(rates)
    first = min(losses, key=losses.__getitem__)
    near = compared({rate: found for rate, found in rates.items() if first / 2.1 < rate < 2.1 * first})
    rate = min(near, key=near.__getitem__)
    return rate, list(rates[rate].values())


def against(schemes: dict[str, Rates], others: list[str]) -> str:
    """Our loss against the lowest of the others, each at its own best rate: equal within two standard errors."""
    rivals = [best(schemes[key])[1] for key in others if schemes.get(key)]
    if not rivals or not schemes.get("ours"):
        return ""
    ours, rival = best(schemes["ours"])[1], min(rivals, key=mean)
    share = mean(ours) / mean(rival) - 1
    error = math.sqrt(sum(deviation(losses) ** 2 / len(losses) for losses in (ours, rival))) / mean(rival)
    told = f"{abs(100 * share):.1f} % {'lower' if share < 0 else 'higher'}"
    if len(ours) > 1 and len(rival) > 1:
        return f"{told} ± {100 * error:.1f}" + (", equal" if abs(share) < 2 * error else "")
    return told


def mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def deviation(losses: list[float]) -> float:
    """Standard deviation over seeds; zero of one."""
    return math.sqrt(sum((x - mean(losses)) ** 2 for x in losses) / max(len(losses) - 1, 1))


def spread(losses: list[float]) -> str:
    """The mean, with the standard deviation over seeds."""
    return f"{mean(losses):.3f}" + (f" ± {deviation(losses):.3f}" if len(losses) > 1 else "")


def cell(rates: Rates | None) -> str:
    if not rates:
        return ""
    rate, losses = best(rates)
    edge = "*" if rate in (min(rates), max(rates)) else ""
    return f"{spread(losses)} at 2^{math.log2(rate):.0f}{edge}"


def table(found: Curves, schemes: dict[str, str], families: list[str], first: str = "") -> list[str]:
    """One line for every size; `first` is a further column's text."""
    begin = "| " + "optimizer | " * bool(first)
    lines = [
        begin + "model | layers | width | " + " | ".join(schemes.values()) + " | against the best other |",
        "|" + "---|" * (4 + bool(first) + len(schemes)),
    ]
    for family in families:
        for (_, layers, width), rates in sorted(item for item in found.items() if item[0][0] == family):
            cells = [cell(rates.get(scheme)) for scheme in schemes]
            cells.append(against(rates, [scheme for scheme in schemes if scheme != "ours"]))
            lead = f"| {first} | " if first else "| "
            lines.append(f"{lead}{FAMILIES[family]} | {layers} | {width} | " + " | ".join(cells) + " |")
    return lines


def rates_table(found: Curves, families: list[str]) -> list[str]:
    """Our loss at every rate around the best one, with the number of seeds."""
    powers = range(-11, -4)
    lines = ["| model | layers | width | " + " | ".join(f"2^{power}" for power in powers) + " |"]
    lines.append("|" + "---|" * (3 + len(powers)))
    for family in families:
        for (_, layers, width), schemes in sorted(item for item in found.items() if item[0][0] == family):
            rates = schemes.get("ours", {})
            told = [list(rates.get(2.0**power, {}).values()) for power in powers]
            cells = [f"{spread(losses)} ({len(losses)})" if losses else "" for losses in told]
            lines.append(f"| {FAMILIES[family]} | {layers} | {width} | " + " | ".join(cells) + " |")
    return lines


def shaping_table(found: Curves) -> list[str]:
    """Tied tables and positions at the rate of their size, at the rate itself, and the lowest of the other schemes."""
    lines = [
        "| model | layers | width | lowest of the others | at the rate itself | at the rate of their size | change |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for family in FAMILIES:
        for (_, layers, width), schemes in sorted(item for item in found.items() if item[0][0] == family):
            if "ours" not in schemes or EVEN not in schemes:
                continue
            rivals = [schemes[key] for key in OTHERS if key != "ours" and schemes.get(key)]
            lowest = min(rivals, key=lambda rates: mean(best(rates)[1])) if rivals else None
            cells = [cell(lowest), cell(schemes[EVEN]), cell(schemes["ours"])]
            cells.append(against({"ours": schemes["ours"], EVEN: schemes[EVEN]}, [EVEN]))
            lines.append(f"| {FAMILIES[family]} | {layers} | {width} | " + " | ".join(cells) + " |")
    return lines


def optimizer_table() -> list[str]:
    tables = [table(curves(key), OTHERS, list(FAMILIES), name) for key, name in OPTIMIZERS.items()]
    return [*tables[0], *(line for found in tables[1:] for line in found[2:])]


def long_table() -> list[str]:
    """Losses after 1,000 and 2,500 steps and at the end."""
    groups: dict[tuple, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for row in long_runs():
        groups[row["layers"], row["width"]][row["scheme"]].append(row)
    lines = ["| Llama | steps done | " + " | ".join(SCHEMES.values()) + " |", "|---|---|" + "---|" * len(SCHEMES)]
    for (layers, width), schemes in sorted(groups.items()):
        for steps in (1000, 2500, LONG_STEPS):
            cells = []
            for scheme in SCHEMES:
                rows = [row for row in schemes.get(scheme, []) if row["done"] >= steps]
                end, tenth = steps // 50, steps // 500
                ends = [sum(row["curve"][end - tenth : end]) / tenth for row in rows]
                rate = f" at 2^{math.log2(rows[0]['rate']):.0f}, {len(rows)} seeds" if rows else ""
                cells.append(spread(ends) + rate if ends else "")
            lines.append(f"| {layers} layers, width {width} | {steps:,} | " + " | ".join(cells) + " |")
    return [line.replace(", 1 seeds", ", 1 seed") for line in lines]


# -- figures


def figure(found: Curves, path: Path) -> None:
    """Loss against learning rate of all Llamas: one panel per scheme, one line per size."""
    sizes = sorted(size for size in found if size[0] == "llama")
    shown = {"default": "the model's own initialization", "ours": 'sp.plan(model, "unit", width="mup")'}
    drawing = Figure(figsize=(9, 4), layout="constrained")
    for axis, (scheme, title) in zip(drawing.subplots(1, 2, sharey=True), shown.items(), strict=True):
        for _, layers, width in sizes:
            rates = found["llama", layers, width].get(scheme, {})
            points = list(compared(rates).items())
            colour = f"C{(4, 16, 64).index(layers)}"
            shade = {128: 0.3, 256: 0.5, 512: 0.75, 1024: 1.0}[width]
            label = f"{layers} layers, width {width}"
            axis.plot(*zip(*points, strict=True), marker=".", color=colour, alpha=shade, label=label)
        axis.set_xscale("log", base=2)
        axis.set(title=title, xlabel="learning rate", ylim=(1.1, 2.6))
        axis.label_outer()
    drawing.axes[0].set_ylabel("loss of the last 30 of 300 steps")
    drawing.legend(*drawing.axes[1].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    drawing.savefig(path, dpi=150)


def long_runs() -> list[dict[str, Any]]:
    return read(LONG)["rows"]


def long_figure(path: Path) -> None:
    """Loss against step of the runs of 3,000 steps, with those that were cut."""
    colours = {"default": "C3", "mup": "C1", "mup+linear": "C2", "ours": "C0"}
    drawing = Figure(figsize=(9, 3.6), layout="constrained")
    for axis, (layers, width) in zip(drawing.subplots(1, 2, sharey=True), ((12, 512), (48, 256)), strict=True):
        for row in (row for row in long_runs() if row["layers"] == layers):
            steps = [50 * (place + 1) for place in range(len(row["curve"]))]
            label = SCHEMES[row["scheme"]] if row["seed"] == 0 else None
            axis.plot(steps, row["curve"], color=colours[row["scheme"]], lw=0.9, label=label)
        axis.set(title=f"{layers} layers, width {width}", xlabel="step", ylim=(0.65, 1.6))
        axis.legend(frameon=False)
        axis.label_outer()
    drawing.axes[0].set_ylabel("training loss, means over 50 steps")
    drawing.savefig(path, dpi=150)


def with_tables(text: str) -> str:
    """The page with the tables of what is stored."""
    found = curves()
    others = [family for family in FAMILIES if family not in ("llama", "bert", "gpt2-untied")]
    masked = curves(steps=BERT_STEPS, tokens=BERT_TOKENS)
    tables = {
        "llama table": table(found, SCHEMES, ["llama"]),
        "rates of ours": rates_table(found, ["llama", *others]),
        "other models": table(found, OTHERS, others),
        "bert table": table(masked, OTHERS, ["bert"]),
        "shaped tables": shaping_table({**found, **masked}),
        "optimizers": optimizer_table(),
        "long runs": long_table(),
    }
    for name, lines in tables.items():
        text = replaced(text, name, lines)
    return text


def main() -> None:
    add([Path(name) for name in sys.argv[1:]])
    PAGE.write_text(with_tables(PAGE.read_text()))
    figure(curves(), DOCS / "figures/prescription_training.png")
    long_figure(DOCS / "figures/prescription_long.png")


if __name__ == "__main__":
    main()

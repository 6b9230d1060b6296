"""dslm Table 10 in reduced size: ten ways to train a deep Transformer, each at its own best learning rate.

The paper trains BERT of 192 x 256 and 96 x 512 at one rate each; here decoders on bytes. Every method has the norm
placement that its authors made it for. All rates are tried with one seed, higher ones where the highest is the best;
the five best methods then have two more seeds at their best rate. The order of methods is compared, not perplexities.
"""

from __future__ import annotations

import math
from typing import Any

from studies.rate_runs import best_of
from studies.reproduction import ON_BYTES, Judgement, Reproduction, Row, Setting, told
from studies.text_runs import LETTERS, Method, Program, bytes_told

PAPER = {
    "DeepScaleLM": (12.9, 11.7),
    "SkipInit": (15.1, 13.1),
    "LayerScale": (13.2, 14.4),
    "DeepNorm": (14.4, 13.4),
    "Value-SkipInit": (18.8, 17.1),
    "DSInit": (15.9, math.inf),
    "Bamboo": (17.1, math.inf),
    "ADMIN": (math.inf, 25.2),
    "ReZero": (math.inf, math.inf),
    "Noci": (math.inf, math.inf),
}
"""Perplexities at 192 x 256 and 96 x 512; infinite: diverged."""
RECIPES: dict[str, tuple[str, str, bool]] = {
    "DeepScaleLM": ("deepscale", "post", False),
    "SkipInit": ("skipinit", "none", True),
    "LayerScale": ("layer_scale", "pre", True),
    "DeepNorm": ("deepnorm", "post", False),
    "Value-SkipInit": ("value_skipinit", "pre", True),
    "DSInit": ("ds_init", "post", False),
    "Bamboo": ("xavier", "pre", False),
    "ADMIN": ("admin", "post", False),
    "ReZero": ("rezero", "none", True),
    "Noci": ("noci", "post", False),
}
"""Recipe, norm placement, and whether its scales are new parameters."""
FULL = Program(tuple(2.0**-power for power in (13, 12, 11, 10, 9)), (0,), 16, 128, 600)
SMALL = Program((2.0**-9, 2.0**-7), (0,), 4, 64, 150)
MORE = (1, 2)
"""Seeds of the five best methods besides the first, at their best rate."""


def run(setting: Setting) -> dict[str, Any]:
    program = FULL if setting.is_full else SMALL
    depth, width = (48, 128) if setting.is_full else (24, 32)
    batches = program.batches(setting)
    methods = {
        label: Method(label, recipe, placement, depth, width, surgery)
        for label, (recipe, placement, surgery) in RECIPES.items()
    }
    found = {label: program.search(method, batches, setting) for label, method in methods.items()}
    for label in sorted(found, key=lambda label: best_of(found[label]).mean)[:5]:
        rate = best_of(found[label]).rate
        cells = [(rate, seed) for seed in MORE]
        again = program.train(methods[label], batches, setting, cells, name=f"{label}, again")
        found[label]["runs"] += again["runs"]
    return {**program.described(setting), "seeds": [*program.seeds, *MORE], "methods": list(found.values())}


def judge(data: dict[str, Any]) -> Judgement:
    best = {item["label"]: best_of(item) for item in data["methods"]}
    order = sorted(best, key=lambda label: best[label].mean)
    rows = tuple(
        Row(
            f"{place + 1}. {label}: loss at its best rate",
            ", ".join("diverged" if value == math.inf else f"{value}" for value in PAPER[label]),
            f"{told(best[label].losses)}, rate {best[label].rate:.2g}",
        )
        for place, label in enumerate(order)
    )
    learned = sum(found.mean < LETTERS for found in best.values())
    agreement = _rank_correlation(best)
    first = data["methods"][0]
    said = f"{first['layers']} layers of width {first['width']}, {bytes_told(data['tokens'])}. Rank "
    said += f"correlation with the paper's order {agreement:+.2f}; DeepScale is number "
    said += f"{order.index('DeepScaleLM') + 1} of {len(order)}."
    tops = {item["label"]: max(run["rate"] for run in item["runs"]) for item in data["methods"]}
    edges = [label for label in order if best[label].rate == tops[label]]
    said += f" Best at the highest rate tried: {', '.join(edges)}." if edges else ""
    missing = [label for label in PAPER if label not in best]
    said += f" Not run at this size: {', '.join(missing)}." if missing else ""
    if learned < len(order) / 2:
        why = f"Too small to tell: {learned} of {len(order)} methods know more than the frequencies of letters. {said}"
        return Judgement("too small to tell", why, rows)
    if order[0] == "DeepScaleLM" and agreement > 0.5:
        return Judgement("reproduced", said, rows)
    if agreement > 0.5:
        return Judgement("in order but not in size", said, rows)
    return Judgement("not reproduced", said, rows)


def _rank_correlation(best: dict[str, Any]) -> float:
    """Spearman's, between our losses and the paper's perplexities (the mean rank of its two columns)."""
    from scipy.stats import rankdata, spearmanr

    labels = list(best)
    columns = [rankdata([PAPER[label][column] for label in labels]) for column in (0, 1)]
    ours = [min(best[label].mean, 99.0) for label in labels]
    return float(spearmanr(columns[0] + columns[1], ours).statistic)


REPRODUCTION = Reproduction(
    id="dslm-table10",
    paper="dslm",
    place="Table 10, in reduced size",
    claim="Of ten methods for deep Transformers DeepScale reaches the lowest perplexity at both shapes; LayerScale, "
    "SkipInit and DeepNorm come next, ReZero, ADMIN and Noci diverge at one or both.",
    run=run,
    judge=judge,
    minutes=(5, 4),
    deviation=ON_BYTES
    + " Here beta2 is 0.95 and the warm-up 60 steps; tables start at 0.707 under DeepScale and at 0.02 under the other "
    "methods, with one rate for all parameters; no dropout.",
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)

"""dslm section 3.4 and Table 4's deepest shape: predictions over depths 1 to 768 and widths 128 to 6096.

Encoders, predicted and measured at initialization, 32 Zipf-like tokens, dropout 0.1: vanilla Pre-LN, and DeepScale
Post- and Pre-LN (whose beta^2 = 2/N needs more than two layers), over depth and over width. What is compared is the
gradient at the first block and the variance at the last.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import nn

from sigprop.blueprints import predict
from sigprop.blueprints.laws import block_rows, scaled_transformer
from sigprop.measurement import measure
from studies.reproduction import Judgement, Reproduction, Row, Setting
from studies.stack_accuracy import network

TOKENS, VOCABULARY = 32, 256
CASES = (("pre", "vanilla"), ("post", "deepscale"), ("pre", "deepscale"))


def run(setting: Setting) -> dict[str, Any]:
    depths, widths, seeds = (12, 96, 768), (512, 2048, 6096), 16
    if not setting.is_full:
        depths, widths, seeds = (12, 96), (256, 512), 8
    found = []
    for placement, scaling in CASES:
        least, few = (1, 2) if scaling == "vanilla" else (4, 4)
        for depth, width in [(depth, 128) for depth in (least, *depths)] + [(few, width) for width in widths]:
            cell = (placement, scaling, depth, width, seeds, setting.device)
            found.append(setting.part(f"{placement} {scaling} {depth} {width}", lambda cell=cell: compared(*cell)))
            print(found[-1], flush=True)
    return {"tokens": TOKENS, "seeds": list(range(seeds)), "rows": found}


def compared(placement: str, scaling: str, depth: int, width: int, seeds: int, device: str) -> dict[str, Any]:
    """Prediction and measurement, with its standard error, of one stack."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.multinomial(1.0 / torch.arange(1.0, VOCABULARY + 1), TOKENS, True, generator=generator)
    targets = ids.roll(-1).to(device)
    blueprint = scaled_transformer(
        scaling,
        depth,
        kind="encoder",
        norm_placement=placement,
        width=width,
        heads=width // (127 if width % 64 else 64),
        tokens=TOKENS,
        vocabulary=VOCABULARY,
        dropout=0.1,
        ids=ids,
        state="dense",
        attention_method="sampled",
    )
    profile = predict(blueprint)

    def drawn() -> nn.Module:
        with torch.device(device):
            return network(blueprint, profile, device)

    first, *_, last = [row.name for row in block_rows(profile.sites)] * 2
    real = measure(
        None, ids[None].to(device), lambda logits: nn.functional.cross_entropy(logits[0], targets),
        sites=sorted({first, last}), build=drawn, seeds=range(seeds),
    )  # fmt: skip
    predicted, measured = ({row.name: row for row in found.sites} for found in (profile, real))
    pairs = {"variance": last, "grad_variance": first}
    told = {
        column: [
            float(f"{value:.5g}")
            for value in (
                getattr(predicted[site], column), getattr(measured[site], column), measured[site].errors[column]
            )
        ]
        for column, site in pairs.items()
    }  # fmt: skip
    return {"placement": placement, "scaling": scaling, "depth": depth, "width": width, **told}


def judge(data: dict[str, Any]) -> Judgement:
    rows, errors, beyond = [], [], []
    for item in data["rows"]:
        where = f"{item['placement']}-LN, {item['scaling']}, {item['depth']} x {item['width']}"
        told = []
        for column, label in (("variance", "variance"), ("grad_variance", "gradient")):
            predicted, measured, error = item[column]
            off, noise = predicted / measured - 1.0, error / measured
            errors.append(abs(off))
            beyond += [where] if abs(off) > 0.1 + 2 * noise else []
            told.append(f"{label} {off:+.1%} ± {noise:.1%}")
        rows.append(Row(f"{where}: error of the prediction", "within 10 %", ", ".join(told)))
    deepest = max(item["depth"] for item in data["rows"])
    ends = [item for item in data["rows"] if item["depth"] == deepest and item["scaling"] == "deepscale"]
    largest = max(item["variance"][1] for item in ends)
    rows.append(Row(f"DeepScale, {deepest} layers: variance at the end", "at most 30", f"{largest:.3g}"))
    why = f"Median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, {len(data['seeds'])} draws of each."
    why += f" Beyond 10 % and two standard errors: {', '.join(dict.fromkeys(beyond))}." if beyond else ""
    if not beyond and largest <= 30 and math.isfinite(max(errors)):
        return Judgement("reproduced", why, tuple(rows))
    few = len(beyond) <= len(errors) // 10 and largest <= 30
    return Judgement("in order but not in size" if few else "not reproduced", why, tuple(rows))


REPRODUCTION = Reproduction(
    id="dslm-depth-width",
    paper="dslm",
    place="section 3.4, depths 1 to 768 and widths 128 to 6096",
    claim="The formulas are within 10 % for 1 to 768 layers and widths 128 to 6096; with beta^2 = 2/N the output's "
    "variance does not exceed 30 after 768 layers.",
    run=run,
    judge=judge,
    minutes=(4, 3),
    budget=(("seeds", 8.0),),
)

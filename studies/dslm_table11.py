"""dslm Table 11 in reduced size: what a trained Post-LN decoder loses when it is cast to 8-bit floats.

Weights and inputs of every linear layer are rounded to E5M2 or E4M3, larger values to the largest one; nothing is
rescaled. The paper casts BERT of 48 x 512. Scales stand in the forward pass, not folded into weights.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.research.lab.data import TextBatches
from studies.rate_runs import best_of
from studies.reproduction import MATRIX_XAVIER, ON_BYTES, Judgement, Reproduction, Row, Setting, mean_and_spread
from studies.text_runs import LETTERS, Method, Program, bytes_told

FULL = Program(tuple(2.0**-power for power in (14, 13, 12, 11)), (0, 1, 2), 16, 128, 1200)
SMALL = Program((2.0**-10, 2.0**-8), (0, 1, 2), 4, 64, 400)
FORMATS = {"E5M2": torch.float8_e5m2, "E4M3": torch.float8_e4m3fn}
PAPER = {"baseline": {"E5M2": 1.05, "E4M3": 0.11}, "DeepScale": {"E5M2": 0.49, "E4M3": 0.06}}
"""Rise of the loss: logarithms of 42.5 / 14.8, 16.5 / 14.8, 21.4 / 13.1 and 13.9 / 13.1."""
EVALUATED = 8


def run(setting: Setting) -> dict[str, Any]:
    program, shape = (FULL, (12, 128)) if setting.is_full else (SMALL, (6, 64))
    batches = program.batches(setting)
    methods = (
        Method("baseline", "xavier", "post", *shape),
        Method("DeepScale", "deepscale", "post", *shape, surgery=True),
    )
    look = partial(cast_losses, batches=replace(batches, seed=1), device=setting.device)
    found = [program.search(method, batches, setting, look=look) for method in methods]
    return {**program.described(setting), "methods": found}


@torch.no_grad()
def cast_losses(model: nn.Module, batches: TextBatches, device: str) -> dict[str, float | None]:
    """Mean loss over passages that were not trained on in this order: as trained, and in every format."""
    found = {}
    for name, kind in {"float32": None, **FORMATS}.items():
        cast = copy.deepcopy(model).eval()
        if kind is not None:
            _cast_(cast, kind)
        values = []
        for step in range(EVALUATED):
            batch = {key: value.to(device) for key, value in batches(step).items()}
            values.append(batches.loss(cast(batch["input_ids"]), batch).item())
        mean = sum(values) / len(values)
        found[name] = round(mean, 5) if mean < float("inf") else None
    return found


def _cast_(model: nn.Module, kind: torch.dtype) -> None:
    largest = torch.finfo(kind).max

    def rounded(values: Tensor) -> Tensor:
        return values.clamp(-largest, largest).to(kind).to(values.dtype)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.copy_(rounded(module.weight))
            module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]), *inputs[1:]))


def judge(data: dict[str, Any]) -> Judgement:
    rows, rises, best = [], {}, {}
    for item in data["methods"]:
        label, rate = item["label"], best_of(item).rate
        best[label] = best_of(item).mean
        seen = [run["seen"] for run in item["runs"] if run["rate"] == rate]
        for kind in FORMATS:
            values = [float("inf") if one[kind] is None else one[kind] - one["float32"] for one in seen]
            mean, spread = mean_and_spread(values)
            rises[label, kind] = mean
            what = f"{label}, {item['layers']} x {item['width']}: rise of the loss in {kind}"
            rows.append(Row(what, f"+{PAPER[label][kind]}", f"{mean:+.4f} ± {spread:.4f} ({len(values)} seeds)"))
    less = [rises["DeepScale", kind] < rises["baseline", kind] for kind in FORMATS]
    told = f"Trained on {bytes_told(data['tokens'])} to {best['baseline']:.3f} (baseline) and "
    told += f"{best['DeepScale']:.3f}. "
    if max(best.values()) > LETTERS:
        return Judgement(
            "too small to tell", f"Too small to tell. {told}One of the two learns no more than letters.", tuple(rows)
        )
    if all(less):
        half = all(rises["DeepScale", kind] < 0.75 * rises["baseline", kind] for kind in FORMATS)
        said = f"{told}DeepScale loses less in both formats{'' if half else ', but not by as much'}."
        return Judgement("reproduced" if half else "in order but not in size", said, tuple(rows))
    return Judgement("not reproduced", f"{told}DeepScale does not lose less in both formats.", tuple(rows))


REPRODUCTION = Reproduction(
    id="dslm-table11",
    paper="dslm",
    place="Table 11, in reduced size",
    claim="Cast to 8-bit floats as it is, a DeepScale model loses about half of what the baseline loses (perplexity "
    "13.1 to 21.4 in E5M2, 13.9 in E4M3; baseline 14.8 to 42.5 and 16.5).",
    run=run,
    judge=judge,
    minutes=(4, 1),
    deviation=ON_BYTES + " " + MATRIX_XAVIER,
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)

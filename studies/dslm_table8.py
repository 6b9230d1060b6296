"""dslm Table 8 in reduced size: an encoder-decoder four times deeper and half as wide, with DeepScale.

The paper translates speech; here spans of bytes are restored, Pre- and Post-LN. Each model has its own best rate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sigprop.api import plan as prescribe
from sigprop.models import build
from sigprop.research.lab.data import Spans, TextBatches, tokens_of
from sigprop.research.lab.many import train_many
from studies.effective_spans import VOCABULARY, SpanBatches
from studies.rate_runs import Cell, best_of, rows_of, settings_on
from studies.reproduction import ON_BYTES, Judgement, Reproduction, Row, Setting, told
from studies.text_runs import LETTERS

PAPER = {
    ("pre", "Xavier"): "24.9", ("pre", "DeepScale"): "25.6", ("post", "Xavier"): "21.9", ("post", "DeepScale"): "23.8",
}  # fmt: skip
"""BLEU; higher is better."""


def network(placement: str, depth: int, width: int, context: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build(
        "transformer", kind="encoder_decoder", norm_placement=placement, depth=depth, width=width,
        heads=max(width // 32, 1), context=context, vocabulary=VOCABULARY, activation="relu",
    )  # fmt: skip


def run(setting: Setting) -> dict[str, Any]:
    shallow, deep, passages, length, steps, seeds = (3, 256), (12, 128), 32, 96, 500, (0, 1)
    if not setting.is_full:
        shallow, deep, passages, length, steps, seeds = (2, 64), (8, 32), 8, 64, 200, (0,)
    text = TextBatches(tokens_of(setting.text()), passages, length, objective=Spans(VOCABULARY - 2, share=0.3))
    batches, found = SpanBatches(text), []
    for placement in ("pre", "post"):
        powers = (12, 11, 10, 9) if placement == "pre" else (13, 12, 11, 10)
        cells = [(2.0**-power, seed) for power in powers for seed in seeds]
        for label, recipe, shape in (("Xavier", "xavier", shallow), ("DeepScale", "deepscale", deep)):
            work = (placement, label, recipe, shape, length, cells, steps, batches, setting.device)
            found.append(setting.part(f"{placement} {label}", lambda work=work: _trained(*work)))
            print(placement, label, best_of(found[-1]), flush=True)
    return {"steps": steps, "batch": [passages, length], "text": setting.text_name, "seeds": seeds, "models": found}


def _trained(
    placement: str, label: str, recipe: str, shape: tuple[int, int], length: int, cells: list[Cell],
    steps: int, batches: SpanBatches, device: str,
) -> dict[str, Any]:  # fmt: skip
    example = {key: value[:1] for key, value in batches(0).items() if key != "labels"}
    plan = prescribe(network(placement, *shape, length, 0), recipe, batch=example)
    models = []
    for _, seed in cells:
        models.append(plan.apply_(network(placement, *shape, length, seed), torch.Generator().manual_seed(seed)))
    settings = settings_on(device, steps, weight_decay=0.01)
    runs = train_many(models, batches, [rate for rate, _ in cells], settings, plan=plan)
    return {"placement": placement, "label": label, "layers": shape[0], "width": shape[1], "runs": rows_of(cells, runs)}


def judge(data: dict[str, Any]) -> Judgement:
    best = {(item["placement"], item["label"]): best_of(item) for item in data["models"]}
    rows = tuple(
        Row(
            f"{item['placement']}-LN, {item['label']}, {item['layers']} + {item['layers']} x {item['width']}: loss",
            f"BLEU {PAPER[item['placement'], item['label']]}",
            told(best[item["placement"], item["label"]].losses),
        )
        for item in data["models"]
    )
    gains = [best[kind, "Xavier"].mean - best[kind, "DeepScale"].mean for kind in ("pre", "post")]
    said = (
        f"{data['steps']} steps. From the shallow model's loss the deep, thin one's is {-gains[0]:+.3f} (Pre-LN) and "
    )
    said += f"{-gains[1]:+.3f} (Post-LN) away."
    if min(found.mean for found in best.values()) > LETTERS:
        return Judgement("too small to tell", f"Too small to tell: nothing learns more than letters. {said}", rows)
    if min(gains) > 0:
        return Judgement("reproduced", said, rows)
    return Judgement("in order but not in size" if max(gains) > 0 else "not reproduced", said, rows)


REPRODUCTION = Reproduction(
    id="dslm-table8",
    paper="dslm",
    place="Table 8, in reduced size",
    claim="An encoder-decoder four times deeper and half as wide with DeepScale is better than the vanilla one, Pre-LN "
    "(25.6 and 24.9 BLEU) and Post-LN (23.8 and 21.9).",
    run=run,
    judge=judge,
    minutes=(3, 1),
    deviation=ON_BYTES,
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)

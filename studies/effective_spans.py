"""effective, part II.2 in reduced size: an encoder-decoder on span denoising, standard against neural-tangent scaling.

Standard: embeddings of standard deviation 0.02, one learning rate. Neural-tangent: word embeddings of unit variance,
the output times n^-1/2, and rates of word and position embeddings n times that of the other weights. As in the paper
weights start alike, nothing has a bias, gains of norms are not trained, embedding and readout are one matrix; the paper
trains BART-large (12 + 12 layers of width 1024) for 200,000 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.losses import LossFunction
from sigprop.models import build
from sigprop.plans import ParameterPlan, Plan, ScalePlan
from sigprop.research.lab.data import Spans, TextBatches, tokens_of
from sigprop.research.lab.many import train_many
from sigprop.results.init import Init
from studies.rate_runs import Cell, best_of, rows_of, settings_on
from studies.reproduction import Judgement, Reproduction, Row, Setting, mean_and_spread, told
from studies.text_runs import LETTERS

BYTES, SENTINELS = 256, 32
VOCABULARY = BYTES + SENTINELS + 1
START = VOCABULARY - 1
STRATEGIES = ("standard", "neural-tangent")


@dataclass(frozen=True)
class SpanBatches:
    """Spans of bytes to restore: what the encoder reads, what the decoder reads, what is asked."""

    text: TextBatches

    def __call__(self, step: int) -> dict[str, Tensor]:
        batch = self.text(step)
        asked = batch["labels"]
        before = torch.cat((torch.full_like(asked[:, :1], START), asked[:, :-1]), dim=1)
        return {"tokens": batch["input_ids"], "target_tokens": before, "labels": asked}

    @property
    def loss(self) -> LossFunction:
        return self.text.loss


def network(width: int, depth: int, context: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = build(
        "transformer", kind="encoder_decoder", width=width, depth=depth, heads=max(width // 32, 1), context=context,
        vocabulary=VOCABULARY, tied_head=True, bias=False,
    )  # fmt: skip
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.requires_grad_(False)
    return model


def plan_of(strategy: str, model: nn.Module, width: int) -> Plan:
    """0.02 at width 1024, the same variance times width at others."""
    tangent, rows = strategy == "neural-tangent", []
    for name, parameter in model.named_parameters():
        init, rate = Init("normal", std=0.02 * (1024 / width) ** 0.5), 1.0
        if "norm" in name:
            init = Init("constant", value=0.0 if name.endswith("bias") else 1.0)
        elif "embedding" in name:
            std = 1.0 if tangent and name.startswith("token") else 0.02
            init, rate = Init("normal", std=std), width if tangent else 1.0
        rows.append(ParameterPlan(name, tuple(parameter.shape), init, lr=rate))
    return Plan(rows, scales=[ScalePlan("head", width**-0.5, "output")] if tangent else [])


def run(setting: Setting) -> dict[str, Any]:
    width, depth, passages, length, steps = 256, 4, 32, 96, 600
    powers, seeds = range(-13, -8), (0, 1)
    if not setting.is_full:
        width, depth, passages, length, steps, powers, seeds = 64, 2, 8, 64, 200, range(-10, -5), (0, 1)
    text = TextBatches(tokens_of(setting.text()), passages, length, objective=Spans(VOCABULARY - 2, share=0.3))
    cells = [(2.0**power, seed) for power in powers for seed in seeds]
    found = []
    for strategy in STRATEGIES:
        work = (strategy, width, depth, length, cells, steps, SpanBatches(text), setting.device)
        found.append(setting.part(strategy, lambda work=work: _trained(*work)))
        print(strategy, best_of(found[-1]), flush=True)
    sizes = {"width": width, "depth": depth, "steps": steps, "batch": [passages, length], "text": setting.text_name}
    return {**sizes, "rates": [2.0**power for power in powers], "seeds": seeds, "strategies": found}


def _trained(
    strategy: str, width: int, depth: int, length: int, cells: list[Cell], steps: int,
    batches: SpanBatches, device: str,
) -> dict[str, Any]:  # fmt: skip
    plan = plan_of(strategy, network(width, depth, length, 0), width)
    models = []
    for _, seed in cells:
        models.append(plan.apply_(network(width, depth, length, seed), torch.Generator().manual_seed(seed)))
    settings = settings_on(device, steps, decay="linear", final=0.0, weight_decay=0.0, clip=0.1)
    runs = train_many(models, batches, [rate for rate, _ in cells], settings, plan=plan)
    return {"strategy": strategy, "runs": rows_of(cells, runs)}


def judge(data: dict[str, Any]) -> Judgement:
    best = {item["strategy"]: best_of(item) for item in data["strategies"]}
    papers = {"standard": "higher", "neural-tangent": "lower; best rate of the weights the same"}
    rows = tuple(
        Row(f"{name}: loss at its best rate", papers[name], f"{told(found.losses)}, rate 2^{math.log2(found.rate):.0f}")
        for name, found in best.items()
    )
    standard, tangent = (best[name] for name in STRATEGIES)
    gain = standard.mean - tangent.mean
    noise = math.hypot(mean_and_spread(standard.losses)[1], mean_and_spread(tangent.losses)[1])
    apart = abs(math.log2(standard.rate / tangent.rate))
    edges = [name for name, found in best.items() if found.rate in (data["rates"][0], data["rates"][-1])]
    why = f"{data['depth']} + {data['depth']} layers of width {data['width']}, {data['steps']} steps. Neural-tangent "
    why += f"scaling ends {gain:+.3f} below; the best rates are a factor {2**apart:g} apart."
    why += f" At the edge of the rates: {', '.join(edges)}." if edges else ""
    if min(standard.mean, tangent.mean) > LETTERS:
        return Judgement("too small to tell", f"Too small to tell: nothing learns more than letters. {why}", rows)
    if gain > 2 * noise and apart <= 1:
        return Judgement("reproduced", why, rows)
    return Judgement("in order but not in size" if gain > 0 else "not reproduced", why, rows)


REPRODUCTION = Reproduction(
    id="effective-spans",
    paper="effective",
    place="part II.2, in reduced size",
    claim="Neural-tangent scaling of embeddings and rates trains an encoder-decoder to a lower span-denoising loss, "
    "and the best rate of the other weights stays what it is.",
    run=run,
    judge=judge,
    minutes=(3, 1),
    deviation="Two layers of width 64 on bytes.",
    budget=(("steps", 1000.0), ("seeds", 3.0)),
)

"""Models and illnesses that no rule of `check` was made or mended on: five healthy models, ten planted illnesses.

    python -m studies.check_held_out [seeds]      # writes docs/data/check_held_out.json

They were written down first and looked at once. Whoever mends a rule on them must write down new ones.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sigprop.checks import check
from sigprop.models import build
from studies.check_false_alarms import alarms
from studies.check_models import TOKENS, WIDTH, Illness, changed, gpt2, hugging_face, llama, mixtral, t5, vit

STORED = Path("docs/data/check_held_out.json")
SEEDS = 20


def neox(layers: int = 5) -> nn.Module:
    return hugging_face(
        "GPTNeoXForCausalLM", num_hidden_layers=layers, hidden_size=WIDTH, intermediate_size=4 * WIDTH,
        num_attention_heads=4, vocab_size=512, max_position_embeddings=TOKENS,
    )  # fmt: skip


def qwen2(layers: int = 5) -> nn.Module:
    return hugging_face(
        "Qwen2ForCausalLM", num_hidden_layers=layers, hidden_size=WIDTH, intermediate_size=3 * WIDTH,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=512,
    )  # fmt: skip


def opt() -> nn.Module:
    return hugging_face(
        "OPTForCausalLM", num_hidden_layers=5, hidden_size=WIDTH, ffn_dim=4 * WIDTH, num_attention_heads=4,
        vocab_size=512, word_embed_proj_dim=WIDTH, max_position_embeddings=TOKENS,
    )  # fmt: skip


def convnext() -> nn.Module:
    return hugging_face(
        "ConvNextForImageClassification", hidden_sizes=[32, 64, 64, 128], depths=[2, 2, 3, 2], image_size=64,
        num_labels=10,
    )  # fmt: skip


def bert_classifier() -> nn.Module:
    return hugging_face(
        "BertForSequenceClassification", num_hidden_layers=4, hidden_size=WIDTH, num_attention_heads=4,
        intermediate_size=4 * WIDTH, vocab_size=512, max_position_embeddings=TOKENS, num_labels=10,
    )  # fmt: skip


def torch_encoder() -> nn.Module:
    """torch's own encoder layers, each built anew."""
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, norm_first=True, batch_first=True) for _ in range(5)]
    return nn.Sequential(nn.Embedding(512, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 512)).eval()


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "GPT-NeoX (parallel branches, rotary)": neox,
    "Qwen2 (biased queries, grouped keys)": qwen2,
    "ConvNeXt (layer scale)": convnext,
    "torch.nn.TransformerEncoderLayer": torch_encoder,
    "reference Mixer": lambda: build("mixer", depth=4, image=16),
}


def _plain_convolutions() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(12):
        layer = nn.Conv2d(32, 32, 3, padding=1)
        nn.init.normal_(layer.weight, 0.0, 2.5 / (32 * 9) ** 0.5)
        nn.init.zeros_(layer.bias)
        layers += [nn.ReLU(), layer]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def _wide_queries() -> nn.Module:
    model = qwen2()
    for name, weight in model.named_parameters():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weight.data.mul_(40.0)
    return model


def _copied_layer() -> nn.Module:
    model = neox()
    source = model.get_parameter("gpt_neox.layers.1.attention.dense.weight")
    return changed(model, "gpt_neox.layers.3.attention.dense.weight", lambda w: w.copy_(source))


def _wide_expert() -> nn.Module:
    model = mixtral()
    name = next(name for name, _ in model.named_parameters() if "layers.2" in name and "experts.gate_up_proj" in name)
    return changed(model, name, lambda w: w[3].mul_(4.0))


ILLNESSES = [
    Illness("a down projection of Llama three times too wide",
            lambda: changed(llama(), "model.layers.2.mlp.down_proj.weight", lambda w: w.mul_(3.0)),
            "odd_sibling", "layers.2.mlp.down_proj"),
    Illness("one expert of Mixtral four times too wide", _wide_expert, "odd_part", "layers.2"),
    Illness("values of one cross attention of T5 all zero",
            lambda: changed(t5(), "decoder.block.1.layer.1.EncDecAttention.v.weight", lambda w: w.zero_()),
            "zeros_among_siblings", "block.1.layer.1.EncDecAttention.v"),
    Illness("one entry of ViT's patches 500 standard deviations out",
            lambda: changed(vit(), "vit.embeddings.patch_embeddings.projection.weight",
                            lambda w: w.view(-1)[5].fill_(500.0 * float(w.std()))),
            "outliers", "patch_embeddings"),
    Illness("a layer of GPT-NeoX that is a copy of another", _copied_layer, "equal_layers", "layers.3.attention.dense"),
    Illness("queries and keys of Qwen2 forty times too wide", _wide_queries, "attention_saturated", "self_attn"),
    Illness("twelve convolutions without a norm, gain 2.5", _plain_convolutions, "gradient_explodes", ""),
    Illness("a classifier of BERT drawn too wide",
            lambda: changed(bert_classifier(), "classifier.weight", lambda w: w.mul_(200.0)),
            "initial_loss", "classifier"),
    Illness("OPT's words a thousand times smaller than its positions",
            lambda: changed(opt(), "model.decoder.embed_tokens.weight", lambda w: w.mul_(1e-3)),
            "embedding_scale", "embed_tokens"),
    Illness("a matrix of GPT-2 with a mean",
            lambda: changed(gpt2(), "transformer.h.1.mlp.c_fc.weight", lambda w: w.add_(0.01)),
            "nonzero_mean", "h.1.mlp.c_fc"),
]  # fmt: skip


def examined(illness: Illness) -> dict[str, Any]:
    """What the whole check says of one illness."""
    torch.manual_seed(0)
    report = check(illness.make(), tokens=TOKENS, prescription=False)
    told = [item for item in report.findings if item.severity != "note"]
    right = [item for item in told if item.name == illness.finding]
    at_place = [name for item in right for name in (*item.sites, *item.parameters) if illness.place in name]
    return {
        "illness": illness.title,
        "expected": illness.finding,
        "found": bool(right),
        "at its place": bool(at_place),
        "told": [[item.severity, item.name, item.title] for item in told],
    }


def study(seeds: int = SEEDS) -> dict[str, Any]:
    logging.disable(logging.WARNING)
    found: dict[str, Any] = {"command": f"python -m studies.check_held_out {seeds}", "date": str(date.today())}
    found["illnesses"] = [examined(illness) for illness in ILLNESSES]
    found["healthy"] = {}
    for name, make in HEALTHY.items():
        row = found["healthy"][name] = {"checked": seeds, "alarms": []}
        for seed in range(seeds):
            torch.manual_seed(seed)
            row["alarms"] += [[seed, item.severity, item.name, item.title] for item in alarms(make(), seed)]
        STORED.write_text(json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    made = study(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS)
    print(sum(row["found"] and row["at its place"] for row in made["illnesses"]), "of", len(made["illnesses"]), "found")
    print(sum(bool(row["alarms"]) for row in made["healthy"].values()), "of", len(made["healthy"]), "with alarms")

"""Predicted against measured attention scores: variance, entropy and largest weight in ten architectures.

    python -m studies.check_scores [seeds]      # writes docs/data/check_scores.json

Predictions are for the laws that a class draws from, measurements over initializations of their own.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from sigprop.capture import predict
from sigprop.distributions import build
from sigprop.inputs import made_up_batch
from sigprop.measurement import measure
from studies.check_models import TOKENS, bert, gpt2, hugging_face, llama, mixtral, t5, transformer, vit
from studies.stored import stamp, write

STORED = Path("docs/data/check_scores.json")
SEEDS = 32
ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "reference decoder": lambda: transformer(depth=4),
    "reference Post-LN encoder": lambda: transformer(kind="encoder", norm_placement="post", depth=4),
    "reference rotary": lambda: transformer(positions="rotary", norm="rms_norm", activation="swiglu", depth=4),
    "GPT-2": lambda: gpt2(4),
    "Llama": lambda: llama(4),
    "BERT": lambda: bert(4),
    "ViT": vit,
    "Mixtral": mixtral,
    "T5": t5,
    "OPT": lambda: hugging_face(
        "OPTForCausalLM", num_hidden_layers=4, hidden_size=64, ffn_dim=256, num_attention_heads=4, vocab_size=512,
        word_embed_proj_dim=64, max_position_embeddings=TOKENS,
    ),
}  # fmt: skip


def compared(make: Callable[[], nn.Module], seeds: int) -> list[dict[str, Any]]:
    """One row per attention."""
    model = build(make)
    batch = made_up_batch(model, TOKENS)
    predicted = {row.name: row for row in predict(model, batch, scores=True)}
    rows = []
    for row in measure(None, batch, build=make, seeds=seeds, scores=True, backward=False):
        if "entropy" not in row.extras or row.name not in predicted:
            continue
        mine = predicted[row.name]
        rows.append(
            {
                "site": row.name,
                "variance": [mine.variance, row.variance, row.errors["variance"]],
                "entropy": [mine.extras["entropy"], row.extras["entropy"], row.errors["entropy"]],
                "largest_weight": [mine.extras["largest_weight"], row.extras["largest_weight"]],
            }
        )
    return rows


def study(seeds: int = SEEDS) -> dict[str, Any]:
    logging.disable(logging.WARNING)
    found = stamp(f"check_scores {seeds}", architectures={})
    for name, make in ARCHITECTURES.items():
        found["architectures"][name] = compared(make, seeds)
        write(STORED, found)
        rows = found["architectures"][name]
        off = [abs(row["variance"][0] / row["variance"][1] - 1) for row in rows]
        nats = [abs(row["entropy"][0] - row["entropy"][1]) for row in rows]
        print(name, len(rows), f"variance {max(off, default=9):.3f}", f"entropy {max(nats, default=9):.4f}", flush=True)
    return found


if __name__ == "__main__":
    study(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS)

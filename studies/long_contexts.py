"""What it costs to continue a long context from a short one: predictions from 128 tokens against the real model.

`python -m studies.long_contexts llama 512` prints, over all rows, the median, the 90th percentile and the worst
logarithm of predicted over measured, cut at 128 tokens and continued.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sigprop.measure import measure
from sigprop.results import Profile
from sigprop.trace import predict

VOCABULARY, WIDTH, FOLLOWED, SEEDS = 500, 64, 128, 10
Columns = dict[tuple[str, str], float]


def model(kind: str, length: int) -> Callable[[], nn.Module]:
    import transformers

    small: dict[str, Any] = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "num_attention_heads": 4}
    small |= {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "max_position_embeddings": length}
    if kind == "llama":
        config: Any = transformers.LlamaConfig(**small)
        return lambda: transformers.LlamaForCausalLM(config)
    if kind == "bert":
        config = transformers.BertConfig(**small)
        return lambda: transformers.BertForMaskedLM(config).eval()
    config = transformers.GPT2Config(
        n_layer=2, n_embd=WIDTH, n_head=4, vocab_size=VOCABULARY, n_positions=length, tie_word_embeddings=False
    )
    return lambda: transformers.GPT2LMHeadModel(config).eval()


def columns(profile: Profile) -> Columns:
    """Variances and gradients by row."""
    found = {(row.name, name): getattr(row, name) for row in profile for name in ("variance", "grad_variance")}
    return found | {(row.name, "grad_second_moment"): row.grad_second_moment for row in profile.parameters}


def summary(predicted: Columns, actual: Columns) -> str:
    shared = [key for key in actual if predicted.get(key, 0.0) > 0 and actual[key] > 1e-14]
    errors = sorted(abs(math.log(predicted[key] / actual[key])) for key in shared)
    return f"median {statistics.median(errors):.3f}, 90 % {errors[int(0.9 * len(errors))]:.3f}, worst {errors[-1]:.3f}"


def main() -> None:
    kind, length = sys.argv[1], int(sys.argv[2])
    build = model(kind, length)
    ids = torch.randint(VOCABULARY, (1, length), generator=torch.Generator().manual_seed(1))
    batch, short = ({"input_ids": part, "labels": part} for part in (ids, ids[:, :FOLLOWED]))
    torch.manual_seed(0)
    made = build()
    actual = columns(measure(None, batch, build=build, seeds=SEEDS))
    print(f"{kind}, {length} tokens from {FOLLOWED}")
    print("  cut:      ", summary(columns(predict(made, short)), actual))
    print("  continued:", summary(columns(predict(made, batch, tokens=FOLLOWED)), actual))


if __name__ == "__main__":
    main()

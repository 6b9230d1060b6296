"""Measure a GPT-2 at initialization: variance along depth, attention, chi_J, what low precision would lose.

python examples/measure_gpt2.py [layers] [seeds]
"""

from __future__ import annotations

import sys

from transformers import GPT2Config, GPT2LMHeadModel

from sigprop.measurement import jacobian_profile, measure
from sigprop.models import sample_text, text_batch


def build(layers: int) -> GPT2LMHeadModel:
    config = GPT2Config(
        n_layer=layers, n_embd=128, n_head=4, vocab_size=256, n_positions=128, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config).eval()


def main(layers: int = 6, seeds: int = 4) -> None:
    tokens = text_batch(sample_text(), batch=4, tokens=128)
    batch = {"input_ids": tokens, "labels": tokens}

    profile = measure(None, batch, build=lambda: build(layers), seeds=seeds, scores=True, formats=True)
    print("block  variance          token corr.       gradient variance")
    for layer in range(layers):
        row = profile[f"transformer.h.{layer}"]
        cells = [
            f"{getattr(row, column):8.3g} ± {row.errors[column]:<7.1g}"
            for column in ("variance", "token_correlation", "grad_variance")
        ]
        print(f"{layer:5d}  {''.join(cells)}")

    attention = profile["transformer.h.0.attn.scores"]
    lost = profile[f"transformer.h.{layers - 1}"].extras["grad_fp16_underflow"]
    print(f"first attention: score variance {attention.variance:.3g}, entropy {attention.extras['entropy']:.3f}")
    print(f"gradients of the last block that fp16 would round to zero: {lost:.1%}")

    growth = jacobian_profile(build(layers), batch, probes=5)
    print("chi_J by block:", " ".join(f"{row.value:.3f}" for row in growth))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

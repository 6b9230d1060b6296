"""Cost of predicting models from their configs, forward and backward, T = 128, parameters never allocated."""

from __future__ import annotations

import resource
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from sigprop import predict


def llama(layers: int) -> Any:
    """Llama-70B, with a choice of depth."""
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        architectures=["LlamaForCausalLM"],
    )


def gpt2(layers: int) -> Any:
    from transformers import GPT2Config

    return GPT2Config(n_layer=layers, n_embd=768, n_head=12, architectures=["GPT2LMHeadModel"])


def timed(config: Any) -> tuple[float, float]:
    """Elapsed and processor seconds of one prediction."""
    start, work = time.perf_counter(), time.process_time()
    predict(config)
    return time.perf_counter() - start, time.process_time() - work


def main() -> None:
    torch.set_num_threads(2)
    timed(llama(1))
    rows = [
        ("Llama-70B config, 80 layers", *timed(llama(80)), "10 s, 3 GB"),
        ("the same with 40 layers", *timed(llama(40)), "half: cost linear in depth"),
    ]
    for layers in (25, 50, 100, 200):
        target = "10 s" if layers == 200 else f"{layers}/200 of it"
        rows.append((f"GPT-2-like, {layers} layers, width 768", *timed(gpt2(layers)), target))
    table = Table("model", "seconds", "processor seconds", "target")
    for name, seconds, work, target in rows:
        table.add_row(name, f"{seconds:.1f}", f"{work:.1f}", target)
    console = Console()
    console.print(table)
    console.print(f"largest resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()

"""Cost of measuring: a measured step against a plain one, and a Jacobian profile against full backward passes.

python -m bench.measure [cpu|cuda]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from sigprop.measure import jacobian_profile, measure
from sigprop.models import build


def gpt2(device: str, layers: int = 8, width: int = 256) -> nn.Module:
    """Hugging Face's GPT-2 with the full vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64)).to(device)


def seconds(work: Callable[[], object], device: str) -> float:
    """Processor time on a CPU, which other programs disturb less; elapsed time on a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    start = time.process_time()
    work()
    return time.process_time() - start


def alternate(left: Callable[[], object], right: Callable[[], object], device: str, rounds: int) -> list[float]:
    """Least seconds of both, run in turns so that they meet the same machine."""
    left(), right()
    times = [(seconds(left, device), seconds(right, device)) for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


def overhead(device: str, layers: int, width: int, batch_size: int, length: int) -> tuple[float, float]:
    """A plain forward and backward pass, and one measured at every module output with token correlation."""
    torch.manual_seed(0)
    model = gpt2(device, layers, width)
    tokens = torch.randint(0, 50257, (batch_size, length), device=device)
    batch = {"input_ids": tokens, "labels": tokens}

    def plain() -> None:
        model.zero_grad(set_to_none=True)
        model(**batch).loss.backward()

    def measured() -> None:
        model.zero_grad(set_to_none=True)
        measure(model, batch)

    first, second = alternate(plain, measured, device, 7 if device == "cpu" else 30)
    return first, second


def profile_gain(device: str, probes: int = 5) -> tuple[float, float]:
    """All chi_J of a 50-layer, width-500 MLP: one full backward pass per probe and layer, and the local probes."""
    torch.manual_seed(0)
    model = build("mlp", depth=50, width=500).to(device)
    inputs = torch.randn(64, 784, device=device)

    def full() -> None:
        h = model.input(inputs.clone().requires_grad_())
        outputs = [h := block(h) for block in model.blocks]
        for output in outputs:
            for _ in range(probes):
                output.backward(torch.randn_like(output), retain_graph=True)

    def local() -> None:
        jacobian_profile(model, inputs, probes=probes)

    first, second = alternate(full, local, device, 1 if device == "cpu" else 3)
    return first, second


def main(device: str = "cpu") -> None:
    """Print both ratios."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    table = Table(title=f"measure, {device}")
    for heading in ("what", "plain or full (s)", "sigprop (s)", "ratio", "target"):
        table.add_column(heading)
    sizes = [(8, 256, 4, 256)] if device == "cpu" else [(8, 256, 4, 256), (12, 768, 16, 512)]
    for layers, width, batch, length in sizes:
        plain, measured = overhead(device, layers, width, batch, length)
        what = f"GPT-2 {layers} x {width}, batch {batch} x {length}, step"
        table.add_row(what, f"{plain:.4f}", f"{measured:.4f}", f"{measured / plain:.2f}x", "<= 1.15x")
    full, local = profile_gain(device)
    faster = f"{full / local:.0f}x faster"
    table.add_row("chi_J of 50 x 500 MLP, 5 probes", f"{full:.4f}", f"{local:.4f}", faster, ">= 20x")
    Console().print(table)
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Cost of measuring: a measured step against a plain one, and a Jacobian profile against full backward passes.

python -m bench.measure [cpu|cuda]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from sigprop import jacobian_profile, measure
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


class Pair(NamedTuple):
    """Least seconds of two pieces of work; median of the second over the first, round by round, and quartiles."""

    first: float
    second: float
    ratio: float
    quartiles: tuple[float, float]


def alternate(first: Callable[[], object], second: Callable[[], object], device: str, rounds: int) -> Pair:
    """Both in turns, so that they meet the same machine."""
    first(), second()
    times = [(seconds(first, device), seconds(second, device)) for _ in range(rounds)]
    least = [min(column) for column in zip(*times, strict=True)]
    ratios = [right / left for left, right in times]
    low, middle, high = statistics.quantiles(ratios, n=4) if rounds > 1 else ratios * 3
    return Pair(least[0], least[1], middle, (low, high))


def overhead(device: str, layers: int, width: int, batch_size: int, length: int, rounds: int) -> Pair:
    """A plain forward and backward pass, and one measured at every module output with token correlation."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 50257, (batch_size, length), device=device)
    return compared(gpt2(device, layers, width), {"input_ids": tokens, "labels": tokens}, device, rounds)


def image_overhead(kind: str, rounds: int) -> Pair:
    """The same for a ViT of 6 layers of width 192, or a ResNet-18, on 16 images of 64 x 64."""
    import transformers

    torch.manual_seed(0)
    if kind == "ViT":
        config = transformers.ViTConfig(
            hidden_size=192,
            num_hidden_layers=6,
            num_attention_heads=3,
            intermediate_size=768,
            image_size=64,
            patch_size=8,
        )
        model: nn.Module = transformers.ViTForImageClassification(config)
    else:
        sizes = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
        model = transformers.ResNetForImageClassification(transformers.ResNetConfig(layer_type="basic", **sizes))
    batch = {"pixel_values": torch.randn(16, 3, 64, 64), "labels": torch.zeros(16, dtype=torch.long)}
    return compared(model, batch, "cpu", rounds)


def compared(model: nn.Module, batch: dict[str, torch.Tensor], device: str, rounds: int) -> Pair:
    """A plain step of a model with a loss of its own, and a measured one; each lets its own gradients go."""

    def plain() -> None:
        model(**batch).loss.backward()
        model.zero_grad(set_to_none=True)

    def measured() -> None:
        measure(model, batch)

    return alternate(plain, measured, device, rounds)


def profile_gain(device: str, probes: int = 5) -> Pair:
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

    return alternate(local, full, device, 1 if device == "cpu" else 3)


def ratios(device: str = "cpu") -> None:
    """Print what a measured step costs beside a plain one."""
    on_cpu = [(8, 256, 4, 256, 9), (12, 768, 2, 128, 7), (1, 64, 4, 64, 21)]
    sizes = on_cpu if device == "cpu" else [(8, 256, 4, 256, 60), (12, 768, 16, 512, 12)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for layers, width, batch, length, rounds in sizes:
        show(
            f"GPT-2 {layers} x {width}, batch {batch} x {length}",
            overhead(device, layers, width, batch, length, rounds),
        )
    for kind in ("ViT", "ResNet-18") if device == "cpu" else ():
        show(f"{kind}, 16 images of 64 x 64", image_overhead(kind, 31))
    torch.set_num_threads(threads)


def show(name: str, cost: Pair) -> None:
    times = f"plain {cost.first * 1e3:.1f} ms, measured {cost.second * 1e3:.1f} ms"
    spread = (
        f"quartiles {cost.quartiles[0]:.3f} and {cost.quartiles[1]:.3f}, of the least {cost.second / cost.first:.3f}"
    )
    print(f"{name}: {times}, ratio {cost.ratio:.3f} ({spread}), target 1.15", flush=True)


def main(device: str = "cpu") -> None:
    """Print all ratios: every module output, forward and backward."""
    ratios(device)
    gain = profile_gain(device)
    print("chi_J of a 50 x 500 MLP, 5 probes, against a full backward pass per probe and layer:")
    print(f"  local {gain.first * 1e3:.1f} ms, full {gain.second * 1e3:.0f} ms,", end=" ")
    print(f"{gain.ratio:.0f} times faster, target 20")


if __name__ == "__main__":
    main(*sys.argv[1:])

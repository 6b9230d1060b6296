"""Cost of a prescription in a training step: scaled residual sums and folded ones against the plain model.

python -m bench.residual [cpu|cuda] [eager]
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

import sigprop as sp
from sigprop.models import build

SIZES = {"cpu": (4, 64, 2, 64, 3), "cuda eager": (64, 256, 16, 256, 12), "cuda compile": (12, 768, 16, 512, 12)}
"""Layers, width, examples, tokens and rounds."""


def decoder(layers: int, width: int, tokens: int) -> nn.Module:
    torch.manual_seed(0)
    return build("transformer", kind="decoder", depth=layers, width=width, heads=max(width // 64, 1), context=tokens)


def step_of(model: nn.Module, groups: list[dict] | None, batch: torch.Tensor, compiled: bool) -> Callable[[], None]:
    device = batch.device.type
    model.to(device).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(groups or model.parameters(), lr=1e-4, fused=device == "cuda")

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = run(batch)
        nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ratios(steps: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, tuple[float, float]]:
    """Median milliseconds and median ratio to the first, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 3):
        for name, step in steps.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(5):
                step()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn > 2:
                times[name].append((time.perf_counter() - start) / 5)
    plain = next(iter(times.values()))
    return {
        name: (1e3 * statistics.median(found), statistics.median(b / a for a, b in zip(plain, found, strict=True)))
        for name, found in times.items()
    }


def main(device: str = "cpu", mode: str = "compile") -> None:
    """Print the ratios of a step with scales in the forward pass, and of a folded plan with its optimizer groups."""
    warnings.simplefilter("ignore")
    layers, width, examples, tokens, rounds = SIZES[device if device == "cpu" else f"{device} {mode}"]
    batch = torch.randint(0, 256, (examples, tokens), device=device)
    compiled = mode == "compile" and device == "cuda"
    plain, scaled, folded = (decoder(layers, width, tokens) for _ in range(3))
    example = batch[:1, :64].cpu()
    sp.plan(scaled, "unit", batch=example, surgery=True).apply_(scaled)
    plan = sp.plan(folded, "unit", batch=example)
    plan.apply_(folded)
    steps = {
        "plain": step_of(plain, None, batch, compiled),
        "plain once more": step_of(plain, None, batch, compiled),
        "scaled in the forward pass": step_of(scaled, None, batch, compiled),
        "folded, its optimizer groups": step_of(folded, plan.param_groups(folded, lr=2**-7), batch, compiled),
        "folded, groups within 10 %": step_of(folded, plan.param_groups(folded, lr=2**-7, merge=0.1), batch, compiled),
    }
    print(f"decoder {layers} x {width}, batch {examples} x {tokens}, AdamW{', compiled' * compiled}, {device}:")
    for name, (milliseconds, ratio) in ratios(steps, rounds, device).items():
        print(f"  {name:28s} {milliseconds:8.2f} ms, ratio {ratio:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])

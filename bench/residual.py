"""Cost of a prescription in a training step: scaled residual sums, and a folded plan's optimizer groups.

python -m bench.residual [cpu|cuda] [compile|graph|eager] [layers,width]

`graph` and `compile`: forward and backward, as written or compiled, are one CUDA graph, so that a step waits for the
device and not for the host, whose noise hid a percent; the optimizer is outside.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sigprop as sp
from sigprop.models import build

Made = Callable[[bool], torch.optim.Optimizer]
SIZES = {
    "cpu": (4, 64, 2, 64, 3),
    "cuda eager": (64, 256, 16, 512, 5),
    "cuda graph": (64, 256, 16, 512, 5),
    "cuda compile": (4, 768, 48, 512, 24),
}
"""Layers, width, examples, tokens and rounds of five steps."""


def decoder(layers: int, width: int, tokens: int) -> nn.Module:
    torch.manual_seed(0)
    return build("transformer", kind="decoder", depth=layers, width=width, heads=max(width // 64, 1), context=tokens)


class Passes:
    """Forward and backward of one model on one batch, as asked: eager, compiled or a CUDA graph."""

    def __init__(self, model: nn.Module, batch: Tensor, mode: str):
        self.batch, self.device, self.model = batch, batch.device.type, model.to(batch.device).train()
        self.run = torch.compile(model, fullgraph=True, dynamic=False) if mode == "compile" else model
        self.gradients = self._gradients if mode == "eager" else captured(self._gradients)

    def _gradients(self) -> None:
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.run(self.batch)
        loss = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), self.batch[:, 1:].flatten())
        wanted = list(self.model.parameters())
        for parameter, gradient in zip(wanted, torch.autograd.grad(loss, wanted), strict=True):
            parameter.grad = gradient


class Training:
    """Steps of one model, with an optimizer of its own or with plain AdamW."""

    def __init__(self, passes: Passes, made: Made | None = None):
        self.passes, self.device = passes, passes.device
        fused = self.device == "cuda"
        self.optimizer = made(fused) if made else torch.optim.AdamW(passes.model.parameters(), lr=1e-4, fused=fused)

    def steps(self, count: int = 5) -> float:
        """Seconds a step."""
        self.wait()
        start = time.perf_counter()
        for _ in range(count):
            self.passes.gradients()
            self.optimizer.step()
        self.wait()
        return (time.perf_counter() - start) / count

    def update(self, count: int = 10) -> float:
        """Seconds of the device for the optimizer's step alone; the host runs ahead meanwhile."""
        self.passes.gradients()
        self.optimizer.step()
        self.wait()
        if self.device != "cuda":
            start = time.perf_counter()
            for _ in range(count):
                self.optimizer.step()
            return (time.perf_counter() - start) / count
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1 << 29)
        begin.record()
        for _ in range(count):
            self.optimizer.step()
        end.record()
        self.wait()
        return begin.elapsed_time(end) / count / 1e3

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def captured(work: Callable[[], None]) -> Callable[[], None]:
    """The work as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def main(device: str = "cpu", mode: str = "compile", size: str = "") -> None:
    """Milliseconds and ratios to the plain model of the same round; rounds begin with another one each time."""
    warnings.simplefilter("ignore")
    layers, width, examples, tokens, rounds = SIZES[device if device == "cpu" else f"{device} {mode}"]
    layers, width = map(int, size.split(",")) if size else (layers, width)
    batch = torch.randint(0, 256, (examples, tokens), device=device)
    mode = mode if device == "cuda" else "eager"
    plain, scaled, folded = (decoder(layers, width, tokens) for _ in range(3))
    example = batch[:1, :64].cpu()
    sp.plan(scaled, "unit", batch=example, surgery=True).apply_(scaled)
    plan = sp.plan(folded, "unit", width="mup", batch=example)
    plan.apply_(folded)
    runs: dict[str, tuple[nn.Module, Made | None]] = {"plain": (plain, None), "plain once more": (plain, None)}
    runs["scaled in the forward pass"] = (scaled, None)
    runs["folded, one group"] = (folded, None)
    runs["folded, plan.optimizers"] = folded, lambda fused: plan.optimizers(folded, 2**-7, 0.1, fused=fused)[0]
    for merge in (0.0, 0.1):
        groups = plan.param_groups(folded, lr=2**-7, weight_decay=0.1, merge=merge)
        runs[f"folded, {len(groups)} groups"] = (
            folded,
            lambda fused, groups=groups: torch.optim.AdamW(groups, fused=fused),
        )
    passes = {model: Passes(model, batch, mode) for model in (plain, scaled, folded)}
    trainings = {name: Training(passes[model], made) for name, (model, made) in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for training in trainings.values():
        training.steps(3)
    names = list(trainings)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(trainings[name].steps())
    print(f"decoder {layers} x {width}, batch {examples} x {tokens}, AdamW, {mode}, {device}:")
    for name, found in times.items():
        ratios = [b / a for a, b in zip(times["plain"], found, strict=True)]
        error = statistics.stdev(ratios) / rounds**0.5
        step, update = 1e3 * statistics.median(found), 1e3 * trainings[name].update()
        told = f"ratio {statistics.median(ratios):.4f} (standard error {error:.4f}, {rounds} rounds)"
        print(f"  {name:28s} {step:8.2f} ms a step, {told}; optimizer alone {update:.2f} ms")


if __name__ == "__main__":
    main(*sys.argv[1:])

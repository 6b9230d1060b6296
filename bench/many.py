"""Many trainings as one program: a 12-layer, width-256 decoder at 8 learning rates x 3 seeds, against one by one.

python -m bench.many [cpu|cuda] [profile]

One by one is told twice: each training captured as a CUDA graph, and each as written, which is what a loop over
trainings is for most people. `profile` then prints the kernels of ten steps of all networks, dearest first.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sigprop.lab import Settings, train
from sigprop.lab.data import TextBatches, zipf_tokens
from sigprop.lab.many import train_many
from sigprop.models import build

RATES = tuple(2.0**-e for e in range(12, 4, -1))
ROUNDS = 5


class Clock:
    """Batches that note the time, the device waited for, when the first and when the last timed step begins."""

    def __init__(self, batches: TextBatches, first: int, last: int, wait: Callable[[], None]):
        self.batches, self.marks, self.wait, self.loss = batches, (first, last), wait, batches.loss
        self.times: list[float] = []

    def __call__(self, step: int) -> dict[str, Tensor]:
        if step in self.marks:
            self.wait()
            self.times.append(time.perf_counter())
        return self.batches(step)

    @property
    def a_step(self) -> float:
        return (self.times[1] - self.times[0]) / (self.marks[1] - self.marks[0])


def decoder(layers: int, width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build("transformer", kind="decoder", depth=layers, width=width, heads=max(width // 64, 1), context=128)


def main(device: str = "cpu", what: str = "") -> None:
    """Seconds per step of all networks, in every way, in turns."""
    on_gpu = device == "cuda"
    layers, width = (12, 256) if on_gpu else (2, 32)
    mode, precision = ("graph", "bfloat16") if on_gpu else ("eager", "float32")
    batches = TextBatches(zipf_tokens(1 << 16, 256), passages=16, length=128)
    rates = [rate for rate in RATES for _ in range(3)]
    models = [decoder(layers, width, seed).to(device) for seed in range(len(rates))]

    def settings(steps: int, how: str) -> Settings:
        return Settings(steps=steps, device=device, mode=how, precision=precision, log_every=steps)

    def timed(count: int, work: Callable[[Clock, int], object]) -> float:
        count = count if on_gpu else 2
        clock = Clock(batches, 5, 5 + count, torch.cuda.synchronize if on_gpu else lambda: None)
        work(clock, 6 + count)
        return clock.a_step

    ways = {
        "one program": lambda: timed(30, lambda data, n: train_many(models, data, rates, settings(n, mode))),
        "one by one, captured": lambda: len(rates) * timed(120, lambda d, n: train(models[0], d, settings(n, mode))),
        "one by one, as written": lambda: (
            len(rates) * timed(15, lambda d, n: train(models[0], d, settings(n, "eager")))
        ),
    }
    rounds = [{name: work() for name, work in ways.items()} for _ in range(ROUNDS if on_gpu else 1)]
    print(f"{len(rates)} decoders of {layers} x {width}, batch 16 x 128, {precision}, {mode}, {len(rounds)} rounds:")
    for name in ways:
        found, ratios = ([r[name] for r in rounds], [r[name] / r["one program"] for r in rounds])
        told = f"{statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {name:24s} {1e3 * statistics.median(found):8.1f} ms, {told}", flush=True)
    if what == "profile":
        profile(lambda: train_many(models, batches, rates, settings(10, mode)), on_gpu)


def profile(work: Callable[[], object], on_gpu: bool) -> None:
    with torch.profiler.profile() as found:
        work()
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=order, row_limit=45, max_name_column_width=90))


if __name__ == "__main__":
    main(*sys.argv[1:])

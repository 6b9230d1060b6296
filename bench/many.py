"""Many trainings as one program: a 12-layer, width-256 decoder at 8 learning rates x 3 seeds, against one by one.

python -m bench.many [cpu|cuda] [profile]

One by one is told twice: each training captured as a CUDA graph, timed before and after the program, and each as
written, which is what a loop over trainings is for most people. `profile` prints the program's kernels, dearest first.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity

from sigprop.models import build
from sigprop.research.lab import Settings, train
from sigprop.research.lab.data import TextBatches, zipf_tokens
from sigprop.research.lab.many import train_many

RATES = tuple(2.0**-e for e in range(12, 4, -1))
SEEDS = 3
WARM_UP = 5
WINDOWS = 5


@dataclass
class Clock:
    """Batches that note the time, the device waited for, at the beginning of every window of steps."""

    batches: TextBatches
    window: int
    wait: Callable[[], None]
    times: list[float] = field(default_factory=list)
    profiler: torch.profiler.profile | None = None

    @property
    def steps(self) -> int:
        """Of a training that has all windows, and one more for the profiler."""
        return WARM_UP + (WINDOWS + (self.profiler is not None)) * self.window + 1

    @property
    def loss(self) -> Callable:
        return self.batches.loss

    def __call__(self, step: int) -> dict[str, Tensor]:
        window, into = divmod(step - WARM_UP, self.window)
        if into == 0 and 0 <= window <= WINDOWS:
            self.wait()
            self.times.append(time.perf_counter())
        if self.profiler is not None and into == 0 and window in (WINDOWS, WINDOWS + 1):
            self.wait()
            self.profiler.start() if window == WINDOWS else self.profiler.stop()
        return self.batches(step)

    def a_step(self) -> list[float]:
        """Seconds, of every window."""
        return [(end - start) / self.window for start, end in zip(self.times, self.times[1:], strict=False)]


def decoder(layers: int, width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build("transformer", kind="decoder", depth=layers, width=width, heads=max(width // 64, 1), context=128)


def main(device: str = "cpu", what: str = "") -> None:
    """Milliseconds per step of all networks, in every way."""
    on_gpu = device == "cuda"
    layers, width, windows = (12, 256, (120, 30, 10)) if on_gpu else (1, 32, (2, 2, 2))
    precision, fast = ("bfloat16", "graph") if on_gpu else ("float32", "eager")
    batches = TextBatches(zipf_tokens(1 << 16, 256), passages=16, length=128)
    rates = [rate for rate in RATES for _ in range(SEEDS)]
    models = [decoder(layers, width, seed).to(device) for seed in range(len(rates))]

    def timed(window: int, mode: str, work: Callable[[Clock, Settings], object], show: bool = False) -> list[float]:
        profiler = torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) if show else None
        clock = Clock(batches, window, torch.cuda.synchronize if on_gpu else lambda: None, profiler=profiler)
        work(clock, Settings(steps=clock.steps, device=device, mode=mode, precision=precision, log_every=clock.steps))
        if profiler is not None:
            print(table(profiler, on_gpu))
        return clock.a_step()

    def together(window: int, mode: str) -> list[float]:
        return timed(window, mode, lambda data, settings: train_many(models, data, rates, settings), what == "profile")

    def one_by_one(window: int, mode: str) -> list[float]:
        found = timed(window, mode, lambda data, settings: train(models[0], data, settings))
        return [len(rates) * seconds for seconds in found]

    many, few, slow = windows
    ways = {
        "one by one, captured": lambda: one_by_one(many, fast),
        "one program, captured": lambda: together(few, fast),
        "one by one, captured, once more": lambda: one_by_one(many, fast),
        "one by one, as written": lambda: one_by_one(slow, "eager"),
    }
    print(f"{len(rates)} decoders of {layers} x {width}, batch 16 x 128, {precision}, {WINDOWS} windows of steps:")
    found = {name: work() for name, work in ways.items()}
    program = statistics.median(found["one program, captured"])
    for name, times in found.items():
        middle, spread = statistics.median(times), f"{1e3 * min(times):.1f} to {1e3 * max(times):.1f}"
        print(f"  {name:32s} {1e3 * middle:8.1f} ms ({spread}), {middle / program:.2f} times one program")


def table(profiler: torch.profiler.profile, on_gpu: bool) -> str:
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    return profiler.key_averages().table(sort_by=order, row_limit=45, max_name_column_width=90)


if __name__ == "__main__":
    main(*sys.argv[1:])

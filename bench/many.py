"""Many trainings as one program: a 12-layer, width-256 decoder at 8 learning rates x 3 seeds, against one by one.

python -m bench.many [cpu|cuda] [profile]

`profile` prints the kernels of one step of all networks, dearest first, instead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from sigprop.lab import Settings, train
from sigprop.lab.data import TextBatches, zipf_tokens
from sigprop.lab.many import train_many
from sigprop.models import build

RATES = tuple(2.0**-e for e in range(12, 4, -1))


def decoder(layers: int, width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build("transformer", kind="decoder", depth=layers, width=width, heads=max(width // 64, 1), context=128)


def main(device: str = "cpu", what: str = "") -> None:
    """Seconds per step of all networks, both ways."""
    on_gpu = device == "cuda"
    layers, width, steps = (12, 256, 40) if on_gpu else (2, 32, 2)
    mode, precision = ("graph", "bfloat16") if on_gpu else ("eager", "float32")
    settings = Settings(steps=steps, device=device, mode=mode, precision=precision, log_every=steps)
    batches = TextBatches(zipf_tokens(1 << 16, 256), passages=16, length=128)
    jobs = [(rate, seed) for rate in RATES for seed in range(3)]

    def together(count: int) -> float:
        models = [decoder(layers, width, seed) for _, seed in jobs]
        return elapsed(lambda: train_many(models, batches, [r for r, _ in jobs], settings_of(count)))

    def alone(count: int, how: str = mode) -> float:
        model = decoder(layers, width, 0)
        return elapsed(lambda: train(model, batches, settings_of(count, how)))

    def eager(count: int) -> float:
        return alone(count, "eager") * len(jobs)

    def settings_of(count: int, how: str = mode) -> Settings:
        return Settings.of(**{**settings.to_json(), "steps": count, "log_every": count, "mode": how})

    def elapsed(work) -> float:
        start = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    together(2)
    if what == "profile":
        profile(lambda: together(10), on_gpu)
        return
    alone(2)

    def a_step(work: Callable[[int], float]) -> float:
        """Seconds of one step: what a longer run takes more."""
        return (work(3 * steps) - work(steps)) / (2 * steps)

    ways = {"one by one, captured": lambda n: alone(n) * len(jobs), "one by one, eager": eager, "one program": together}
    rounds = [{name: a_step(work) for name, work in ways.items()} for _ in range(3)]
    print(f"{len(jobs)} decoders of {layers} x {width}, batch 16 x 128, {precision}, {mode}:")
    for name in ways:
        ratios = sorted(found[name] / found["one program"] for found in rounds)
        least = 1e3 * min(found[name] for found in rounds)
        print(f"  {name:22s} {least:8.1f} ms, {ratios[1]:.2f} times ({ratios[0]:.2f} to {ratios[2]:.2f} in 3 rounds)")


def profile(work: Callable[[], float], on_gpu: bool) -> None:
    with torch.profiler.profile() as found:
        work()
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=order, row_limit=45, max_name_column_width=90))


if __name__ == "__main__":
    main(*sys.argv[1:])

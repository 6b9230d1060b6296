"""Many trainings as one program: a 12-layer, width-256 decoder at 8 learning rates x 3 seeds, against one by one.

python -m bench.many [cpu|cuda]
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor, nn

from sigprop.lab import Settings, train
from sigprop.lab.data import TextBatches, zipf_tokens
from sigprop.lab.many import train_many
from sigprop.models import build

RATES = tuple(2.0**-e for e in range(12, 4, -1))


class Decoder(nn.Module):
    """A reference decoder that takes its ids by name."""

    def __init__(self, layers: int, width: int, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        heads = max(width // 64, 1)
        self.inner = build("transformer", kind="decoder", depth=layers, width=width, heads=heads, context=128)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.inner(input_ids)


def next_token(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def main(device: str = "cpu") -> None:
    """Seconds per step of all networks, both ways."""
    on_gpu = device == "cuda"
    layers, width, steps = (12, 256, 40) if on_gpu else (4, 64, 4)
    mode, precision = ("graph", "bfloat16") if on_gpu else ("eager", "float32")
    settings = Settings(steps=steps, device=device, mode=mode, precision=precision, log_every=steps)
    batches = TextBatches(zipf_tokens(1 << 16, 256), passages=16, length=128)
    jobs = [(rate, seed) for rate in RATES for seed in range(3)]

    def together(count: int) -> float:
        models = [Decoder(layers, width, seed) for _, seed in jobs]
        return elapsed(lambda: train_many(models, batches, [r for r, _ in jobs], settings_of(count), loss=next_token))

    def alone(count: int) -> float:
        model = Decoder(layers, width, 0)
        return elapsed(lambda: train(model, batches, settings_of(count), loss=next_token))

    def settings_of(count: int) -> Settings:
        return Settings.of(**{**settings.to_json(), "steps": count, "log_every": count})

    def elapsed(work) -> float:
        start = time.perf_counter()
        work()
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    alone(2), together(2)
    one = (alone(3 * steps) - alone(steps)) / (2 * steps) * len(jobs)
    many = (together(3 * steps) - together(steps)) / (2 * steps)
    print(f"{len(jobs)} decoders of {layers} x {width}, batch 16 x 128, {precision}, {mode}:")
    print(f"  one by one {one * 1e3:.1f} ms a step of all, as one program {many * 1e3:.1f} ms: {one / many:.1f} times faster")


if __name__ == "__main__":
    main(*sys.argv[1:])

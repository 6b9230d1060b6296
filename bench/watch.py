"""Cost of watching a run: steps of GPT-2 with every 50th sampled, against the same steps unwatched.

python -m bench.watch [cpu|cuda] [compile]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import warnings

import torch

from bench.measure import gpt2, seconds
from sigprop.monitoring import Watch

EVERY = 50
SIZES = {"cpu": (12, 768, 1, 128, 2), "cuda": (12, 768, 16, 512, 6)}
"""Layers, width, examples, tokens and rounds; a round is a plain, an unsampled and a sampled step."""


class Training:
    """GPT-2 with AdamW on one batch; dropout is drawn alike in both runs."""

    def __init__(self, device: str, compiled: bool):
        layers, width, examples, tokens, _ = SIZES[device]
        torch.manual_seed(0)
        self.model = gpt2(device, layers, width)
        self.run = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(0, 50257, (examples, tokens), device=device)
        self.losses: list[torch.Tensor] = []

    def step(self) -> torch.Tensor:
        torch.manual_seed(len(self.losses))
        loss = self.run(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.detach())
        return loss


def overhead(device: str, compiled: bool) -> dict[str, float]:
    """Median seconds of a plain step, of a watched one that is not sampled, and of a sampled one, in turns."""
    plain, watched = Training(device, compiled), Training(device, compiled)
    rounds = SIZES[device][-1]
    times: dict[str, list[float]] = {"plain": [], "unsampled": [], "sampled": []}
    with tempfile.TemporaryDirectory() as folder, Watch(watched.run, every=10**9, folder=folder) as watch:
        watch.step(watched.step())
        plain.step()
        for turn in range(rounds + 1):
            found = {"plain": seconds(plain.step, device)}
            found["unsampled"] = seconds(lambda: watch.step(watched.step()), device)
            plain.step()
            watch.sample_next()
            found["sampled"] = seconds(lambda: watch.step(watched.step()), device)
            if turn:
                for key, value in found.items():
                    times[key].append(value)
    medians = {key: statistics.median(values) for key, values in times.items()}
    unsampled = statistics.median(b / a for a, b in zip(times["plain"], times["unsampled"], strict=True))
    sampled = statistics.median(b / a for a, b in zip(times["plain"], times["sampled"], strict=True))
    whole = ((EVERY - 1) * 1.0 + sampled) / EVERY
    return {**medians, "unsampled_ratio": unsampled, "sampled_ratio": sampled, "whole": whole}


def same_losses(device: str, steps: int = 6) -> bool:
    """Whether the losses of a watched run, every second step sampled, are bitwise those of a plain one.

    With torch's deterministic algorithms: two plain runs on a GPU differ without them.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    plain, watched = Training(device, compiled=False), Training(device, compiled=False)
    with tempfile.TemporaryDirectory() as folder, Watch(watched.run, every=2, folder=folder) as watch:
        for _ in range(steps):
            plain.step()
            watch.step(watched.step())
    torch.use_deterministic_algorithms(False)
    return all(torch.equal(a, b) for a, b in zip(plain.losses, watched.losses, strict=True))


def main(device: str = "cpu", mode: str = "") -> None:
    """Print the ratios; `whole` is the cost of a run with every 50th step sampled."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    compiled = mode == "compile"
    layers, width, examples, tokens, _ = SIZES[device]
    found = overhead(device, compiled)
    print(f"GPT-2 {layers} x {width}, batch {examples} x {tokens}, AdamW{', compiled' * compiled}, {device}:")
    print(f"  plain {found['plain'] * 1e3:.1f} ms, not sampled {found['unsampled'] * 1e3:.1f} ms,", end=" ")
    print(f"sampled {found['sampled'] * 1e3:.1f} ms")
    print(f"  not sampled / plain {found['unsampled_ratio']:.4f} (no hook is on), sampled / plain", end=" ")
    print(f"{found['sampled_ratio']:.3f}, every {EVERY}th sampled {found['whole']:.4f}, target 1.03")
    if not compiled:
        print(f"  losses bitwise equal: {same_losses(device)}")
    torch.set_num_threads(threads)


if __name__ == "__main__":
    main(*sys.argv[1:])

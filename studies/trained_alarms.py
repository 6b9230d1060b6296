"""Whether small stacks train that start as stock models do of which `check` has an alarm.

    python -m studies.trained_alarms --data FOLDER      # bytes of text; about two minutes a stack on one core

Stacks of width 32 with the depth, the placement of norms, the visits and the standard deviations times the root of the
fan-in of the stock model. Each is trained as it is and mended (Post-LN: DeepNorm's skips and branches; Pre-LN:
embeddings of std 1 in place of 0.02, or no common vector in the stream), with a warm-up of 150 of 500 steps and
without, at two rates, with three seeds: all side by side in one pass. They are causal and read bytes, whatever the
stock model does.

Rule, written before any run: of the better rate, mean over seeds of the last 50 losses. The alarm is confirmed as a
*problem* if the stack as it is does not learn (above 0.9 x the loss of guessing byte frequencies) or ends 10 % or more
above the mended one under the same schedule, as a *warning* from 2 %, else refuted. It needs a warm-up if that holds
without one only. (120 steps told nothing: BERT's stack and BART's, mended or not, ended at the frequencies of bytes.)
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sigprop.models import load_text
from studies.stored import read, stamp, write

STORED = Path("docs/data/trained_alarms.json")
WIDTH, HEADS, TOKENS, EXAMPLES, STEPS, LAST, WARM = 32, 2, 24, 8, 500, 50, 150
SEEDS, RATES, PROBLEM, WARNING, STUCK = 3, (2e-3, 8e-3), 0.10, 0.02, 0.9


class Stack(NamedTuple):
    """`gain` is std times the root of the fan-in; `visits`: all blocks are one. `embedding`: std, 1 behind a norm.
    `correlation`: of the tokens that the stream starts with, by one learned vector that is added to all of them, as
    attention over many tokens adds one."""

    blocks: int
    gain: float
    post: bool = True
    embedding: float = 1.0
    visits: bool = False
    correlation: float = 0.0


STACKS = {
    "BERT": Stack(12, 0.02 * 768**0.5),
    "BART": Stack(12, 0.02 * 1024**0.5),
    "Marian": Stack(12, 0.02 * 1024**0.5, embedding=0.02),
    "DeBERTa v2": Stack(24, 0.02 * 1536**0.5),
    "ALBERT": Stack(12, 0.02 * 4096**0.5, visits=True),
    "Qwen3-MoE": Stack(24, 0.02 * 2048**0.5, post=False, embedding=0.02),
    **{f"correlation {value}": Stack(4, 0.5, post=False, correlation=value) for value in (0.92, 0.97, 0.99, 0.999)},
}


class Variants:
    """All networks of one stack: seeds, rates, mended or not, with warm-up or not; the first axis of every tensor."""

    def __init__(self, stack: Stack):
        self.stack = stack
        kinds = [(rate, mended, warm) for mended in (False, True) for warm in (False, True) for rate in RATES]
        self.kinds = [(*kind, seed) for kind in kinds for seed in range(SEEDS)]
        mended = torch.tensor([float(kind[1]) for kind in self.kinds]).view(-1, 1, 1)
        depth = 2.0 * stack.blocks
        self.skip = 1.0 + mended * ((depth**0.25) - 1.0) if stack.post else torch.ones(len(self.kinds), 1, 1)
        shrink = 1.0 + mended * ((4.0 * depth) ** -0.25 - 1.0) if stack.post else 1.0
        table = stack.embedding if stack.post else stack.embedding + mended * (1.0 - stack.embedding)
        self.weights = {"table": self.drawn((256, WIDTH), 1.0) * table}
        self.weights |= {"places": self.drawn((TOKENS, WIDTH), 1.0) * table, "readout": self.drawn((WIDTH, 256), 0.5)}
        if stack.correlation:
            size = (2.0 * stack.correlation / (1.0 - stack.correlation)) ** 0.5
            self.weights["common"] = self.drawn((1, WIDTH), size) * (1.0 - mended)
        for block in range(1 if stack.visits else stack.blocks):
            self.weights[f"{block}.q"] = self.drawn((WIDTH, WIDTH), stack.gain)
            self.weights[f"{block}.k"] = self.drawn((WIDTH, WIDTH), stack.gain)
            self.weights[f"{block}.v"] = self.drawn((WIDTH, WIDTH), stack.gain) * shrink
            self.weights[f"{block}.o"] = self.drawn((WIDTH, WIDTH), stack.gain) * shrink
            self.weights[f"{block}.fc"] = self.drawn((WIDTH, 4 * WIDTH), stack.gain) * shrink
            self.weights[f"{block}.proj"] = self.drawn((4 * WIDTH, WIDTH), 2.0 * stack.gain) * shrink
        self.weights = {name: item.detach().requires_grad_() for name, item in self.weights.items()}

    def drawn(self, shape: tuple[int, int], gain: float) -> Tensor:
        """The same numbers for one seed in every variant; rows of tables are not summed over."""
        self.drawings = getattr(self, "drawings", 0) + 1
        found = [
            torch.randn(shape, generator=torch.Generator().manual_seed(1000 * seed + self.drawings))
            for seed in range(SEEDS)
        ]
        fan_in = 1 if shape[0] in (256, TOKENS) else shape[0]
        return torch.stack([found[kind[-1]] for kind in self.kinds]) * gain / fan_in**0.5

    def branches(self, block: int, x: Tensor) -> list[Any]:
        at = {
            name: self.weights[f"{0 if self.stack.visits else block}.{name}"]
            for name in ("q", "k", "v", "o", "fc", "proj")
        }

        def heads(item: Tensor) -> Tensor:
            return item.unflatten(1, (EXAMPLES, TOKENS)).unflatten(-1, (HEADS, -1)).transpose(2, 3)

        def attention(h: Tensor) -> Tensor:
            parts = [heads(h @ at[name]) for name in ("q", "k", "v")]
            mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
            return mixed.transpose(2, 3).flatten(-2).flatten(1, 2) @ at["o"]

        return [attention, lambda h: F.gelu(h @ at["fc"]) @ at["proj"]]

    def forward(self, ids: Tensor, seen: dict[str, Any] | None = None) -> Tensor:
        """Logits; `seen` takes the shares of branches and the token correlation of the last sum."""
        where = torch.arange(TOKENS).repeat(EXAMPLES)
        x = self.weights["table"][:, ids.flatten()] + self.weights["places"][:, where]
        x = x + self.weights["common"] if "common" in self.weights else x
        x = normed(x) if self.stack.post and self.stack.embedding == 1.0 else x
        for block in range(self.stack.blocks):
            for branch in self.branches(block, x):
                added, kept = branch(x if self.stack.post else normed(x)), self.skip * x
                if seen is not None:
                    seen.setdefault("shares", []).append(size(added) / size(kept))
                x = normed(kept + added) if self.stack.post else kept + added
        if seen is not None:
            seen["correlation"] = correlation(x)
        return normed(x) @ self.weights["readout"]


def normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,))


def size(x: Tensor) -> Tensor:
    return x.square().mean((1, 2))


def correlation(x: Tensor) -> Tensor:
    x = F.normalize(x.unflatten(1, (EXAMPLES, TOKENS)), dim=-1)
    every = x.sum(2).square().sum(-1)
    return ((every - TOKENS) / (TOKENS * (TOKENS - 1))).mean(1)


def trained(stack: Stack, text: Tensor) -> dict[str, Any]:
    """What the variants start from and end at."""
    torch.manual_seed(0)
    net = Variants(stack)
    rates = torch.tensor([kind[0] for kind in net.kinds]).view(-1, 1, 1)
    warm = torch.tensor([kind[2] for kind in net.kinds]).view(-1, 1, 1)
    means = {name: (torch.zeros_like(item), torch.zeros_like(item)) for name, item in net.weights.items()}
    losses, seen = [], {}
    for step in range(STEPS):
        start = torch.randint(len(text) - TOKENS - 1, (EXAMPLES,), generator=torch.Generator().manual_seed(step))
        chunk = text[start[:, None] + torch.arange(TOKENS + 1)]
        logits = net.forward(chunk[:, :-1], seen if step == 0 else None)
        targets = chunk[:, 1:].flatten().expand(len(net.kinds), -1)
        loss = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1)
        losses.append(loss.detach().clone())
        grads = torch.autograd.grad(loss.sum(), list(net.weights.values()))
        rate = rates * torch.where(warm, min(1.0, (step + 1) / WARM), 1.0) * (1.0 - 0.9 * step / STEPS)
        with torch.no_grad():
            for (name, weight), grad in zip(net.weights.items(), grads, strict=True):
                grad = grad / grad.square().sum((1, 2), keepdim=True).sqrt().clamp_min(1.0)
                first, second = means[name]
                first.lerp_(grad, 0.1)
                second.lerp_(grad.square(), 0.05)
                scale = (second / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8
                weight -= rate * first / (1 - 0.9 ** (step + 1)) / scale
    ends = torch.stack(losses[-LAST:]).mean(0).nan_to_num(math.inf)
    shares = torch.stack(seen["shares"])
    rows = [
        {
            "rate": kind[0], "mended": kind[1], "warm": kind[2], "seed": kind[3], "end": round(end.item(), 4),
            "shares": round(shares[:, place].sum().item(), 3),
            "lost": round(shares[:, place].log1p().sum().item(), 3),
            "correlation": round(seen["correlation"][place].item(), 4),
        }
        for place, (kind, end) in enumerate(zip(net.kinds, ends, strict=True))
    ]  # fmt: skip
    return {"stack": stack._asdict(), "rows": rows}


def verdict(rows: list[dict[str, Any]], guess: float) -> dict[str, str]:
    """By schedule, what the rule says, with the two ends."""
    found = {}
    for warm in (False, True):
        as_is, mended = (
            min(
                sum(row["end"] for row in rows if (row["mended"], row["warm"], row["rate"]) == (which, warm, rate))
                / SEEDS
                for rate in RATES
            )
            for which in (False, True)
        )
        above = as_is / mended - 1.0
        word = "problem" if as_is > STUCK * guess or above >= PROBLEM else "warning" if above >= WARNING else "refuted"
        found["with a warm-up" if warm else "without"] = f"{word}: {as_is:.3f} for {mended:.3f}"
    return found


def main(data: str, *names: str) -> None:
    torch.set_num_threads(1)
    text = torch.frombuffer(
        bytearray(load_text(Path(data) / "web-docs-train.txt.gz").encode()), dtype=torch.uint8
    ).long()
    share = text.bincount(minlength=256).double() / len(text)
    guess = float(-(share * share.clamp_min(1e-12).log()).sum())
    for name in names or STACKS:
        started = time.process_time()
        found = trained(STACKS[name], text)
        found |= {"verdict": verdict(found["rows"], guess), "seconds": round(time.process_time() - started, 1)}
        stored = read(STORED, {"stacks": {}})
        stored |= stamp("trained_alarms --data FOLDER", guess=guess)
        stored["stacks"][name] = found
        write(STORED, stored)
        print(name, found["seconds"], found["verdict"], flush=True)


if __name__ == "__main__":
    main(sys.argv[2], *sys.argv[3:])

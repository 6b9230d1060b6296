"""Nine small families, healthy as they are built, and what is wrong in each setting of `severity`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, TOKENS, BYTES, DEPTH = 128, 4, 64, 256, 6
Knob = Callable[[Any, float], None]


class RmsNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class DyT(nn.Module):
    """A tanh in place of a norm."""

    def __init__(self, width: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(self.alpha * x) + self.bias


class Attention(nn.Module):
    def __init__(self, causal: bool, normed: bool):
        super().__init__()
        self.query, self.key, self.value, self.proj = (nn.Linear(WIDTH, WIDTH, False) for _ in range(4))
        size = WIDTH // HEADS
        self.scale, self.causal = size**-0.5, causal
        self.norms = nn.ModuleList([RmsNorm(size) if normed else nn.Identity() for _ in range(2)])
        self.bias: nn.Parameter | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        scores = self.norms[0](q) @ self.norms[1](k).mT * self.scale
        if self.bias is not None:
            scores = scores + self.bias
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, -math.inf)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, gated: bool):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, False), nn.Linear(4 * WIDTH, WIDTH, False)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH, False) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    def __init__(self, gated: bool, count: int = 4):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, count), nn.ModuleList([Mlp(gated) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        kept = logits.masked_fill(logits < logits.topk(2, -1).values[..., -1:], -math.inf).softmax(-1)
        return sum(share * expert(x) for share, expert in zip(kept.split(1, -1), self.experts, strict=True))  # type: ignore[return-value]


class Block(nn.Module):
    """`after`: norms behind the sum (Post-LN); `sandwich`: behind the branch too."""

    def __init__(self, norm: Any, after: bool, sandwich: bool, causal: bool, normed: bool, mlp: Any, gated: bool):
        super().__init__()
        self.attn, self.mlp, self.after = Attention(causal, normed), mlp(gated), after
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.end1, self.end2 = (norm(WIDTH) if sandwich else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.after:
            x = self.norm1(x + self.attn(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.end1(self.attn(self.norm1(x)))
        return x + self.end2(self.mlp(self.norm2(x)))


class Stack(nn.Module):
    """Bytes, or patches of images where `classes`, through blocks to logits and their loss."""

    def __init__(
        self, depth: int = DEPTH, norm: Any = nn.LayerNorm, after: bool = False, sandwich: bool = False,
        normed: bool = False,
        mlp: Any = Mlp, gated: bool = False, tied: bool = False, relative: bool = False, table: float = 0.02,
        size: float = 1.0, classes: int = 0,
    ):  # fmt: skip
        super().__init__()
        self.size, self.classes = size, classes
        self.embed = nn.Conv2d(1, WIDTH, 7, 7) if classes else nn.Embedding(BYTES, WIDTH)
        self.positions = nn.Parameter(torch.empty(TOKENS if not classes else 16, WIDTH).normal_(0, 0.02))
        self.blocks = nn.ModuleList(
            [Block(norm, after, sandwich, not classes, normed, mlp, gated) for _ in range(depth)]
        )
        self.norm, self.head = nn.Identity() if after else norm(WIDTH), nn.Linear(WIDTH, classes or BYTES)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                gain = 0.64 if after else 0.2 if module is self.head else 0.8
                nn.init.normal_(module.weight, 0.0, gain * WIDTH**-0.5)
        if not classes:
            nn.init.normal_(self.embed.weight, 0.0, table)
        if not after:
            scaled(self, "proj.weight down.weight", 1 / math.sqrt(2 * depth))
        for block in self.blocks if relative else ():
            block.attn.bias = nn.Parameter(torch.zeros(HEADS, TOKENS, TOKENS))  # type: ignore[union-attr]
        if tied:
            self.head.weight = self.embed.weight  # type: ignore[assignment]
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(x)
        x = self.size * (x.flatten(2).mT if self.classes else x) + self.positions
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits = self.head(x.mean(1)) if self.classes else self.head(x).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten())


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self, depth: int = DEPTH, width: int = 32):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(1, width, 4, 4, bias=False), nn.BatchNorm2d(width)
        self.blocks, self.head = nn.Sequential(*(Residual(width) for _ in range(depth))), nn.Linear(width, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(F.relu(self.bn(self.stem(x)))).mean((2, 3))), targets)


# -- what is wrong


@torch.no_grad()
def scaled(model: nn.Module, endings: str, factor: float) -> None:
    for name, weight in model.named_parameters():
        if name.endswith(tuple(endings.split())):
            weight.mul_(factor)


def times(endings: str) -> Knob:
    return lambda model, value: scaled(model, endings, value)


def late(model: Any, value: float) -> None:
    """The last half of the blocks alone."""
    for block in model.blocks[len(model.blocks) // 2 :]:
        scaled(block, "down.weight", value)


def scores(model: Any, value: float) -> None:
    for block in model.blocks:
        block.attn.scale *= value


def alphas(model: Any, value: float) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("alpha"):
                weight.fill_(value)


def biased(model: Any, value: float) -> None:
    with torch.no_grad():
        model.head.bias[: len(model.head.bias) // 4] = value


def tied(model: Any, value: float) -> None:
    scaled(model, "embed.weight", value)
    model.head.weight = model.embed.weight


def far(model: Any, value: float) -> None:
    for block in model.blocks:
        nn.init.normal_(block.attn.bias, 0.0, value)


def unnormalized(model: Any, value: float) -> None:
    for block in model.blocks:
        block.bn1, block.bn2 = nn.Identity(), nn.Identity()
        scaled(block, "conv2.weight", value)


def preferred(model: Any, value: float) -> None:
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.router.bias[:2] = value


BRANCHES, QUERIES, GAINS = "proj.weight down.weight", "query.weight key.weight", "norm1.weight norm2.weight"
FAMILIES: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[Knob, tuple[float, ...]]]]] = {
    "Llama": (lambda: Stack(norm=RmsNorm, gated=True), {
        "embedding std x": (times("embed.weight"), (0.01, 10, 50, 500)), "scores x": (scores, (4, 16, 64, 2, 3)),
        "queries and keys x": (times(QUERIES), (1e-3,)), "gains x": (times(GAINS), (0.1,)),
        "branch ends x": (times(BRANCHES), (0, 1e-3, 10, 100)), "last half of down x": (late, (3, 10, 30)),
        "readout x": (times("head.weight"), (5, 15, 50, 150)),
    }),
    "GPT-2": (Stack, {
        "positions x": (times("positions"), (30, 100, 1000, 10)), "gains x": (times(GAINS), (0.1, 0.3)),
        "readout x": (times("head.weight"), (5, 15, 50)),
        "bias of a quarter of the classes": (biased, (4, 12)), "scores x": (scores, (8, 64, 2, 3, 4)),
        "last gain x": (lambda m, v: scaled(m.norm, "weight", v), (0, 30)),
        "up and down x 0": (lambda m, v: scaled(m, "up.weight down.weight", v), (0,)),
    }),
    "Post-LN": (lambda: Stack(after=True, depth=2 * DEPTH), {
        "branch ends x": (times(BRANCHES), (0.1, 2, 3, 10, 30)), "queries and keys x": (times(QUERIES), (4, 12, 2)),
        "gains x": (times(GAINS), (0.1, 5, 0.3)),
    }),
    "ViT": (lambda: Stack(classes=10), {
        "patches x": (times("embed.weight embed.bias"), (0.01, 30)),
        "branch ends x": (times(BRANCHES), (1e-3, 10, 100)),
        "positions x": (times("positions"), (100, 1000, 300)), "readout x": (times("head.weight"), (10, 30, 200)),
    }),
    "ResNet": (ResNet, {
        "convolutions x": (times("conv1.weight conv2.weight"), (0.01, 30)),
        "last gains x": (times("bn2.weight"), (0, 10)),
        "all gains x": (times("bn.weight bn1.weight bn2.weight"), (0.01, 0.1)),
        "readout x": (times("head.weight"), (3, 10, 100)),
        "no norms, second convolutions x": (unnormalized, (1, 0.1, 0)),
    }),
    "DyT": (lambda: Stack(norm=DyT, table=1.0), {
        "embedding std x": (times("embed.weight"), (1e-3, 0.02, 30)), "alpha": (alphas, (0.02, 5, 50)),
        "branch ends x": (times(BRANCHES), (10,)), "readout x": (times("head.weight"), (30,)),
    }),
    "Gemma": (lambda: Stack(norm=RmsNorm, gated=True, sandwich=True, normed=True, tied=True, size=WIDTH**0.5), {
        "tied table x": (times("embed.weight"), (5, 50)), "scores x": (scores, (4, 32, 2)),
        "gains behind branches x": (times("end1.weight end2.weight"), (0, 0.1, 10)),
    }),
    "T5": (lambda: Stack(norm=RmsNorm, relative=True, table=1.0), {
        "head tied to a table of std": (tied, (1, 0.3, 0.1)), "scores x": (scores, (4, 16, 2, 3)),
        "bias of distances of std": (far, (3, 30)),
        "branch ends x": (times(BRANCHES), (10,)),
    }),
    "experts": (lambda: Stack(mlp=Experts), {
        "router x": (times("router.weight"), (30, 300)), "bias of two of four experts": (preferred, (3, 20)),
        "one expert x": (times("experts.0.down.weight"), (10, 100)), "all experts x": (times("down.weight"), (0, 30)),
    }),
}  # fmt: skip

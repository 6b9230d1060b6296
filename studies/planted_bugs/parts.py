"""Small networks in ordinary PyTorch, as people write them, for the bugs to be planted in."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, TOKENS, WIDTH, HEADS = 128, 48, 64, 4


def tokens(batch: int = 4, length: int = TOKENS, vocabulary: int = VOCABULARY) -> Tensor:
    """Sequences that can be learned: every id follows from the one before, with a few jumps."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(vocabulary, (batch, length), generator=generator)
    jump = torch.rand((batch, length), generator=generator) < 0.1
    for place in range(1, length):
        ids[:, place] = torch.where(jump[:, place], ids[:, place], (5 * ids[:, place - 1] + 7) % vocabulary)
    return ids


def noise(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def labels(count: int, classes: int) -> Tensor:
    return torch.arange(count) % classes


def images(count: int = 8, size: int = 16, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Noise with a pattern of its class."""
    wanted = labels(count, classes)
    return noise(count, 3, size, size) + 2.0 * noise(classes, 3, size, size, seed=6)[wanted], wanted


def small_weights(model: nn.Module, std: float = 0.02) -> None:
    """The initialization of GPT-2, but for its residual projections."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0.0, std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def causal(length: int, diagonal: int = 0) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril(diagonal)


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps, self.power = nn.Parameter(torch.ones(width)), eps, 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.pow(2).mean(-1, keepdim=True) + self.eps) ** self.power


class Attention(nn.Module):
    """`scale` multiplies the scores, `axis` is that of the softmax, `bias` is added to the scores."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS, diagonal: int | None = 0):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.diagonal, self.axis = heads, diagonal, -1
        self.scale = (width // heads) ** -0.5
        self.norm_query: nn.Module = nn.Identity()
        self.norm_key: nn.Module = nn.Identity()
        self.slope = 0.0

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = self.norm_query(query) @ self.norm_key(key).transpose(-2, -1) * self.scale
        if self.slope:
            place = torch.arange(length)
            scores = scores + self.slope * (place[None, :] - place[:, None])
        if self.diagonal is not None:
            scores = scores.masked_fill(~causal(length, self.diagonal), -math.inf)
        mixed = scores.softmax(self.axis) @ value
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width: int = WIDTH, factor: int = 4):
        super().__init__()
        self.up, self.down = nn.Linear(width, factor * width), nn.Linear(factor * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int = WIDTH, factor: int = 3):
        super().__init__()
        self.gate, self.up = nn.Linear(width, factor * width), nn.Linear(width, factor * width)
        self.down = nn.Linear(factor * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(
        self, width: int = WIDTH, diagonal: int | None = 0, norm: Any = nn.LayerNorm, mlp: Any = Mlp, heads: int = HEADS
    ):
        super().__init__()
        self.norm1, self.attn = norm(width), Attention(width, heads, diagonal)
        self.norm2, self.mlp = norm(width), mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A decoder that returns logits, and the loss when it is given targets."""

    def __init__(
        self, depth: int = 4, width: int = WIDTH, norm: Any = nn.LayerNorm, mlp: Any = Mlp, diagonal: int = 0,
        block: Any = Block, vocabulary: int = VOCABULARY,
    ):  # fmt: skip
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList([block(width, diagonal, norm, mlp) for _ in range(depth)])
        self.norm = norm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        small_weights(self)
        for name, weight in self.named_parameters():
            if name.endswith(("proj.weight", "down.weight")):
                nn.init.normal_(weight, 0.0, 0.02 / math.sqrt(2 * depth))

    def embed(self, ids: Tensor) -> Tensor:
        return self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits if targets is None else (logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def text() -> dict[str, Tensor]:
    """Tokens and the tokens after them."""
    ids = tokens(length=TOKENS + 1)
    return {"ids": ids[:, :-1], "targets": ids[:, 1:]}


class Vit(nn.Module):
    def __init__(self, depth: int = 4, width: int = WIDTH, size: int = 16, patch: int = 4, classes: int = 4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList([Block(width, None) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        small_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def classified(wanted: Tensor) -> Any:
    """Cross entropy against these labels."""

    def loss(output: Tensor) -> Tensor:
        return F.cross_entropy(output, wanted)

    return loss


def regressed(wanted: Tensor) -> Any:
    def loss(output: Tensor) -> Tensor:
        return F.mse_loss(output, wanted)

    return loss


def he(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.Conv1d)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def each(model: nn.Module, ending: str) -> list[nn.Parameter]:
    """The parameters whose names end so."""
    return [weight for name, weight in model.named_parameters() if name.endswith(ending)]


def normal(model: nn.Module, ending: str, std: float) -> None:
    for weight in each(model, ending):
        nn.init.normal_(weight, 0.0, std)


def fill(model: nn.Module, ending: str, value: float) -> None:
    for weight in each(model, ending):
        nn.init.constant_(weight, value)

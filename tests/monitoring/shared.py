"""A small model, a batch and a plain training loop for the tests of a watch."""

from __future__ import annotations

import torch
from torch import nn

from sigprop.models import build
from sigprop.monitoring import Watch

TOKENS, VOCABULARY = 16, 32


def small_model(seed: int = 0, **settings) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {"depth": 3, "width": 32, "heads": 4, "vocabulary": VOCABULARY, "context": TOKENS}
    return build("transformer", **{**sizes, **settings})


def batches(count: int, examples: int = 4, seed: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (examples, TOKENS), generator=generator) for _ in range(count)]


def language_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train(model: nn.Module, data, watch: Watch | None = None, optimizer=None, **options) -> list[float]:
    """The losses of a plain loop."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    losses = []
    for tokens in data:
        loss = language_loss(model(tokens), tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if watch is not None:
            watch.step(loss)
    return losses

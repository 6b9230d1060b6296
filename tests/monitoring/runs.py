"""Short trainings with one fault, or none; commit 4adf60b9 has a study of twenty faults, `studies.watch_findings`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigprop.models import build
from sigprop.monitoring import Watch

TOKENS, VOCABULARY, EXAMPLES, CLASSES = 16, 32, 8, 4
EVERY = 5


@dataclass
class Run:
    """A model, its optimizer and its data; `faulty` is the finding that should come, `where` a part of its place."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterator[tuple[Tensor, Tensor]]
    faulty: str = ""
    where: str = ""

    def findings(self, folder: Any, steps: int) -> list[Any]:
        """What is said in a plain loop, in the order in which it was said."""
        logging.getLogger("sigprop.monitoring").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Watch(self.model, every=EVERY, folder=folder) as watch:
                for _, (inputs, targets) in zip(range(steps), self.batches, strict=False):
                    loss = loss_of(self.model(inputs), targets)
                    self.optimizer.zero_grad()
                    loss.backward()
                    self.optimizer.step()
                    watch.step(loss)
        return watch.findings


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    if targets.dim() == 2:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
    return F.cross_entropy(logits, targets)


def named_right(run: Run, findings: list[Any]) -> bool:
    """The first finding has the name, and the place is in its sites, parameters or title."""
    if not findings or findings[0].name != run.faulty:
        return False
    first = findings[0]
    return run.where in " ".join((*first.sites, *first.parameters, first.title))


def text(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Sequences of a random Markov chain: something to learn, and noise that cannot be."""
    generator = torch.Generator().manual_seed(seed)
    chain = torch.softmax(2.0 * torch.randn(VOCABULARY, VOCABULARY, generator=generator), 1)
    while True:
        tokens = [torch.randint(0, VOCABULARY, (EXAMPLES, 1), generator=generator)]
        for _ in range(TOKENS - 1):
            tokens.append(torch.multinomial(chain[tokens[-1][:, 0]], 1, generator=generator))
        joined = torch.cat(tokens, 1)
        yield joined, joined


def images(seed: int, broken: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Classes as noisy patterns; batch `broken` holds a nan."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(CLASSES, 1, 8, 8, generator=generator)
    step = 0
    while True:
        labels = torch.randint(0, CLASSES, (2 * EXAMPLES,), generator=generator)
        pictures = patterns[labels] + torch.randn(len(labels), 1, 8, 8, generator=generator)
        if step == broken:
            pictures[0, 0, 0, 0] = torch.nan
        yield pictures, labels
        step += 1


class Experts(nn.Module):
    """A mixture of two-layer experts, the best of which handles each token; `closed` experts are never chosen."""

    def __init__(self, width: int, count: int, closed: tuple[int, ...]):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(count)
        )
        for expert in closed:
            nn.init.constant_(self.router.bias[expert : expert + 1].data, -1e4)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        best = weights.argmax(-1)
        output = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            chosen = best == index
            if chosen.any():
                output[chosen] = expert(x[chosen]) * weights[chosen][:, index, None]
        return output


def decoder(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build("transformer", depth=4, width=32, heads=4, vocabulary=VOCABULARY, context=TOKENS)


def adamw(model: nn.Module, lr: float = 1e-3, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, **options)


def rate(seed: int) -> Run:
    model = decoder(seed)
    return Run(model, adamw(model, lr=0.3), text(seed), "rate_too_high")


def expert(seed: int) -> Run:
    model = decoder(seed)
    torch.manual_seed(seed)
    model.blocks[1].mlp = Experts(32, 4, closed=(2,))
    return Run(model, adamw(model), text(seed), "dead_expert", "experts.2")


def broken_batch(seed: int) -> Run:
    torch.manual_seed(seed)
    model = build("vit", image=8, patch=2, width=32, depth=4, heads=4, classes=CLASSES)
    return Run(model, adamw(model), images(seed, broken=50), "nonfinite", "(input)")


def frozen(seed: int) -> Run:
    model = decoder(seed)
    kept = [p for name, p in model.named_parameters() if not name.startswith("blocks.2.mlp")]
    return Run(model, torch.optim.AdamW(kept, lr=1e-3), text(seed), "frozen", "blocks.2.mlp")


def branch(seed: int) -> Run:
    model = decoder(seed)
    inside = lambda name: name.startswith("blocks.2.mlp")  # noqa: E731
    quick = [p for name, p in model.named_parameters() if inside(name)]
    slow = [p for name, p in model.named_parameters() if not inside(name)]
    groups = [{"params": slow, "lr": 1e-3}, {"params": quick, "lr": 0.3}]
    return Run(model, torch.optim.AdamW(groups), text(seed), "exploding_branch", "blocks.2")


def epsilon(seed: int) -> Run:
    model = decoder(seed)
    return Run(model, adamw(model, eps=0.1), text(seed), "epsilon_too_large")


def healthy(seed: int) -> Run:
    model = decoder(seed)
    return Run(model, adamw(model), text(seed))


def zero_branches(seed: int) -> Run:
    model = decoder(seed)
    for block in model.blocks:
        nn.init.zeros_(block.mlp.down.weight)
    return Run(model, adamw(model), text(seed))


def adapted(seed: int) -> Run:
    """All but the last block and the head held still on purpose."""
    model = decoder(seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("blocks.3", "final", "head")))
    return Run(model, adamw(model), text(seed))


FAULTY: dict[str, Callable[[int], Run]] = {
    "rate too high": rate,
    "dead expert": expert,
    "nan in a batch": broken_batch,
    "frozen layer": frozen,
    "epsilon too large": epsilon,
    "exploding branch": branch,
}
HEALTHY = {"decoder": healthy, "decoder, zero branches": zero_branches, "decoder, last block trained": adapted}

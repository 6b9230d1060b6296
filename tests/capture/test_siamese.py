"""One encoder for several inputs, whose outputs are compared by a function or by a loss, against initializations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigprop.capture import build, predict

A, B = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(20, (3, 6, 5), generator=torch.Generator().manual_seed(1))


class Triplets(nn.Module):
    """Bags of words: how much nearer one is than another, by one encoder; queries have their own."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.query, self.document = (
            nn.Sequential(nn.EmbeddingBag(20, width), nn.Linear(width, 96), nn.ReLU(), nn.Linear(96, 64))
            for _ in range(2)
        )

    def forward(self, query: Tensor, near: Tensor, far: Tensor) -> Tensor:
        q, a, b = (F.normalize(y, dim=-1) for y in (self.query(query), self.document(near), self.document(far)))
        return F.relu(0.5 - (q * a).sum(-1) + (q * b).sum(-1))


def test_what_outputs_of_one_encoder_have_in_common_cancels(agreement):
    predicted = agreement(Triplets, tuple(IDS), torch.mean, seeds=96)
    assert all(row.status != "assumed" for row in predicted.parameters)


class Pair(nn.Module):
    """Cosines of two inputs, through one encoder."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 48), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.encoder(a), self.encoder(b)
        return F.cosine_similarity(a, b)[:, None]


def test_outputs_of_one_encoder_are_correlated(agreement):
    predicted = agreement(Pair, (A, B), torch.sum, seeds=96, skip=BELOW)
    assert predicted["(output)"].mean > 0.3
    assert all(row.status == "assumed" for row in predicted.parameters)


BELOW = tuple(f"encoder.{number}{end}" for number in range(3) for end in ("", "@2", ".weight"))
"""What a gradient along both outputs has of the other is not followed to there, and is marked."""


class Halting(nn.Module):
    """A block again and again, whose gate of one channel decides how much of each visit counts."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.first, self.halt, self.block = nn.Linear(12, width), nn.Linear(width, 1), nn.Linear(width, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        x, made = self.first(x), torch.zeros(())
        for _ in range(2):
            share = self.halt(x).sigmoid()
            x = x + self.block(self.norm(x))
            made = x * share + made * (1.0 - share)
        return self.out(made)


def test_gates_and_states_of_several_visits_are_not_drawn_together():
    """It was a fault: outputs of one map with one channel and of another with many stood in one kernel."""
    rows = {row.name: row for row in predict(build(Halting), A).parameters}
    assert rows["out.weight"].status == "assumed"


def test_classes_that_are_products_of_tokens_are_a_guess():
    """The gradient is zero in sum over classes: the last bias of the second tower receives none, and was told much."""

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            made = [nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2)]
            self.first, self.second = made

        def forward(self, x):
            return self.first(x) @ self.second(x).T

    rows = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    matched = predict(build(Towers), rows, loss=lambda out: nn.functional.cross_entropy(out, torch.arange(16)))
    assert {item.status for item in matched.parameters} == {"assumed"}
    plain = predict(
        build(lambda: nn.Linear(32, 16)), rows, loss=lambda out: nn.functional.cross_entropy(out, torch.arange(16))
    )
    assert all(item.status != "assumed" for item in plain.parameters)

"""Tokens that are their own labels in a tied head: gradient and signal of each lie along one row of the table."""

import torch
from torch import nn
from torch.nn import functional as F

from sigprop.capture import predict
from sigprop.measurement import measure

IDS = torch.randint(300, (1, 96), generator=torch.Generator().manual_seed(1))
OTHERS = torch.randint(300, (1, 96), generator=torch.Generator().manual_seed(2))


class Tied(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.table, self.norm = nn.Embedding(300, width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, ids, labels):
        x = self.norm(self.table(ids))
        x = x + F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        logits = F.linear(self.norm(x), self.table.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def row(labels, width=32):
    return predict(lambda: Tied(width), {"ids": IDS, "labels": labels}).parameter("value.weight")


def error(labels):
    actual = measure(None, {"ids": IDS, "labels": labels}, build=lambda: Tied(32), seeds=32).parameter("value.weight")
    share = row(labels).grad_second_moment / actual.grad_second_moment - 1.0
    return share, actual.errors["grad_second_moment"] / actual.grad_second_moment


def test_a_narrow_model_says_so():
    off, noise = error(IDS)
    assert off < -3 * noise, "followed now: its status may be better"
    assert row(IDS).status == "assumed"
    assert "own labels" in row(IDS).reason


def test_other_labels_are_followed():
    off, noise = error(OTHERS)
    assert abs(off) < 0.1 + 3 * noise
    assert row(OTHERS).status == "fitted"


def test_a_wide_model_is_not_touched():
    assert row(IDS, width=320).status == "fitted"

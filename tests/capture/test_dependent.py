"""Tensors that are functions of one tensor, in sums, products and whatever else: never taken as independent."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, predict

X = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(200, (2, 16), generator=torch.Generator().manual_seed(0))
WIDTH = 128


class Met(nn.Module):
    """A tensor meets a later one that it is a part of."""

    def __init__(self, met):
        super().__init__()
        self.met, self.out, self.readout = met, nn.Identity(), nn.Linear(WIDTH, 8)
        self.first, self.branch = nn.Linear(24, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.earlier, self.later = nn.Identity(), nn.Identity()

    def forward(self, x):
        a = self.earlier(self.first(x))
        b = self.later(a + self.branch(torch.tanh(a)))
        return self.readout(self.out(self.met(a, b)))


MET = {
    "function": lambda a, b: torch.tanh(b) + a,
    "twice": lambda a, b: (b + b) + a,
    "clamp": lambda a, b: b.clamp(-1, 1) + a,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "lerp and sum": lambda a, b: torch.lerp(a, b, 0.3) + a,
    "where": lambda a, b: torch.where(b > 0, a, b),
    "where and sum": lambda a, b: torch.where(b > 0, b, a) + a,
    "slice of both": lambda a, b: torch.cat([a, b], -1)[:, :WIDTH] + b,
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    "product": lambda a, b: a * b,
    "gate": lambda a, b: F.silu(b) * a,
    "two functions": lambda a, b: b.relu() + a.relu(),
    "squares": lambda a, b: b.square() + a.square(),
    "softmax": lambda a, b: WIDTH * b.softmax(-1) + a,
    "norm": lambda a, b: F.layer_norm(a + a, (WIDTH,)) + b,
    "difference": lambda a, b: b - 2 * a,
    "what is left": lambda a, b: 0.5 * (a + b) + 0.4 * (a - b),
    "larger": lambda a, b: torch.maximum(a, b) + a,
    "stacked": lambda a, b: torch.stack([a, b, a * 0.5]).mean(0),
    "running sum": lambda a, b: torch.cumsum(a, 0) + b,
    "without what is along it": lambda a, b: b - (b * a).sum(-1, keepdim=True) / a.square().sum(-1, keepdim=True) * a,
    "mean token": lambda a, b: b + a.mean(0, keepdim=True),
}


@pytest.mark.parametrize("name", MET)
def test_a_tensor_meets_a_later_one(agreement, name):
    """Variances were up to half too small, gradients likewise, none of them marked."""
    agreement(lambda: Met(MET[name]), X, seeds=48, width=WIDTH // 3)


class Attention(nn.Module):
    def __init__(self, width, exclusive):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
        self.exclusive = exclusive

    def forward(self, x, first=None):
        query, key, value = (part(x).unflatten(-1, (4, -1)).transpose(1, 2) for part in self.parts[:3])
        value = value if first is None else 0.5 * value + 0.5 * first
        query, key = (F.rms_norm(item, item.shape[-1:]) for item in (query, key))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        if self.exclusive:
            along = F.normalize(value, dim=-1)
            out = out - (out * along).sum(-1, keepdim=True) * along
        return self.parts[3](out.transpose(1, 2).flatten(2)), value


class SpeedRun(nn.Module):
    """A GPT in the manner of speed-runs: a U-net of skips, the embedding mixed in again, residual values."""

    def __init__(self, kind="unet", width=64, depth=6):
        super().__init__()
        self.kind, self.table, self.head = kind, nn.Embedding(200, width), nn.Linear(width, 200, bias=False)
        self.attentions = nn.ModuleList(Attention(width, kind == "exclusive") for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width, bias=False) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Identity() for _ in range(depth))

    def forward(self, ids):
        x = start = F.rms_norm(self.table(ids), (self.table.weight.shape[1],))
        skips, seen, value, depth = [], [x], None, len(self.ups)
        for number, (attention, up, down, out) in enumerate(
            zip(self.attentions, self.ups, self.downs, self.outs, strict=True)
        ):
            if self.kind == "unet":
                x = (x + 0.7 * skips.pop() if number >= depth // 2 else x) + 0.3 * start
            branch, own = attention(F.rms_norm(x, x.shape[-1:]), value)
            value = own if self.kind == "unet" and value is None else value
            x = x + branch
            x = out(x + down(F.relu(up(F.rms_norm(x, x.shape[-1:]))).square()))
            skips.append(x) if number < depth // 2 else None
            if self.kind == "dense":
                seen.append(x)
                x = sum(item / len(seen) for item in seen)
        return 15 * torch.tanh(self.head(F.rms_norm(x, x.shape[-1:])) / 15)


@pytest.mark.parametrize("kind", ["unet", "dense"])
def test_streams_that_come_back(agreement, kind):
    """110 of 179 rows were wrong, none of them marked."""
    agreement(lambda: SpeedRun(kind), IDS, seeds=32, width=20)


def test_what_is_not_followed_is_marked():
    """What an attention makes of its values is along them, and here that is taken out."""
    made = predict(build(lambda: SpeedRun("exclusive", depth=1)), IDS)
    row = next(row for row in made.sites if row.name == "attentions.0")
    assert (row.status, row.reason) == ("assumed", "functions of one tensor, taken as independent")

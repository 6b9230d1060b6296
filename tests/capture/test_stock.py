"""Stock functions without an op of their own: drawn on the predicted states, their dimensions known by their places."""

# ruff: noqa: E501

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sigprop
from sigprop.capture import build, predict
from sigprop.errors import InputError

ROWS = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SEQUENCE = torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(0))
NEIGHBOURS = (torch.rand(8, 8, generator=torch.Generator().manual_seed(3)) < 0.4).float()
TURNED = torch.tensor([[0.8, 0.1, 0.0], [0.0, 0.9, 0.1]]).expand(3, -1, -1)


class Between(nn.Module):
    """A function between two layers."""

    def __init__(self, function, first, last, **parts):
        super().__init__()
        self.function, self.first, self.last, self.out = function, first, last, nn.Identity()
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.last(self.out(self.function(self, self.first(x))))


def rows(function, width=64, **parts):
    return lambda: Between(function, nn.Linear(32, 64), nn.Linear(width, 8), **{k: make() for k, make in parts.items()})


def sequences(function, width=64, **parts):
    return lambda: Between(function, nn.Linear(16, 64), nn.Linear(width, 8), **{k: make() for k, make in parts.items()})


def images(function):
    return lambda: Between(function, nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(32, 8, 1))


def solved(m, x):
    return torch.linalg.solve(torch.eye(64) + m.matrix @ m.matrix.T, x.T).T


def turned(m, x):
    return F.grid_sample(x[:, :32], F.affine_grid(TURNED, [3, 32, 8, 8], align_corners=False), align_corners=False)


STOCK = {
    "transposed convolution": (lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.ConvTranspose2d(32, 48, 4, 2, 1), nn.ReLU(), nn.Conv2d(48, 8, 1)), IMAGE),
    "lstm": (sequences(lambda m, x: m.cell(x)[0], cell=lambda: nn.LSTM(64, 64, batch_first=True)), SEQUENCE),
    "gru": (sequences(lambda m, x: m.cell(x)[0], cell=lambda: nn.GRU(64, 64, batch_first=True)), SEQUENCE),
    "real Fourier transform": (sequences(lambda m, x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * 0.5, n=12, dim=1)), SEQUENCE),
    "cosine similarity": (rows(lambda m, x: F.cosine_similarity(x.relu(), m.other(x), dim=-1)[:, None], 1, other=lambda: nn.Linear(64, 64)), ROWS),
    "distances": (rows(lambda m, x: torch.cdist(x, m.centres), 10, centres=lambda: nn.Parameter(torch.randn(10, 64))), ROWS),
    "sampled grid": (images(turned), IMAGE),
    "sparse product": (rows(lambda m, x: torch.sparse.mm(NEIGHBOURS.to_sparse(), x)), ROWS),
    "complex scalar": (rows(lambda m, x: (x * 1j**0.5).real), ROWS),
    "gate over channels": (images(lambda m, x: F.glu(x, 1)), IMAGE),
    "gate over tokens": (sequences(lambda m, x: F.glu(x, 1)), SEQUENCE),
    "solution": (rows(solved, matrix=lambda: nn.Parameter(torch.randn(64, 64))), ROWS),
}  # fmt: skip


@pytest.mark.parametrize("name", STOCK)
def test_by_theory_alone(agreement, name):
    """Three columns of a linear solve were up to 400 million times too large; the others were simulated."""
    make, batch = STOCK[name]
    agreement(make, batch, seeds=64, width=32)


def test_a_norm_of_zero_gain_has_numbers():
    class Zero(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.body = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 64)
            self.last, self.readout = nn.LayerNorm(64), nn.Linear(64, 8)
            nn.init.zeros_(self.norm.weight)

        def forward(self, x):
            x = self.first(x)
            return self.readout(self.last(self.body(self.norm(x)) + x))

    made = predict(build(Zero), ROWS)
    assert all(row.grad_second_moment == row.grad_second_moment for row in made.parameters)
    assert made.parameter("norm.weight").grad_second_moment > 0.0


def test_lazy_layers_without_shapes_are_refused():
    with pytest.raises(InputError, match="of Sequential belongs to a lazy layer that has seen no batch"):
        sigprop.predict(lambda: nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.LazyLinear(8)), ROWS)


class Stacked(nn.Module):
    """Layers are copied; `nn.Transformer` then initializes all matrices anew, and the biases stay."""

    def __init__(self, anew):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 96, 0.0, batch_first=True)
        self.table, self.encoder = nn.Embedding(32, 64), nn.TransformerEncoder(layer, 2)
        self.anew = nn.Transformer(64, 4, 2, 1, 96, 0.0, batch_first=True) if anew else None

    def forward(self, ids):
        x = 8.0 * self.table(ids)
        return self.encoder(x) if self.anew is None else self.anew(x, x)


def test_copied_biases_beside_weights_of_their_own(agreement):
    """All of the translation tutorial's rows were guesses."""
    ids = torch.arange(12).view(2, 6)
    found = agreement(lambda: Stacked(True), ids, seeds=48, width=64)
    assert all(row.status != "assumed" for row in (*found.sites, *found.parameters) if not row.name.startswith("enc"))
    assert all(row.status == "assumed" for row in predict(build(lambda: Stacked(False)), ids).sites[-2:])

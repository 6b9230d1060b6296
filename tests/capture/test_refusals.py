"""Models that cannot run are not predicted: what torch would refuse is refused, with the place."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.capture import build, predict
from sigprop.errors import InputError


class Product(nn.Module):
    """Multiplies what its input makes with another weight."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.randn(rows, 4))

    def forward(self, x):
        return self.first(x) @ self.weight


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 7)

    def forward(self, x):
        return self.first(x) + self.second(x)


X = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize(
    ("make", "batch", "words"),
    [
        (lambda: nn.Linear(8, 16), X, r"linear in '\(output\)'.*8"),
        (lambda: nn.Sequential(nn.Linear(9, 8), nn.Linear(9, 4)), X, r"linear in '1'"),
        (lambda: nn.Conv2d(3, 8, 3), torch.randn(2, 4, 8, 8), r"conv2d in '\(output\)'"),
        (lambda: nn.Sequential(nn.Conv1d(3, 8, 3), nn.Conv1d(4, 8, 3)), torch.randn(2, 3, 8), r"conv1d in '1'"),
        (lambda: Product(9), X[:, :8], r"matmul in '\(output\)'"),
        (Sum, X[:, :8], r"add in '\(output\)'"),
        (lambda: nn.LayerNorm(8), X, r"layer_norm in '\(output\)'"),
        (lambda: nn.Embedding(10, 8), torch.tensor([[1, -1]]), r"ids go from -1 to 1: needs ids from 0 to 9"),
        (lambda: nn.Embedding(10, 8), torch.tensor([[1, 10]]), r"has 10 rows, and ids go from 1 to 10"),
    ],
)
def test_what_torch_refuses_is_refused(make, batch, words, real):
    with pytest.raises(InputError, match=words):
        predict(make() if real else build(make), batch, loss="noise")


def test_weights_that_are_not_finite_are_refused():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    with torch.no_grad():
        model[1].weight[0, 0] = float("nan")
    with pytest.raises(InputError, match=r"'1.weight' has entries that are not finite"):
        predict(model, X[:, :8], loss="noise")


def test_labels_beyond_the_classes_are_refused():
    labels = torch.tensor([0, 1, 2, 9])
    with pytest.raises(InputError, match="labels go from 0 to 9, and there are 5 classes"):
        predict(nn.Linear(9, 5), X, loss=lambda output: F.cross_entropy(output, labels))
    with pytest.raises(InputError, match="the loss fails on outputs of the predicted kind: IndexError"):
        predict(nn.Linear(9, 5), X, loss=lambda output: F.cross_entropy(output, labels, label_smoothing=0.1))

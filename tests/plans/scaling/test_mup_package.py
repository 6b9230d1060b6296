"""Plans beside the `mup` package: the same initialization and learning rates, parameter by parameter.

The package's factors (mup 1.0.0) were stored by `studies.abc_mup_package`, which commit c73ab39 has: by what it
multiplies initialization and rate, with the forward multiplier of its readout folded in.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sigprop.plans.scaling import plan as prescribe

BASE = 32
STORED = json.loads((Path(__file__).parents[3] / "docs/data/abc_mup_package.json").read_text())


class Mlp(nn.Module):
    """Two hidden layers with biases."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = nn.Linear(12, width), nn.Linear(width, 2 * width)
        self.third, self.head = nn.Linear(2 * width, width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.third(self.second(self.first(x).relu()).relu()).relu())


class Gpt(nn.Module):
    """One block with separate query, key and value, as `mup` can express it."""

    def __init__(self, width: int):
        super().__init__()
        self.embed, self.norm, self.final = nn.Embedding(20, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 20, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        y = self.norm(x)
        scores = self.query(y) @ self.key(y).mT / math.sqrt(y.shape[-1])
        x = x + self.output(scores.softmax(-1) @ self.value(y))
        return self.head(self.final(x + self.down(self.up(x).relu())))


MODELS: dict[str, Any] = {"mlp": Mlp, "gpt": Gpt}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ratio", [2, 4])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_same_factors_as_the_package(name, ratio, optimizer):
    torch.manual_seed(1)
    base, model = MODELS[name](BASE), MODELS[name](ratio * BASE)
    plan = prescribe(model, "mup", base=base, optimizer=optimizer, attention="keep")
    package = STORED["factors"][name][str(ratio)]
    assert set(package) == {row.name for row in plan}
    for row in plan:
        expected = package[row.name]
        assert row.init.kind == "keep"
        assert row.init.value == pytest.approx(expected["init"], rel=1e-5), row.name
        assert row.lr == pytest.approx(expected[optimizer]), row.name
        assert row.weight_decay == pytest.approx(expected[f"{optimizer}_decay"]), row.name

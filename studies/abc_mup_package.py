"""The plan beside the `mup` package, parameter by parameter: `python -m studies.abc_mup_package --help`.

An MLP and a small Transformer, written once with a plain readout and once with `mup.MuReadout`, at two and four
times the base width. Stored: by what `mup` multiplies each parameter's initialization and learning rate, with
the forward multiplier of its readout folded in (the form without multipliers that plans use).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from studies.stored import stamp, write

BASE = 32


class Mlp(nn.Module):
    """Two hidden layers with biases; `readout` is nn.Linear or mup.MuReadout."""

    def __init__(self, width: int, readout: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.first, self.second = nn.Linear(12, width), nn.Linear(width, 2 * width)
        self.third, self.head = nn.Linear(2 * width, width), readout(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.third(self.second(self.first(x).relu()).relu()).relu())


class Gpt(nn.Module):
    """One block with separate query, key and value, as `mup` can express it."""

    def __init__(self, width: int, readout: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.embed, self.norm, self.final = nn.Embedding(20, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = readout(width, 20, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        y = self.norm(x)
        scores = self.query(y) @ self.key(y).mT / math.sqrt(y.shape[-1])
        x = x + self.output(scores.softmax(-1) @ self.value(y))
        return self.head(self.final(x + self.down(self.up(x).relu())))


MODELS: dict[str, Any] = {"mlp": Mlp, "gpt": Gpt}


def package_factors(mup: Any, name: str, width: int) -> dict[str, dict[str, float]]:
    """What `mup` does to every parameter of one model, in the form without forward multipliers."""
    readout = mup.MuReadout
    torch.manual_seed(0)
    model = MODELS[name](width, readout)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    mup.set_base_shapes(model, MODELS[name](BASE, readout), delta=MODELS[name](2 * BASE, readout))
    ratio, factors = width / BASE, {}
    for key, parameter in model.named_parameters():
        same = bool(torch.equal(before[key], parameter.detach()))
        own = 1.0 if same else float((parameter.detach() / before[key]).median())
        factors[key] = {"init": own / ratio if key == "head.weight" else own}
    for optimizer, kind in (("adamw", mup.MuAdamW), ("sgd", mup.MuSGD)):
        groups = kind(model.parameters(), lr=1.0, weight_decay=1.0).param_groups
        found = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
        for key, parameter in model.named_parameters():
            lr, decay = found[id(parameter)]
            power = {"adamw": 1, "sgd": 2}[optimizer] if key == "head.weight" else 0
            factors[key] |= {optimizer: lr / ratio**power, f"{optimizer}_decay": decay * ratio**power}
    return factors


def main(
    package: Annotated[Path, typer.Argument(help="Folder that holds the unpacked `mup` package.")],
    out: Annotated[Path, typer.Option(help="Where the table is stored.")] = Path("docs/data/abc_mup_package.json"),
) -> None:
    """Store the factors of `mup`; the tests compare plans with them."""
    sys.path.insert(0, str(package))
    import mup  # pyright: ignore[reportMissingImports]

    table = {name: {str(ratio): package_factors(mup, name, ratio * BASE) for ratio in (2, 4)} for name in MODELS}
    write(out, stamp("abc_mup_package FOLDER", mup="1.0.0", seed=0, base=BASE, factors=table))


if __name__ == "__main__":
    typer.run(main)

"""dslm Fig. 5: how an mlp and an attention block change the correlation of tokens, Xavier weights, dropout 0.1.

Gaussian tokens of a given correlation enter one block; what leaves is predicted and measured.
"""

from __future__ import annotations

import itertools
import statistics
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.measurement import measure
from sigprop.models.transformer import Attention, FeedForward, TransformerConfig
from sigprop.prediction import predict
from studies.reproduction import Judgement, Reproduction, Row, Setting

GIVEN = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)


def tokens(correlation: float, count: int, width: int) -> Tensor:
    """One sequence of unit variance whose tokens share a part of every channel."""
    generator = torch.Generator().manual_seed(11)
    shared, own = (torch.randn(1, rows, width, generator=generator) for rows in (1, count))
    return correlation**0.5 * shared + (1.0 - correlation) ** 0.5 * own


def block(name: str, width: int) -> nn.Module:
    config = TransformerConfig(width=width, heads=width // 64, bias=False, dropout=0.1, activation="relu")
    made: nn.Module = FeedForward(config) if name == "mlp" else Attention(config, causal=False)
    for parameter in made.parameters():
        nn.init.xavier_normal_(parameter)
    return made.train()


def run(setting: Setting) -> dict[str, Any]:
    width, count, seeds = (512, 256, 32) if setting.is_full else (256, 128, 16)
    rows = []
    for name in ("mlp", "attention"):
        for given in GIVEN:
            x = tokens(given, count, width).to(setting.device)
            real = measure(None, x, build=lambda name=name: block(name, width).to(setting.device), seeds=range(seeds))
            expected = predict(lambda name=name: block(name, width), x.cpu(), verify=0)
            found = real.sites[-1]
            rows.append(
                {
                    "block": name,
                    "given": given,
                    "predicted": round(expected.sites[-1].token_correlation, 4),
                    "measured": round(found.token_correlation, 4),
                    "error": round(found.errors["token_correlation"], 5),
                }
            )
    return {"width": width, "tokens": count, "seeds": list(range(seeds)), "rows": rows}


def judge(data: dict[str, Any]) -> Judgement:
    table = tuple(
        Row(
            f"{item['block']}: correlation {item['given']} becomes",
            "below it" if item["block"] == "mlp" and item["given"] > 0.65 else "below 1",
            f"{item['measured']:.3f} ± {item['error']:.3f}, predicted {item['predicted']:.3f}",
        )
        for item in data["rows"]
    )
    above = [item for item in data["rows"] if item["block"] == "mlp" and item["given"] > 0.65]
    below = [item for item in data["rows"] if item["block"] == "mlp" and item["given"] < 0.65]
    falls = all(item["measured"] < item["given"] for item in above)
    rises = all(item["measured"] > item["given"] for item in below)
    bounded = max(item["measured"] for item in data["rows"] if item["block"] == "attention")
    errors = [abs(item["predicted"] - item["measured"]) for item in data["rows"]]
    crossing = _crossing([item for item in data["rows"] if item["block"] == "mlp"])
    why = (
        f"The mlp lowers correlations above {crossing:.2f} (the paper: 0.65) and raises those below; attention ends at "
    )
    why += f"{bounded:.3f} at most. Predictions are within {max(errors):.3f} of {len(data['seeds'])} draws "
    why += f"(median {statistics.median(errors):.4f})."
    if falls and bounded < 1.0:
        return Judgement("reproduced" if rises else "in order but not in size", why, table)
    return Judgement("not reproduced", why, table)


def _crossing(rows: list[dict[str, Any]]) -> float:
    """Where the correlation stays what it is, between two of the values tried."""
    for left, right in itertools.pairwise(rows):
        before, after = (item["measured"] - item["given"] for item in (left, right))
        if before > 0 >= after:
            return left["given"] + (right["given"] - left["given"]) * before / (before - after)
    return float("nan")


REPRODUCTION = Reproduction(
    id="dslm-figure5",
    paper="dslm",
    place="Fig. 5",
    claim="With dropout 0.1 an mlp lowers the correlation of tokens above 0.65, and attention never lets it reach 1.",
    run=run,
    judge=judge,
    minutes=(1, 1),
    budget=(("seeds", 16.0),),
)

"""Shortcuts: each is used where it applies, named in `meta`, switched off by one option, and right within its error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.capture import build, predict
from sigprop.capture.capture import EXPERTS, LONG, PASSES, REPEATED, SEQUENCES, THINNED
from sigprop.errors import UnknownNameError
from sigprop.models import build as reference
from tests.capture.networks import Network
from tests.capture.test_experts import Mixture, X


def deep() -> nn.Module:
    return reference("transformer", width=16, depth=40, heads=2, vocabulary=40, norm_placement="pre")


def shallow() -> nn.Module:
    return reference("transformer", width=32, depth=1, heads=4, vocabulary=40, norm_placement="pre")


def many_heads() -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        q, k, v = (item.unflatten(-1, (64, 4)).transpose(1, 2) for item in m.maps(m.first(x)).chunk(3, -1))
        return m.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    return Network(run, first=nn.Linear(12, 256), maps=nn.Linear(256, 768), head=nn.Linear(256, 8))


def ids(*shape: int) -> Tensor:
    return torch.randint(40, shape, generator=torch.Generator().manual_seed(0))


TOKENS = torch.randn(1, 6, 12, generator=torch.Generator().manual_seed(0))
CASES: dict[str, tuple[Callable[[], nn.Module], Any, dict[str, Any], float]] = {
    REPEATED: (deep, ids(1, 4), {}, 0.05),
    SEQUENCES: (shallow, ids(6, 6), {}, 0.12),
    LONG: (shallow, ids(1, 24), {"tokens": 16}, 0.3),
    EXPERTS: (Mixture, X, {}, 0.3),
    THINNED: (many_heads, TOKENS, {}, 0.05),
}
"""Model, batch, options, and how far the median row may be from that of the whole."""


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_agrees_with_what_it_stands_for(name: str):
    make, batch, options, error = CASES[name]
    used = predict(build(make), batch, loss="noise", **options)
    whole = predict(build(make), batch, loss="noise", passes=(), **options)
    assert used.meta["passes"] == [name]
    assert whole.meta["passes"] == []
    compared = used.compare(whole)
    apart = []
    for item in compared.differences:
        if item.column in ("variance", "grad_variance", "grad_second_moment") and item.value > 0 < item.reference:
            apart.append(abs(math.log(item.value / item.reference)))
    assert len(apart) > 3
    assert sorted(apart)[len(apart) // 2] < error
    assert {row.name for row in used.sites} >= {row.name for row in whole.sites if "experts" not in row.name}


def test_an_unknown_pass_is_refused():
    with pytest.raises(UnknownNameError, match="repeated blocks"):
        predict(build(shallow), ids(1, 4), passes=["repeated block"])

"""The ops that the interpreter draws: they too do with every part of the state what they declare."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.capture.capture import RULES, rule
from sigprop.capture.jump import FollowedBlock, Jump
from sigprop.capture.tracing import trace
from sigprop.errors import InputError
from sigprop.graph.evaluate import Evaluation
from sigprop.graph.graph import Graph, Node
from sigprop.theory import Gradient, Signal
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.sources import GivenSignal
from tests.theory.ops.cases import Case
from tests.theory.ops.test_battery import complaints, upstream


class Both(nn.Module):
    """An attention, and a function that has no closed form."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.maps = nn.Embedding(16, 32), nn.Linear(32, 96)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            item.unflatten(-1, (4, 8)).transpose(1, 2) for item in self.maps(self.table(ids)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return y.sort(-1).values


def drawn_ops() -> set[type[Op]]:
    found: set[type[Op]] = set()
    for module in pkgutil.walk_packages(importlib.import_module("sigprop.capture").__path__, "sigprop.capture."):
        for item in vars(importlib.import_module(module.name)).values():
            if isinstance(item, type) and issubclass(item, Op) and item.__module__.startswith("sigprop.capture"):
                found.add(item)
    return {item for item in found if not item.__abstractmethods__}


class Above(Evaluation):
    """A gradient at every edge of a followed block."""

    def gradient(self, node: Node) -> Gradient:
        return upstream(5, self.signal(node).kernel)


def jump(x: Signal) -> Jump:
    """Over two blocks, between followed ones that add to the kernel."""
    graph = Graph()
    edges = [graph.add(Node(GivenSignal(replace(x, kernel=x.kernel.scale(1.0 + number / 20))))) for number in range(5)]
    followed = [
        FollowedBlock(number, before, after)
        for number, before, after in zip((1, 2, 5, 6), edges[:-1], edges[1:], strict=True)
    ]
    return Jump((followed[0], followed[1]), 5, followed[2:]).bound(Above(graph), edges[-1])


def cases() -> dict[str, Case]:
    found = trace(Both(), torch.tensor([[3, 1, 4, 1, 5]]))
    _ = [item.node for _, item in found.sites]
    made = {}
    for node in found.capture.graph.nodes:
        if type(node.op) in drawn_ops():
            made[type(node.op).__name__] = Case(found.states.op(node), tuple(map(found.states.signal, node.inputs)))
    x = found.states.signal(found.capture.graph.nodes[0])
    return made | {"Jump": Case(jump(x), (x,))}


def test_declared_parts_are_what_happens():
    found = cases()
    assert set(found) == {item.__name__ for item in drawn_ops()}
    for case in found.values():
        for x in case.inputs:
            assert x.kernel.tokens == 5
        assert list(complaints(case)) == []


def test_rules_refuse_duplicates():
    assert "linear" in RULES
    with pytest.raises(InputError, match="'linear' is already registered"):
        rule("linear")(lambda: None)

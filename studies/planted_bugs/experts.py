"""Bugs in mixtures of experts."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.parts import WIDTH, Gpt, Mlp, each, fill, normal, text


class Experts(nn.Module):
    """Each token goes to its two best experts, and all go to a shared one."""

    def __init__(self, width: int = WIDTH, count: int = 6):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList([Mlp(width, 2) for _ in range(count)])
        self.shared = Mlp(width, 2)
        self.activation: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        chances = self.activation(self.router(x)).softmax(-1)
        best, place = chances.topk(2, dim=-1)
        best = best / best.sum(-1, keepdim=True)
        weights = torch.zeros_like(chances).scatter(-1, place, best)
        made = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return self.shared(x) + (made * weights.unsqueeze(-2)).sum(-1)


def mixtures(model: nn.Module) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


@bug(
    "experts",
    "routers of std 10: one expert gets all the weight",
    at="router",
    cause="router|saturat|one-hot",
    fix="router",
    mend=lambda m: normal(m, "router.weight", 0.02),
)
def loud_router(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Experts, depth=3)
    normal(model, "router.weight", 10.0 if buggy else 0.02)
    return Setting(model, text())


def _differ(model: nn.Module) -> None:
    for place in range(6):
        normal(model, f"experts.{place}.up.weight", 0.02)
        normal(model, f"experts.{place}.down.weight", 0.02)


@bug(
    "experts",
    "experts that are deep copies of one",
    at="experts",
    cause="identical|equal|copies|same",
    fix="initialize|again|random",
    mend=_differ,
)
def copied_experts(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Experts, depth=3)
    if buggy:
        for item in mixtures(model):
            item.experts = nn.ModuleList([copy.deepcopy(item.experts[0]) for _ in range(6)])
    return Setting(model, text())


@bug(
    "experts",
    "a ReLU behind the router, dead by its bias: the choice never changes",
    at="router",
    cause="router|dead|no gradient|zero gradient|bias",
    fix="router|bias|relu",
    mend=lambda m: fill(m, "router.bias", 0.0),
)
def dead_router(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Experts, depth=3)
    for item in mixtures(model):
        item.activation = nn.ReLU()
    fill(model, "router.bias", -10.0 if buggy else 0.0)
    return Setting(model, text())


@bug(
    "experts",
    "the shared expert of one block fifty times larger",
    at="blocks.1.mlp.shared",
    cause="std|larger|sibling|other",
    fix="0\\.02|0\\.0[0-9]|multiply|std",
    mend=lambda m: normal(m.blocks[1].mlp.shared, "down.weight", 0.01),
)
def loud_shared(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Experts, depth=3)
    if buggy:
        model.blocks[1].mlp.shared.down.weight.data.mul_(50.0)
    return Setting(model, text())


@bug(
    "experts",
    "a router bias that sends every token to two experts",
    at="router",
    cause="router|expert|bias|token",
    fix="router.bias|bias",
    mend=lambda m: fill(m, "router.bias", 0.0),
)
def biased_router(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Experts, depth=3)
    if buggy:
        for bias in each(model, "router.bias"):
            bias.data[:2] = 30.0
    return Setting(model, text())


class Switch(nn.Module):
    """Top one, and its probability normalized over that one choice."""

    renormalized = True

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.router, self.experts = nn.Linear(width, 4, bias=False), nn.ModuleList([Mlp(width, 2) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        chances = self.router(x).softmax(-1)
        best, place = chances.topk(1, dim=-1)
        best = best / best.sum(-1, keepdim=True) if self.renormalized else best
        weights = torch.zeros_like(chances).scatter(-1, place, best)
        made = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (made * weights.unsqueeze(-2)).sum(-1)


@bug(
    "experts",
    "a switch router normalized over its single choice gets no gradient",
    at="router",
    cause="single choice|normaliz|no gradient|exactly zero|zero gradient",
    fix="normaliz|probab|router",
    mend=lambda m: [setattr(item, "renormalized", False) for item in m.modules() if isinstance(item, Switch)],
)
def renormalized_switch(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Switch, depth=3)
    for module in model.modules():
        if isinstance(module, Switch):
            module.renormalized = buggy
    return Setting(model, text())

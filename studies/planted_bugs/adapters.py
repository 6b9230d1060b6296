"""Bugs in adapters: low-rank factors, prompts, bottlenecks, magnitudes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.parts import WIDTH, Gpt, fill, normal, text


class Lora(nn.Module):
    """A frozen matrix with a low-rank factor beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4, scale: float = 2.0):
        super().__init__()
        self.base, self.scale = base, scale
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) * base.in_features**-0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.lora_a.T @ self.lora_b.T)


def adapted(wrap: Any, trained: str) -> Any:
    """A GPT whose output projections are wrapped, and of which only the named parameters are trained."""
    model: Any = Gpt()
    for block in model.blocks:
        block.mlp.down, block.attn.proj = wrap(block.mlp.down), wrap(block.attn.proj)  # type: ignore[union-attr]
    for name, weight in model.named_parameters():
        weight.requires_grad_(trained in name)
    return model


def loras(model: nn.Module) -> list[Lora]:
    return [module for module in model.modules() if isinstance(module, Lora)]


@bug(
    "adapters",
    "LoRA scaled by alpha // r, which is 0",
    at="lora",
    cause="zero|scale",
    fix="scale|alpha|factor",
    mend=lambda m: [setattr(item, "scale", 0.5) for item in loras(m)],
)
def lora_scale(buggy: bool) -> Setting:
    model: Any = adapted(lambda base: Lora(base, scale=float(8 // 16 if buggy else 8 / 16)), "lora")
    return Setting(model, text())


@bug(
    "adapters",
    "LoRA whose second factor is normal instead of zero",
    at="lora_b",
    cause="lora|adapter|branch|logit|stream|larger",
    fix="lora_b|zero",
    mend=lambda m: fill(m, "lora_b", 0.0),
)
def lora_loud(buggy: bool) -> Setting:
    model: Any = adapted(Lora, "lora")
    normal(model, "lora_b", 1.0 if buggy else 0.0)
    return Setting(model, text())


@bug(
    "adapters",
    "everything was frozen, the adapters too",
    at="lora|parameter",
    cause="frozen|requires_grad|nothing.*train|no.*trainable|no parameter",
    fix="requires_grad|unfreeze|freez",
    mend=lambda m: [weight.requires_grad_() for item in loras(m) for weight in (item.lora_a, item.lora_b)],
)
def all_frozen(buggy: bool) -> Setting:
    return Setting(adapted(Lora, "nothing" if buggy else "lora"), text())


class Bottleneck(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 8):
        super().__init__()
        self.base, self.adapter_down = base, nn.Linear(base.out_features, rank)
        self.adapter_up = nn.Linear(rank, base.out_features)
        nn.init.zeros_(self.adapter_up.weight)
        nn.init.zeros_(self.adapter_up.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.base(x)
        return x + self.adapter_up(F.relu(self.adapter_down(x)))


@bug(
    "adapters",
    "bottleneck adapters whose ReLU is dead from the start",
    at="adapter_down",
    cause="dead|negative|bias|zero",
    fix="bias|adapter_down",
    mend=lambda m: fill(m, "adapter_down.bias", 0.0),
)
def dead_bottleneck(buggy: bool) -> Setting:
    model: Any = adapted(Bottleneck, "adapter")
    fill(model, "adapter_down.bias", -10.0 if buggy else 0.0)
    return Setting(model, text())


class Prompted(Gpt):
    """Soft prompts before the words."""

    detached = False

    def __init__(self) -> None:
        super().__init__()
        self.prompt = nn.Parameter(0.02 * torch.randn(6, WIDTH))

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        prompt = self.prompt.data if self.detached else self.prompt
        x = torch.cat([prompt.expand(len(ids), -1, -1), self.embed(ids)], dim=1)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x[:, 6:]))
        assert targets is not None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@bug(
    "adapters",
    "a soft prompt used through .data",
    at="prompt",
    cause="no gradient|detach|\\.data|not used|not reach",
    fix="detach|\\.data",
    mend=lambda m: setattr(m, "detached", False),
)
def detached_prompt(buggy: bool) -> Setting:
    model: Any = Prompted()
    model.detached = buggy
    for name, weight in model.named_parameters():
        weight.requires_grad_("prompt" in name or "head" in name)
    return Setting(model, text())


class Dora(nn.Module):
    """A magnitude for each output, a direction from the frozen matrix and its factors."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(4, base.in_features) * base.in_features**-0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, 4))
        self.magnitude = nn.Parameter(base.weight.detach().norm(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        weight = F.normalize(self.base.weight + self.lora_b @ self.lora_a, dim=1)
        return F.linear(x, self.magnitude[:, None] * weight, self.base.bias)


@bug(
    "adapters",
    "DoRA whose magnitudes are all forty",
    at="magnitude",
    cause="magnitude",
    fix="magnitude|norm",
    mend=lambda m: [
        item.magnitude.copy_(item.base.weight.norm(dim=1)) for item in m.modules() if isinstance(item, Dora)
    ],
)
def loud_dora(buggy: bool) -> Setting:
    model: Any = adapted(Dora, "o")
    for weight in model.parameters():
        weight.requires_grad_(True)
    if buggy:
        fill(model, "magnitude", 40.0)
    return Setting(model, text())

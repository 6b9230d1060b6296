"""Faulty and healthy training runs for `Watch`: what each is, and what should be said of it.

Every fault has two forms. Thresholds were set while looking at the first (`tuned`); the second, in another
architecture or by another cause, and its seeds, were kept aside (`held out`). `studies.watch_findings` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigprop.models import build

TOKENS, VOCABULARY, EXAMPLES, CLASSES = 16, 32, 8, 4
Batches = Callable[[int], Iterator[tuple[Tensor, Tensor]]]


@dataclass
class Run:
    """A model, its optimizer and its data; `faulty` is the finding that should come, `where` a part of its place."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Batches
    faulty: str = ""
    where: str = ""
    steps: int = 100
    autocast: torch.dtype | None = None
    warmup: int = 0

    def train(self, watch: Any) -> None:
        """A plain loop; linear warm-up where asked."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for step, (inputs, targets) in enumerate(self.batches(self.steps)):
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * min(1.0, (step + 1) / self.warmup) if self.warmup else rate
            with torch.autocast("cpu", dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None):
                loss = loss_of(self.model(inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            watch.step(loss)


def loss_of(output: Any, targets: Tensor) -> Tensor:
    logits = getattr(output, "logits", output).float()
    if targets.dim() == 2:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
    return F.cross_entropy(logits, targets)


# data


def text(seed: int) -> Batches:
    """Sequences of a random Markov chain: something to learn, and noise that cannot be."""

    def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        chain = torch.softmax(2.0 * torch.randn(VOCABULARY, VOCABULARY, generator=generator), 1)
        for _ in range(steps):
            tokens = [torch.randint(0, VOCABULARY, (EXAMPLES, 1), generator=generator)]
            for _ in range(TOKENS - 1):
                tokens.append(torch.multinomial(chain[tokens[-1][:, 0]], 1, generator=generator))
            joined = torch.cat(tokens, 1)
            yield joined, joined

    return batches


def images(seed: int, broken: int = -1, ordered: int = 0) -> Batches:
    """Classes as noisy patterns; batch `broken` holds a nan; `ordered` keeps one class for so many batches."""

    def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        patterns = torch.randn(CLASSES, 1, 8, 8, generator=generator)
        for step in range(steps):
            labels = torch.randint(0, CLASSES, (2 * EXAMPLES,), generator=generator)
            if ordered:
                labels = torch.full_like(labels, step // ordered % CLASSES)
            pictures = patterns[labels] + torch.randn(len(labels), 1, 8, 8, generator=generator)
            if step == broken:
                pictures[0, 0, 0, 0] = torch.nan
            yield pictures, labels

    return batches


def sources(seed: int, block: int) -> Batches:
    """Two kinds of text in turns, each for many batches: never mixed."""

    def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        for step in range(steps):
            low = (step // block % 2) * (VOCABULARY // 2)
            start = torch.randint(0, VOCABULARY // 2, (EXAMPLES, 1), generator=generator)
            tokens = low + (start + torch.arange(TOKENS)) % (VOCABULARY // 2)
            yield tokens, tokens

    return batches


# models


def decoder(seed: int, **settings: Any) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {"depth": 4, "width": 32, "heads": 4, "vocabulary": VOCABULARY, "context": TOKENS}
    return build("transformer", **{**sizes, **settings})


def vit(seed: int, **settings: Any) -> nn.Module:
    torch.manual_seed(seed)
    sizes = {"image": 8, "patch": 2, "width": 32, "depth": 4, "heads": 4, "classes": CLASSES}
    return build("vit", **{**sizes, **settings})


def hugging_face(seed: int, name: str, **settings: Any) -> nn.Module:
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, **settings)
    kinds = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM", "Mixtral": "MixtralForCausalLM"}
    return getattr(transformers, kinds[name])(config)


LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": TOKENS,
}
GPT2 = {"n_layer": 4, "n_embd": 32, "n_head": 4, "n_positions": TOKENS}


class Experts(nn.Module):
    """A mixture of two-layer experts, the best of which handles each token; `closed` experts are never chosen."""

    def __init__(self, width: int, count: int, closed: tuple[int, ...] = ()):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(count)
        )
        for expert in closed:
            nn.init.constant_(self.router.bias[expert : expert + 1].data, -1e4)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        best = weights.argmax(-1)
        output = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            chosen = best == index
            if chosen.any():
                output[chosen] = expert(x[chosen]) * weights[chosen][:, index, None]
        return output


def mixture(seed: int, closed: tuple[int, ...] = ()) -> nn.Module:
    """The decoder with an expert mixture in place of the second block's mlp."""
    model = decoder(seed)
    torch.manual_seed(seed)
    model.blocks[1].mlp = Experts(32, 4, closed)
    return model


class Detached(nn.Module):
    """A module whose input and output are cut out of the graph by mistake."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).detach()


def adamw(model: nn.Module, lr: float = 1e-3, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, **options)


def faster(model: nn.Module, part: Callable[[str], bool], factor: float, lr: float = 1e-3) -> torch.optim.Optimizer:
    """Some parameters at a much higher rate than the others."""
    quick = [p for name, p in model.named_parameters() if part(name)]
    slow = [p for name, p in model.named_parameters() if not part(name)]
    return torch.optim.AdamW([{"params": slow, "lr": lr}, {"params": quick, "lr": lr * factor}])


# runs


def rate_tuned(seed: int) -> Run:
    model = decoder(seed)
    return Run(model, adamw(model, lr=0.3), text(seed), "rate_too_high")


def rate_held_out(seed: int) -> Run:
    model = vit(seed)
    return Run(model, torch.optim.SGD(model.parameters(), lr=3.0, momentum=0.9), images(seed), "rate_too_high")


def collapse_tuned(seed: int) -> Run:
    model = decoder(seed)
    quick = faster(model, lambda name: "query" in name or "key" in name, 100.0)
    return Run(model, quick, text(seed), "attention_collapse", "attention")


def collapse_held_out(seed: int) -> Run:
    model = hugging_face(seed, "Llama", **LLAMA)
    quick = faster(model, lambda name: "q_proj" in name or "k_proj" in name, 100.0)
    return Run(model, quick, text(seed), "attention_collapse", "self_attn")


def expert_tuned(seed: int) -> Run:
    model = mixture(seed, closed=(2,))
    return Run(model, adamw(model), text(seed), "dead_expert", "experts.2")


def expert_held_out(seed: int) -> Run:
    model = hugging_face(seed, "Mixtral", **LLAMA, num_local_experts=4, num_experts_per_tok=1)
    gate = model.model.layers[1].mlp.gate.weight
    with torch.no_grad():
        gate[0] = torch.randn(gate.shape[1])
        gate[1] = -gate[0]
        gate[3] = 0.0
    gate.requires_grad_(False)
    return Run(model, adamw_trained(model), text(seed), "dead_expert", "layers.1")


def adamw_trained(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def batch_tuned(seed: int) -> Run:
    model = vit(seed)
    return Run(model, adamw(model), images(seed, broken=50), "nonfinite", "(input)")


def batch_held_out(seed: int) -> Run:
    torch.manual_seed(seed)
    model = build("resnet", width=8, depth=1, classes=CLASSES, channels=1)
    return Run(model, adamw(model), images(seed, broken=53), "nonfinite", "step 53")


def overflow_tuned(seed: int) -> Run:
    model = decoder(seed)
    nn.init.normal_(model.blocks[2].mlp.down.weight, 0.0, 3e5)
    return Run(model, adamw(model), text(seed), "overflow", "blocks.2.mlp", autocast=torch.float16)


def overflow_held_out(seed: int) -> Run:
    model = hugging_face(seed, "GPT2", **GPT2)
    nn.init.normal_(model.transformer.h[1].mlp.c_fc.weight, 0.0, 5e4)
    return Run(model, adamw(model), text(seed), "overflow", "h.1.mlp.c_fc", autocast=torch.float16)


def frozen_tuned(seed: int) -> Run:
    model = decoder(seed)
    kept = [p for name, p in model.named_parameters() if not name.startswith("blocks.2.mlp")]
    return Run(model, torch.optim.AdamW(kept, lr=1e-3), text(seed), "frozen", "blocks.2.mlp")


def frozen_held_out(seed: int) -> Run:
    model = vit(seed)
    model.blocks[1].mlp = Detached(model.blocks[1].mlp)
    return Run(model, adamw(model), images(seed), "frozen", "blocks.1.mlp")


def branch_tuned(seed: int) -> Run:
    model = decoder(seed)
    quick = faster(model, lambda name: name.startswith("blocks.2.mlp"), 300.0)
    return Run(model, quick, text(seed), "exploding_branch", "blocks.2")


def branch_held_out(seed: int) -> Run:
    model = hugging_face(seed, "Llama", **LLAMA)
    quick = faster(model, lambda name: "layers.1.mlp" in name, 300.0)
    return Run(model, quick, text(seed), "exploding_branch", "layers.1")


def epsilon_tuned(seed: int) -> Run:
    model = decoder(seed)
    return Run(model, adamw(model, eps=0.1), text(seed), "epsilon_too_large")


def epsilon_held_out(seed: int) -> Run:
    model = hugging_face(seed, "GPT2", **GPT2)
    return Run(model, torch.optim.Adam(model.parameters(), lr=1e-3, eps=0.03), text(seed), "epsilon_too_large")


def decay_tuned(seed: int) -> Run:
    model = decoder(seed)
    return Run(model, adamw(model, lr=3e-3, weight_decay=10.0), text(seed), "decayed_gain", "norm")


def decay_held_out(seed: int) -> Run:
    model = hugging_face(seed, "Llama", **LLAMA)
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    groups = [{"params": norms, "weight_decay": 20.0}, {"params": others, "weight_decay": 0.01}]
    return Run(model, torch.optim.AdamW(groups, lr=1e-3), text(seed), "decayed_gain", "norm")


def order_tuned(seed: int) -> Run:
    model = vit(seed)
    return Run(model, adamw(model), images(seed, ordered=25), "loss_alone", steps=150)


def order_held_out(seed: int) -> Run:
    model = decoder(seed)
    return Run(model, adamw(model), sources(seed, block=40), "loss_alone", steps=200)


FAULTY: dict[str, tuple[Callable[[int], Run], Callable[[int], Run]]] = {
    "rate too high": (rate_tuned, rate_held_out),
    "entropy collapse": (collapse_tuned, collapse_held_out),
    "dead expert": (expert_tuned, expert_held_out),
    "nan in a batch": (batch_tuned, batch_held_out),
    "overflow in fp16": (overflow_tuned, overflow_held_out),
    "frozen layer": (frozen_tuned, frozen_held_out),
    "exploding branch": (branch_tuned, branch_held_out),
    "epsilon too large": (epsilon_tuned, epsilon_held_out),
    "decay eats a gain": (decay_tuned, decay_held_out),
    "data in order": (order_tuned, order_held_out),
}


def _healthy(make: Callable[[int], nn.Module], data: Callable[[int], Batches], **settings: Any) -> Callable[[int], Run]:
    def run(seed: int) -> Run:
        model = make(seed)
        chosen = dict(settings)
        optimizer = chosen.pop("optimizer", adamw_trained)
        return Run(model, optimizer(model), data(seed), **chosen)

    return run


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _decayed(model: nn.Module) -> torch.optim.Optimizer:
    return adamw(model, lr=1e-3, weight_decay=0.1)


def _resnet(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build("resnet", width=8, depth=1, classes=CLASSES, channels=1)


def _mixer(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build("mixer", image=8, channels=1, patch=2, width=32, depth=4, classes=CLASSES)


def _zero_branches(seed: int) -> nn.Module:
    model = decoder(seed)
    for block in model.blocks:
        nn.init.zeros_(block.mlp.down.weight)
    return model


def _adapted(seed: int) -> nn.Module:
    """All but the last block and the head held still on purpose."""
    model = decoder(seed)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("blocks.3", "final", "head")))
    return model


HEALTHY: dict[str, Callable[[int], Run]] = {
    "pre-norm decoder": _healthy(decoder, text),
    "post-norm decoder, warm-up": _healthy(lambda seed: decoder(seed, norm_placement="post"), text, warmup=20),
    "decoder, decay 0.1 on all": _healthy(decoder, text, optimizer=_decayed),
    "decoder in bf16": _healthy(decoder, text, autocast=torch.bfloat16),
    "decoder, zero branches": _healthy(_zero_branches, text),
    "decoder, last block trained": _healthy(_adapted, text),
    "mixture of experts": _healthy(mixture, text),
    "ViT": _healthy(vit, images),
    "ResNet, SGD": _healthy(_resnet, images, optimizer=_sgd),
    "Mixer": _healthy(_mixer, images),
    "GPT-2": _healthy(lambda seed: hugging_face(seed, "GPT2", **GPT2), text),
    "Llama, warm-up": _healthy(lambda seed: hugging_face(seed, "Llama", **LLAMA), text, warmup=20),
}

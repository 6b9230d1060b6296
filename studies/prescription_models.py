"""Models, batches and schemes of the training study (`prescription_training.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sigprop as sp
from sigprop.models import load_text
from sigprop.research.lab.data import Causal, ImageBatches, Masked, TextBatches, labelled_idx, tokens_of
from sigprop.results.parameters import TABLES

BASE_WIDTH, BASE_LAYERS, HEAD = 128, 4, 64
STEPS, MOST = 300, 30_000_000
RATES = {"table": "embedding", "positions": "positional", "biases": "bias", "gains": "norm gain"}
"""Options of a scheme that multiply the rate of a role, and divide its decay."""


def with_usual(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a run, with the settings that rows leave out."""
    return {"optimizer": "adamw", "steps": STEPS, "batch": 128 if row["family"] == "vit" else 16, "tokens": 256} | row


# -- models


def build(family: str, width: int, layers: int, tokens: int) -> nn.Module:
    """A Hugging Face model of the family with heads of 64 and no dropout."""
    import transformers as hf

    hf.logging.set_verbosity_error()
    heads = max(width // HEAD, 1)
    shape: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    ends: dict[str, Any] = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
    gated = {**ends, "intermediate_size": int(8 * width / 3) // 8 * 8, "num_key_value_heads": heads, "use_cache": False}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    gpt: dict[str, Any] = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": tokens, **ends, **still}
    quiet: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    makers: dict[str, Callable[[], nn.Module]] = {
        "llama": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**shape, **gated, max_position_embeddings=tokens, tie_word_embeddings=False)
        ),
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**gpt, use_cache=False)),
        "postln": lambda: hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**gpt)),
        "gpt2-untied": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**gpt, use_cache=False, tie_word_embeddings=False)),
        "postln-untied": lambda: hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**gpt, tie_word_embeddings=False)),
        "bert": lambda: hf.BertForMaskedLM(
            hf.BertConfig(
                **shape, **quiet, vocab_size=257, intermediate_size=4 * width, max_position_embeddings=tokens
            )
        ),
        "mixtral": lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**shape, **gated, num_local_experts=4, num_experts_per_tok=2, pad_token_id=1)
        ),
        "vit": lambda: hf.ViTForImageClassification(
            hf.ViTConfig(
                **shape, **quiet, intermediate_size=4 * width, image_size=28, patch_size=4, num_channels=1,
                num_labels=10,
            )
        ),
    }  # fmt: skip
    return makers[family]()


@contextlib.contextmanager
def without_masks() -> Iterator[None]:
    """No example is padded or holds several texts. While a graph is captured transformers cannot look, and would write
    a mask where otherwise the attention is told to be causal: slower, and another program for compiled blocks."""
    from transformers import masking_utils as masks

    kept = masks.find_packed_sequence_indices, masks.is_tracing
    masks.find_packed_sequence_indices = lambda position_ids: None
    masks.is_tracing = lambda tensor=None: False
    try:
        yield
    finally:
        masks.find_packed_sequence_indices, masks.is_tracing = kept


def every_expert(self: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """All experts for all tokens, those not chosen with weight zero: the same function in fixed shapes."""
    shares = torch.zeros(len(hidden), len(self.down_proj), dtype=weights.dtype, device=hidden.device)
    shares = shares.scatter(1, chosen, weights)
    gated = self._apply_gate(torch.matmul(hidden, self.gate_up_proj.transpose(1, 2)))
    given = torch.matmul(gated, self.down_proj.transpose(1, 2))
    return (given * shares.T[:, :, None]).sum(0).to(hidden.dtype)


def with_every_expert(model: Any) -> nn.Module:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register("every_expert", every_expert)
    model.set_experts_implementation("every_expert")
    return model


# -- batches


class _Masked(Masked):
    """15 % of the bytes become the mask, token 256."""

    def __call__(self, ids: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        chosen = torch.rand(ids.shape, generator=generator) < self.share
        return {"input_ids": ids.masked_fill(chosen, self.mask), "labels": ids.masked_fill(~chosen, -100)}


def batches_of(family: str, source: Path, batch: int, tokens: int, seed: int) -> Any:
    """Random passages of a text, or images in a random order: a function of the step."""
    if family == "vit":
        return ImageBatches(*labelled_idx(source), batch, 1000 + seed)
    objective = _Masked(256, 257) if family == "bert" else Causal()
    return TextBatches(tokens_of(load_text(source)[:MOST]), batch, tokens, 1000 + seed, objective)


# -- schemes


def prescribe(scheme: str, model: nn.Module, family: str, layers: int, tokens: int, optimizer: str) -> Any:
    """The plan of a scheme; None for the model as it is."""
    name, _, rest = scheme.partition(":")
    options = {key: float(value) for key, value in (item.split("=") for item in rest.split("&") if item)}
    if name == "default":
        return None
    if name.startswith("mup"):
        depth = name.partition("+")[2] or "none"
        base = build(family, BASE_WIDTH, BASE_LAYERS if depth != "none" else layers, tokens)
        return sp.plan(model, "mup", base=base, depth=depth, optimizer=optimizer)
    recipe, width, depth = [*{"ours": "unit+mup"}.get(name, name).split("+"), "none", "none"][:3]
    batch: Any = (
        torch.randn(2, 1, 28, 28) if family == "vit" else {"input_ids": torch.randint(256, (1, min(tokens, 128)))}
    )
    faster = {role: options.pop(option, 1.0) for option, role in RATES.items()}
    shaped = options.pop("shaped", 1.0)
    plan = sp.plan(model, recipe, width=width, depth=depth, optimizer=optimizer, batch=batch, **options)
    rows = [row if shaped or row.role not in TABLES else _faster(row, 1.0 / row.lr) for row in plan.parameters]
    rows = [_faster(row, faster.get(row.role, 1.0)) for row in rows]
    return replace(plan, parameters=rows)


def _faster(row: Any, factor: float) -> Any:
    return replace(row, lr=row.lr * factor, weight_decay=row.weight_decay / factor)


def usual_groups(parameters: list[nn.Parameter], rate: float, decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices decay, gains and biases do not."""
    matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
    return [{"params": matrices, "lr": rate, "weight_decay": decay}, {"params": vectors, "lr": rate, "weight_decay": 0}]


def optimizers_of(name: str, plan: Any, model: nn.Module, rate: float, decay: float) -> list[torch.optim.Optimizer]:
    """The plan's own; without a plan as people use them, at one rate for all."""
    if plan is not None and name == "adamw":
        return [torch.optim.AdamW(plan.param_groups(model, lr=rate, weight_decay=decay), betas=(0.9, 0.95))]
    if plan is not None:
        return plan.optimizers(model, lr=rate, weight_decay=decay)
    if name == "adamw":
        return [torch.optim.AdamW(usual_groups(list(model.parameters()), rate, decay), betas=(0.9, 0.95))]
    if name == "momentum":
        return [torch.optim.SGD(usual_groups(list(model.parameters()), rate, decay), momentum=0.9)]
    named: Any = model
    ends = [p for module in (named.get_input_embeddings(), named.get_output_embeddings()) for p in module.parameters()]
    kept = {id(p) for p in ends}
    inside = [p for p in model.parameters() if p.ndim == 2 and id(p) not in kept]
    chosen = {id(p) for p in inside}
    rest = usual_groups([p for p in model.parameters() if id(p) not in chosen], rate, decay)
    muon = torch.optim.Muon(inside, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, betas=(0.9, 0.95))]

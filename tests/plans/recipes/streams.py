"""The variance of the scaled residual stream, measured over draws of a plan, and small models to measure it on."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import run
from sigprop.models.data import sample_text, text_batch
from sigprop.plans import Plan
from sigprop.structure import Structure


@dataclass
class Stream:
    """Variance of every residual sum, scaled as the plan says: means over seeds and their standard errors."""

    variance: list[float]
    error: list[float]


def measure_stream(model: nn.Module, structure: Structure, plan: Plan, batch: Any, seeds: int) -> Stream:
    """Sums are seen at the norms that read them; a plan's levels turn the stream of the folded model into the scaled
    one, relative to `stream_variance`."""
    levels = [row.level if row.folded else 1.0 for row in plan.junctions] or [1.0] * len(structure.junctions)
    start = plan.meta.get("stream_variance", 1.0)
    watched = {junction.readers[0]: place for place, junction in enumerate(structure.junctions) if junction.readers}
    variances: dict[int, list[float]] = {place: [] for place in watched.values()}
    for seed in range(seeds):
        plan.apply_(model, torch.Generator().manual_seed(seed))
        found: dict[int, Tensor] = {}
        handles = [
            model.get_submodule(name).register_forward_pre_hook(_keep(found, place)) for name, place in watched.items()
        ]
        with torch.no_grad():
            run(model, batch)
        for handle in handles:
            handle.remove()
        for place, value in found.items():
            variances[place].append(float(value.double().var()) * levels[place] ** 2 / start)
    rows = [variances[place] for place in sorted(variances)]
    return Stream(list(map(statistics.fmean, rows)), [statistics.stdev(row) / len(row) ** 0.5 for row in rows])


def _keep(found: dict[int, Tensor], place: int) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple) -> None:
        found.setdefault(place, inputs[0])

    return hook


def family(name: str, depth: int, width: int) -> nn.Module:
    """A Hugging Face model from its config, in evaluation mode."""
    import transformers as hf

    text: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": 4}
    text |= {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
    grouped: dict[str, Any] = {**text, "num_key_value_heads": 2, "pad_token_id": 1, "intermediate_size": 2 * width}
    encoder = {"d_model": width, "num_layers": depth, "num_heads": 4, "d_kv": width // 4, "d_ff": 4 * width}
    makers: dict[str, Callable[[], nn.Module]] = {
        "llama": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**text, num_key_value_heads=2, intermediate_size=3 * width)
        ),
        "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**text, intermediate_size=4 * width)),
        "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**grouped, head_dim=width // 4)),
        "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**grouped, num_local_experts=4)),
        "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**encoder, vocab_size=256)),
    }
    return makers[name]().eval()


def batch_for(name: str, tokens: int) -> dict[str, Tensor]:
    ids = text_batch(sample_text(), 1, tokens)
    return {"input_ids": ids, "decoder_input_ids": ids.flip(0)} if name == "t5" else {"input_ids": ids}

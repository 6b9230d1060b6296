"""Residual variance by depth under Xavier, DeepScale and `unit`: `python -m studies.unit_profiles --help`.

Stacks of 12 to 768 layers (Pre-LN and Post-LN encoders, Pre-LN and Post-LN decoders) and Hugging Face models of 12
layers. Variance of the scaled stream at every residual sum and the gradient's first-to-last ratio, over draws of the
plan on the shipped text. Results are added to `docs/data/unit_profiles.json`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from sigprop.models import build
from sigprop.models.data import sample_text, text_batch
from sigprop.plans.recipes import plan, read_structure
from studies.recipes_shared import DATA, measure_stream, save

RECIPES = ("xavier", "deepscale", "unit")
STACKS = ("encoder-pre", "encoder-post", "decoder-pre", "decoder-post")
FAMILIES = ("llama", "neox", "vit", "t5", "gemma2", "mixtral")


def stack(name: str, depth: int, width: int, tokens: int) -> nn.Module:
    kind, placement = name.split("-")
    return build(
        "transformer", kind=kind, norm_placement=placement, depth=depth, width=width, context=tokens, activation="relu"
    )


def family(name: str, depth: int, width: int) -> nn.Module:
    """A Hugging Face model from its config, in evaluation mode."""
    import transformers as hf

    shape: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": 4}
    text: dict[str, Any] = {**shape, "vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
    grouped: dict[str, Any] = {**text, "num_key_value_heads": 2, "pad_token_id": 1}
    makers: dict[str, Callable[[], nn.Module]] = {
        "llama": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**text, num_key_value_heads=2, intermediate_size=3 * width)
        ),
        "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**text, intermediate_size=4 * width)),
        "gemma2": lambda: hf.Gemma2ForCausalLM(
            hf.Gemma2Config(**grouped, intermediate_size=2 * width, head_dim=width // 4)
        ),
        "mixtral": lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**grouped, intermediate_size=2 * width, num_local_experts=4)
        ),
        "vit": lambda: hf.ViTForImageClassification(
            hf.ViTConfig(**shape, intermediate_size=4 * width, image_size=32, patch_size=4)
        ),
        "t5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(d_model=width, num_layers=depth, num_heads=4, d_kv=width // 4, d_ff=4 * width, vocab_size=256)
        ),
    }
    return makers[name]().eval()


def batch_for(name: str, tokens: int, count: int, device: str) -> Any:
    if name == "vit":
        return {"pixel_values": torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)}
    ids = text_batch(sample_text(), count, tokens).to(device)
    if name == "t5":
        return {"input_ids": ids, "decoder_input_ids": ids.flip(0)}
    return {"input_ids": ids} if name in FAMILIES else ids


def loss_of(output: Any, pooled: bool = False) -> Tensor:
    """Cross-entropy against targets drawn once, of every token or of the average over tokens."""
    logits = output if isinstance(output, Tensor) else output.logits
    logits = logits.mean(-2) if pooled else logits
    flat = logits.reshape(-1, logits.shape[-1])
    targets = torch.randint(flat.shape[-1], (len(flat),), generator=torch.Generator().manual_seed(7))
    return nn.functional.cross_entropy(flat, targets.to(flat.device))


def main(
    stacks: Annotated[str, typer.Option(help="Comma-separated stacks and families.")] = ",".join(STACKS + FAMILIES),
    depths: Annotated[str, typer.Option(help="Comma-separated numbers of layers (stacks).")] = "12,48,192,768",
    recipes: Annotated[str, typer.Option(help="Comma-separated recipes.")] = ",".join(RECIPES),
    width: int = 256,
    tokens: int = 128,
    sequences: int = 1,
    seeds: int = 30,
    k: Annotated[float, typer.Option(help="Branch strength of `unit`: b^2 = k / N.")] = 2.0,
    pooled: Annotated[
        bool, typer.Option(help="A loss of the average over tokens instead of one of every token.")
    ] = False,
    device: str = "cpu",
    out: Path = DATA / "unit_profiles.json",
) -> None:
    """Measure and add to the results."""
    command = "python -m studies.unit_profiles " + " ".join(sys.argv[1:])
    settings = {"width": width, "tokens": tokens, "sequences": sequences, "seeds": seeds, "device": device}
    for name in stacks.split(","):
        for depth in [12] if name in FAMILIES else [int(text) for text in depths.split(",")]:
            model = family(name, depth, width) if name in FAMILIES else stack(name, depth, width, tokens)
            wanted = [r for r in recipes.split(",") if r != "deepscale" or name not in FAMILIES]
            options = {"unit": {"k": k}, "xavier": {"embedding": 0.5**0.5}}
            chosen = {recipe: options.get(recipe, {}) for recipe in wanted}
            results = compare(name, model, chosen, tokens, sequences, seeds, device, pooled)
            for recipe, found in results.items():
                strength = f" k={k:g}" if recipe == "unit" and k != 2.0 else ""
                key = f"{name} {depth} {recipe}{strength}{' pooled' if pooled else ''}"
                save(out, {key: found}, command, settings)
                typer.echo(
                    f"{key:32s} worst |variance - 1| {found['worst_deviation']:9.3g} "
                    f"(standard error {found['its_standard_error']:.2g})  last {found['last_variance']:9.4g}  "
                    f"gradient first/last {found['gradient_ratio']:.3g} (median {found['gradient_ratio_median']:.3g})"
                )


def compare(
    name: str,
    model: nn.Module,
    recipes: dict[str, dict[str, Any]],
    tokens: int,
    sequences: int,
    seeds: int,
    device: str,
    pooled: bool = False,
) -> dict[str, dict[str, Any]]:
    """Plans predicted for a batch, measured on the same. `recipes`: options by name.

    Xavier starts at unit variance too, so that only its growth is seen.
    """
    structure = read_structure(model, batch_for(name, tokens, sequences, "cpu"))
    plans = {recipe: plan(model, recipe, structure=structure, **options) for recipe, options in recipes.items()}
    model.to(device)
    batch = batch_for(name, tokens, sequences, device)
    loss = partial(loss_of, pooled=pooled)
    return {
        recipe: measure_stream(model, structure, made, batch, loss, seeds).to_dict() for recipe, made in plans.items()
    }


if __name__ == "__main__":
    typer.run(main)

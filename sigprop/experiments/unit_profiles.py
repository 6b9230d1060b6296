"""Residual variance by depth under Xavier, DeepScale and `unit`: `python -m sigprop.experiments.unit_profiles --help`.

Stacks of 12 to 768 layers (Pre-LN and Post-LN encoders, Pre-LN and Post-LN decoders) and Hugging Face models of 12
layers. Variance of the scaled stream at every residual sum and the gradient's first-to-last ratio, over draws of the
plan on the shipped text. Results are added to `docs/data/unit_profiles.json`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from sigprop.experiments.recipes_shared import DATA, measure_stream, save
from sigprop.models import build
from sigprop.models.text import sample_text, text_batch
from sigprop.recipes import examine, plan

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
    if name == "llama":
        config = hf.LlamaConfig(
            **shape, num_key_value_heads=2, intermediate_size=3 * width, vocab_size=256, bos_token_id=0, eos_token_id=0
        )
        return hf.LlamaForCausalLM(config).eval()
    if name in ("gemma2", "mixtral"):
        wide = {"num_key_value_heads": 2, "intermediate_size": 2 * width, "vocab_size": 256, "pad_token_id": 1}
        if name == "gemma2":
            return hf.Gemma2ForCausalLM(hf.Gemma2Config(**shape, **wide, head_dim=width // 4)).eval()
        return hf.MixtralForCausalLM(hf.MixtralConfig(**shape, **wide, num_local_experts=4)).eval()
    if name == "neox":
        config = hf.GPTNeoXConfig(**shape, intermediate_size=4 * width, vocab_size=256, bos_token_id=0, eos_token_id=0)
        return hf.GPTNeoXForCausalLM(config).eval()
    if name == "vit":
        config = hf.ViTConfig(**shape, intermediate_size=4 * width, image_size=32, patch_size=4)
        return hf.ViTForImageClassification(config).eval()
    config = hf.T5Config(d_model=width, num_layers=depth, num_heads=4, d_kv=width // 4, d_ff=4 * width, vocab_size=256)
    return hf.T5ForConditionalGeneration(config).eval()


def batch_for(name: str, tokens: int, count: int, device: str) -> Any:
    if name == "vit":
        return {"pixel_values": torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(device)}
    ids = text_batch(sample_text(), count, tokens).to(device)
    if name == "t5":
        return {"input_ids": ids, "decoder_input_ids": ids.flip(0)}
    return {"input_ids": ids} if name in FAMILIES else ids


def loss_of(output: Any) -> Tensor:
    """Cross-entropy against targets drawn once."""
    logits = output if isinstance(output, Tensor) else output.logits
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
    device: str = "cpu",
    out: Path = DATA / "unit_profiles.json",
) -> None:
    """Measure and add to the results."""
    command = "python -m sigprop.experiments.unit_profiles " + " ".join(sys.argv[1:])
    settings = {"width": width, "tokens": tokens, "sequences": sequences, "seeds": seeds, "device": device}
    for name in stacks.split(","):
        for depth in [12] if name in FAMILIES else [int(text) for text in depths.split(",")]:
            model = family(name, depth, width) if name in FAMILIES else stack(name, depth, width, tokens)
            wanted = [r for r in recipes.split(",") if r != "deepscale" or name not in FAMILIES]
            results = compare(name, model, wanted, tokens, sequences, seeds, device)
            for recipe, found in results.items():
                key = f"{name} {depth} {recipe}"
                save(out, {key: found}, command, settings)
                typer.echo(
                    f"{key:32s} worst |variance - 1| {found['worst_deviation']:9.3g} "
                    f"(standard error {found['its_standard_error']:.2g})  last {found['last_variance']:9.4g}  "
                    f"gradient first/last {found['gradient_ratio']:.3g} (median {found['gradient_ratio_median']:.3g})"
                )


def compare(
    name: str, model: nn.Module, recipes: list[str], tokens: int, sequences: int, seeds: int, device: str
) -> dict[str, dict[str, Any]]:
    """Plans predicted for a batch, measured on the same."""
    anatomy = examine(model, batch_for(name, tokens, sequences, "cpu"))
    plans = {recipe: plan(model, recipe, anatomy=anatomy, **_options(recipe)) for recipe in recipes}
    model.to(device)
    batch = batch_for(name, tokens, sequences, device)
    return {
        recipe: measure_stream(model, anatomy, made, batch, loss_of, seeds).to_dict() for recipe, made in plans.items()
    }


def _options(recipe: str) -> dict[str, Any]:
    """Xavier starts at unit variance too, so that only its growth is seen."""
    return {"embedding": 0.5**0.5} if recipe == "xavier" else {}


if __name__ == "__main__":
    typer.run(main)

"""`unit` beside AnyInit 0.4.0, the same models and the same measurement.

    pip download --no-deps anyinit==0.4.0 -d /tmp/anyinit && unzip -qo /tmp/anyinit/*.whl -d /tmp/anyinit
    python -m studies.anyinit_comparison --anyinit /tmp/anyinit

AnyInit's analytic mode (no data) and its empirical mode (on the batch) draw the model themselves; `unit` is a plan.
Variance at every residual sum relative to the first, and the gradient's first-to-last ratio, over seeds. Results go to
`docs/data/anyinit_comparison.json`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from sigprop.plans.recipes import plan, read_structure
from studies.recipes_shared import DATA, Stream, measure_stream, save
from studies.unit_profiles import batch_for, family, loss_of


def main(
    anyinit: Annotated[Path, typer.Option(help="Folder that holds the unpacked package.")],
    models: str = "gpt2,llama,neox,bert",
    depth: int = 12,
    width: int = 256,
    tokens: int = 64,
    seeds: int = 10,
    out: Path = DATA / "anyinit_comparison.json",
) -> None:
    """Compare on Hugging Face models built from their configs."""
    sys.path.insert(0, str(anyinit))
    peer = importlib.import_module("anyinit")
    command = "python -m studies.anyinit_comparison " + " ".join(sys.argv[1:])
    settings = {"depth": depth, "width": width, "tokens": tokens, "seeds": seeds, "anyinit": peer.__version__}
    for name in models.split(","):
        batch = batch_for(name if name == "t5" else "llama", tokens, 1, "cpu")
        model = build_model(name, depth, width)
        structure = read_structure(model, batch)
        draws: dict[str, Any] = {
            "unit": plan(model, "unit", structure=structure),
            "anyinit analytic": drawn_by(peer, "analytic", batch["input_ids"]),
            "anyinit empirical": drawn_by(peer, "empirical", batch["input_ids"]),
        }
        for label, draw in draws.items():
            found = attempt(lambda m=model, a=structure, d=draw, b=batch: measure_stream(m, a, d, b, loss_of, seeds))
            save(out, {f"{name} {label}": found}, command, settings)
            typer.echo(line(f"{name} {label}", found))


def build_model(name: str, depth: int, width: int) -> nn.Module:
    """Also GPT-2 and BERT, beside the families of `unit_profiles`."""
    if name not in ("gpt2", "bert"):
        return family(name, depth, width)
    import transformers as hf

    if name == "gpt2":
        config = hf.GPT2Config(
            n_embd=width, n_layer=depth, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0, n_positions=256
        )
        return hf.GPT2LMHeadModel(config).eval()
    shape: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": 4}
    return hf.BertForMaskedLM(hf.BertConfig(**shape, intermediate_size=4 * width, vocab_size=256)).eval()


def drawn_by(peer: Any, mode: str, ids: Any) -> Callable[[nn.Module, int], None]:
    """A draw of the whole model by AnyInit."""

    def draw(model: nn.Module, seed: int) -> None:
        peer.initialize(model, mode, ids, seed=seed)

    return draw


def attempt(measure: Callable[[], Stream]) -> dict[str, Any]:
    """The measurement, or the error that came instead."""
    try:
        found = measure().to_dict()
    except Exception as error:  # the peer's own errors are results here
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    return found | {"growth": found["variance"][-1] / found["variance"][0]}


def line(label: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{label:28s} {found['error']}"
    return (
        f"{label:28s} variance last/first {found['growth']:8.3g}  first {found['variance'][0]:8.3g}  "
        f"gradient first/last {found['gradient_ratio']:.3g}"
    )


if __name__ == "__main__":
    typer.run(main)

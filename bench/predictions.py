"""`predict` beside that of another tree: `python -m bench.predictions OTHER_TREE`.

Each model is predicted in processes of its own, by turns with this tree and with the other one, as anyone calls it
(from a function that builds the model) and by theory alone. Processor seconds of building and predicting, the least of
the turns, and the largest resident memory; the import before is timed by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

MODELS = ("gpt2", "llama", "bert", "vit", "resnet", "mixtral", "t5")
ONE = """
import json, resource, sys, time
import torch
torch.set_num_threads(1)
start = time.process_time()
from sigprop import predict
imported = time.process_time() - start
try:
    from sigprop.capture import build, predict as by_theory
except ImportError:  # checkouts before the package had this name
    from sigprop.trace import build, predict as by_theory
import transformers as t
ids = {"input_ids": torch.randint(1000, (1, 128), generator=torch.Generator().manual_seed(0))}
image = {"pixel_values": torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))}
size = dict(hidden_size=256, num_hidden_layers=12, num_attention_heads=4, intermediate_size=1024, vocab_size=1024)
made = {
    "gpt2": (t.GPT2LMHeadModel, t.GPT2Config(n_embd=256, n_layer=12, n_head=4, vocab_size=1024), ids),
    "llama": (t.LlamaForCausalLM, t.LlamaConfig(**size), ids),
    "bert": (t.BertForMaskedLM, t.BertConfig(**size), ids),
    "vit": (t.ViTForImageClassification, t.ViTConfig(**size, image_size=64, patch_size=8), image),
    "resnet": (t.ResNetForImageClassification, t.ResNetConfig(), image),
    "mixtral": (t.MixtralForCausalLM, t.MixtralConfig(**size, num_key_value_heads=4), ids),
    "t5": (t.T5ForConditionalGeneration, t.T5Config(d_model=256, d_kv=64, d_ff=1024, num_layers=12, num_heads=4,
           vocab_size=1024), ids | {"decoder_input_ids": ids["input_ids"]}),
}
model, config, batch = made[sys.argv[1]]
config.use_cache = False
make = lambda: model(config).eval()
start = time.process_time()
by_theory(build(make), batch) if sys.argv[2] == "theory" else predict(make, batch)
work = time.process_time() - start
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({"import": imported, "predict": work, "memory": memory}))
"""


def run(tree: Path, model: str, way: str) -> dict[str, float]:
    """One prediction in a fresh process that imports from a tree."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", ONE, model, way]
    made = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    return json.loads(made.stdout.splitlines()[-1])


def main(
    other: Annotated[Path | None, typer.Argument(help="The root of another checkout.")] = None,
    models: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(MODELS),
    ways: Annotated[str, typer.Option(help="theory, default, or both, comma-separated.")] = "theory,default",
    turns: Annotated[int, typer.Option(help="Processes of each kind.")] = 2,
    out: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
) -> None:
    """Ratios of processor time and memory, this tree to the other."""
    if other is None:
        print("predictions are timed beside another checkout: python -m bench.predictions OTHER_TREE")
        return
    here, rows = Path(__file__).parents[1], []
    for way in ways.split(","):
        for model in models.split(","):
            found: dict[str, list[dict[str, float]]] = {"other": [], "this": []}
            for _ in range(turns):
                found["other"].append(run(other.resolve(), model, way))
                found["this"].append(run(here, model, way))
            least = {name: {key: min(item[key] for item in items) for key in items[0]} for name, items in found.items()}
            rows.append({"model": model, "way": way, **least})
            print(json.dumps(rows[-1]), flush=True)
            if out is not None:
                out.write_text(json.dumps(rows, indent=1) + "\n")
    Console().print(_table(rows))


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table("model", "way", "predict, s", "ratio", "memory, GB", "ratio", "import, s", "ratio")
    for row in rows:
        cells = [
            text
            for key in ("predict", "memory", "import")
            for text in (f"{row['this'][key]:.2f}", f"{row['this'][key] / row['other'][key]:.2f}")
        ]
        table.add_row(row["model"], row["way"], *cells)
    return table


if __name__ == "__main__":
    typer.run(main)

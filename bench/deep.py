"""Configs of deep and wide models: processor seconds and memory of a prediction by theory, and how far it is from
following every block.

`python -m bench.deep [OTHER_CHECKOUT]` runs each model in processes of their own, in turns: the other checkout, this
one, and this one with every block followed, with two seeds; the difference of the last two is the noise of the draws.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ONE = """
import importlib, json, logging, resource, sys, time, torch
logging.disable(logging.CRITICAL)
import transformers
kind, way, seed, file = sys.argv[1:]
torch.set_num_threads(1)
try:
    from sigprop.prediction import predict
    options = {"verify": 0}
except ImportError:
    from sigprop.trace import predict
    options = {}
if way == "whole":
    importlib.import_module("sigprop.trace.alike_blocks").SHORTEST = 10**9
if kind == "Llama-70B":
    config = transformers.LlamaConfig(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
                                      num_attention_heads=64, num_key_value_heads=8, vocab_size=32000)
    build = lambda: transformers.LlamaForCausalLM(config)
elif kind == "GPT-2, 200 layers":
    config = transformers.GPT2Config(n_layer=200)
    build = lambda: transformers.GPT2LMHeadModel(config)
else:
    config = transformers.DeepseekV3Config()
    build = lambda: transformers.DeepseekV3ForCausalLM(config)
ids = torch.randint(config.vocab_size, (1, 128), generator=torch.Generator().manual_seed(0))
small = lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=64, n_head=2))
predict(small, {"input_ids": ids[:, :16] % 100, "labels": ids[:, :16] % 100}, **options)
start, clock = time.process_time(), time.perf_counter()
found = predict(build, {"input_ids": ids, "labels": ids}, seed=int(seed), **options)
seconds, clock = time.process_time() - start, time.perf_counter() - clock
found.save(file)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({"seconds": seconds, "clock": clock, "gigabytes": memory, "blocks": found.meta.get("blocks", "")}))
"""
MODELS = ("Llama-70B", "GPT-2, 200 layers", "DeepSeek-V3")
COLUMNS = ("variance", "grad_variance", "grad_second_moment")
LIMIT = 120


def run(root: Path, kind: str, way: str, seed: int, file: Path) -> dict | None:
    """One prediction in a process of its own; None where it fails or takes too long."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ONE, kind, way, str(seed), str(file)]
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def differences(one: Path, other: Path) -> str:
    """Median and nine of ten of the relative differences of all positive columns."""
    tables = [json.loads(file.read_text()) for file in (one, other)]
    rows = [{row["name"]: row for row in (*table["sites"], *table["parameters"])} for table in tables]
    found = []
    for name, row in rows[0].items():
        for column in COLUMNS:
            values = [row.get(column), rows[1].get(name, {}).get(column)]
            if all(isinstance(value, float) and value > 1e-30 for value in values):
                found.append(abs(math.log(values[0] / values[1])))
    return f"{statistics.median(found):.2%} (median), {statistics.quantiles(found, n=10)[-1]:.1%} (nine of ten)"


def main() -> None:
    here = Path(__file__).parents[1]
    other = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    for kind in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder) / f"{name}.json" for name in ("before", "now", "whole", "again")}
            show(kind, "before", run(other, kind, "now", 0, files["before"]) if other else None)
            show(kind, "now", run(here, kind, "now", 0, files["now"]))
            show(kind, "all blocks followed", run(here, kind, "whole", 0, files["whole"]))
            show(kind, "and with another seed", run(here, kind, "whole", 1, files["again"]))
            for label, name in (("now", "now"), ("another seed", "again")):
                if files[name].exists() and files["whole"].exists():
                    told = differences(files[name], files["whole"])
                    print(f"{kind}, {label}, from all blocks followed: {told}", flush=True)


def show(kind: str, label: str, found: dict | None) -> None:
    if found is not None:
        times = f"{found['seconds']:.1f} s of processor time, {found['clock']:.1f} s by the clock"
        print(f"{kind}, {label}: {times}, {found['gigabytes']:.1f} GB. {found['blocks']}", flush=True)


if __name__ == "__main__":
    main()

"""How the cost of a prediction grows with the context, the batch and the depth: processor seconds of the theory alone.

`python -m bench.sizes OTHER_CHECKOUT` runs the same in another checkout, side by side, each size in turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ONE = """
import json, resource, sys, time, torch
from transformers import LlamaConfig, LlamaForCausalLM
kind, number, tokens_followed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
try:
    from sigprop.prediction import predict
    options = {"verify": 0}
except ImportError:
    from sigprop.trace import predict
    options = {}
sizes = {"context": 128, "batch": 1, "depth": 4, kind: number}
config = LlamaConfig(num_hidden_layers=sizes["depth"], hidden_size=256, intermediate_size=512, num_attention_heads=4,
                     vocab_size=1000, max_position_embeddings=sizes["context"])
ids = torch.randint(1000, (sizes["batch"], sizes["context"]), generator=torch.Generator().manual_seed(0))
model = LlamaForCausalLM(config)
if tokens_followed == "all":
    options["tokens"] = sizes["context"]
predict(model, {"input_ids": ids[:1, :16], "labels": ids[:1, :16]}, **options)
start = time.process_time()
predict(model, {"input_ids": ids, "labels": ids}, **options)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({"seconds": time.process_time() - start, "gigabytes": memory}))
"""
SIZES = {"context": (256, 512, 1024, 2048, 8192), "batch": (1, 2, 4, 8), "depth": (4, 16)}
LIMIT = 900
LONGEST = 1024


def measured(root: Path, kind: str, number: int, tokens: str) -> dict[str, float] | None:
    """Processor seconds and memory of one prediction in a process of its own; None where it takes too long."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ONE, kind, str(number), tokens]
    try:
        run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(run.stdout.splitlines()[-1]) if run.returncode == 0 else None


def main() -> None:
    here = Path(__file__).parents[1]
    other = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    for kind, numbers in SIZES.items():
        for number in numbers:
            followed = not (kind == "context" and number > LONGEST)
            before = measured(other, kind, number, "all") if other and followed else None
            after = measured(here, kind, number, "followed")
            shown = [
                "-" if found is None else f"{found['seconds']:.2f} s, {found['gigabytes']:.2f} GB"
                for found in (before, after)
            ]
            print(f"{kind} {number}: before {shown[0]}, after {shown[1]}", flush=True)


if __name__ == "__main__":
    main()

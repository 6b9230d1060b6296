"""What predictions, measurements and a start cost, beside another checkout, and how far a shortened prediction is off.

Every entry runs in a process of its own, one after the other: the other checkout, this one, and this one with nothing
shortened, for deep configs with two seeds, which differ by the noise of their draws. One thread. Each has a limit of
processor time; rows are printed as they come. All of it takes about eight minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

ONE = """
import importlib, json, logging, resource, sys, time, torch
logging.disable(logging.CRITICAL)
import transformers
kind, size, way, seed, file = sys.argv[1:]
size = int(size)
torch.set_num_threads(1)
try:
    from sigprop.prediction import predict
    options = {"verify": 0}
except ImportError:
    from sigprop.capture import predict
    options = {}
if way == "whole":
    importlib.import_module("sigprop.capture.repeated_blocks").SHORTEST = 10**9
    importlib.import_module("sigprop.capture.identical_sequences").FEWEST = 10**9
llama, gpt2, deepseek = transformers.LlamaConfig, transformers.GPT2Config, transformers.DeepseekV3Config
tokens, sequences = (size if kind == "context" else 128), (size if kind == "batch" else 1)
if kind in ("context", "batch"):
    config = llama(num_hidden_layers=4, hidden_size=256, intermediate_size=512, num_attention_heads=4, vocab_size=1000,
                   max_position_embeddings=max(tokens, 128))
elif kind == "Llama-70B":
    config = llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=size, num_attention_heads=64,
                   num_key_value_heads=8, vocab_size=32000)
else:
    config = gpt2(n_layer=size) if kind == "GPT-2" else deepseek(num_hidden_layers=size)
if kind == "context" and way != "now":
    options["tokens"] = tokens
build = lambda: transformers.AutoModelForCausalLM.from_config(config)
ids = torch.randint(config.vocab_size, (sequences, tokens), generator=torch.Generator().manual_seed(0))
small = lambda: transformers.GPT2LMHeadModel(gpt2(n_layer=1, n_embd=64, n_head=2))
few = {"input_ids": ids[:1, :16] % 100, "labels": ids[:1, :16] % 100}
predict(small, few, **{key: value for key, value in options.items() if key == "verify"})
start, clock = time.process_time(), time.perf_counter()
found = predict(build, {"input_ids": ids, "labels": ids}, seed=int(seed), **options)
seconds, clock = time.process_time() - start, time.perf_counter() - clock
found.to_json(file)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({"seconds": seconds, "clock": clock, "gigabytes": memory}))
"""
AS_ASKED = """
import json, logging, os, resource, sys, time, torch, transformers, sigprop
logging.disable(logging.CRITICAL)
from sigprop import check, predict
what, name, folder = sys.argv[1:]
torch.set_num_threads(1)
images = {"pixel_values": torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))}
llama = transformers.LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                                 num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
kinds = {"ResNet-50": "ResNet", "ConvNeXt-T": "ConvNext", "Swin-T": "Swin"}
if name == "U-Net":
    sys.path.append(folder)
    from unet import UNet, latents
    given, batch = (UNet if what == "predict" else UNet()), latents()
elif name in kinds:
    config = getattr(transformers, kinds[name] + "Config")()
    build = lambda: getattr(transformers, kinds[name] + "ForImageClassification")(config)
    given, batch = (build if what == "predict" else build()), images
else:
    given, batch = {"GPT-2 small": transformers.GPT2Config(), "Llama-8B": llama}.get(name), None
    if given is None:
        given = transformers.GPT2LMHeadModel(transformers.GPT2Config())
start, clock = time.process_time(), time.perf_counter()
(check if what == "check" else predict)(given, batch)
seconds, clock = time.process_time() - start, time.perf_counter() - clock
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps({"seconds": seconds, "clock": clock, "gigabytes": memory}))
"""
"""A prediction or a check as people ask for it, imports and all defaults included."""
ASKED = {
    "images": [
        (what, name) for name in ("ResNet-50", "ConvNeXt-T", "Swin-T", "U-Net") for what in ("predict", "check")
    ],
    "checks": [("check", "GPT-2 small"), ("check", "Llama-8B"), ("check", "GPT-2 small with its weights")],
}
ENTRIES = {
    "contexts": [("context", size) for size in (256, 512, 1024, 2048, 8192)],
    "batches": [("batch", size) for size in (1, 2, 4, 8)],
    "configs": [("Llama-70B", 80), ("GPT-2", 200), ("DeepSeek-V3", 4), ("DeepSeek-V3", 61)],
}
NOT_BEFORE = {("context", 2048), ("context", 8192), ("DeepSeek-V3", 61)}
NOT_WHOLE = {
    ("context", 512),
    ("context", 1024),
    ("context", 2048),
    ("context", 8192),
    ("batch", 1),
    ("batch", 2),
    ("DeepSeek-V3", 4),
    ("DeepSeek-V3", 61),
}
STARTS = {
    "import torch": "import torch",
    "import sigprop": "import sigprop",
    "from sigprop import predict": "from sigprop import predict",
    "sigprop --help": "import sys; sys.argv = ['sigprop', '--help']; from sigprop.cli import main; main()",
}
COLUMNS = ("variance", "grad_variance", "grad_second_moment")
LIMIT, LIMIT_NOW, ROUNDS = 60, 300, 3


def run(root: Path, arguments: list[str], limit: int = LIMIT_NOW) -> str | None:
    """What a process of a checkout prints; None where it takes too long, and its last words where it fails."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    paths = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, preexec_fn=limited)
    if done.returncode < 0:
        return None
    return done.stdout if done.returncode == 0 else f"failed: {done.stderr.strip().splitlines()[-1][:100]}"


def predicted(root: Path, kind: str, size: int, way: str, seed: int, file: Path) -> str:
    """Processor seconds, seconds by the clock and memory, in words."""
    limit = LIMIT_NOW if way == "now" else LIMIT
    return _told(run(root, ["-c", ONE, kind, str(size), way, str(seed), str(file)], limit), limit)


def _told(printed: str | None, limit: int) -> str:
    if printed is None:
        return f"more than {limit} s"
    if printed.startswith("failed"):
        return printed
    found = json.loads(printed.splitlines()[-1])
    return f"{found['seconds']:.1f} s ({found['clock']:.1f} by the clock), {found['gigabytes']:.1f} GB"


def differences(one: Path, other: Path) -> str:
    """Median and nine of ten of the relative differences of all positive columns."""
    if not (one.exists() and other.exists()):
        return "-"
    tables = [json.loads(file.read_text()) for file in (one, other)]
    rows = [{row["name"]: row for row in (*table["sites"], *table["parameters"])} for table in tables]
    found = []
    for name, row in rows[0].items():
        for column in COLUMNS:
            values = [row.get(column), rows[1].get(name, {}).get(column)]
            if all(isinstance(value, float) and value > 1e-30 for value in values):
                found.append(abs(math.log(values[0] / values[1])))
    return f"{statistics.median(found):.2%} / {statistics.quantiles(found, n=10)[-1]:.1%}"


def predictions(here: Path, other: Path, group: str) -> Iterator[str]:
    """One row for each size: before, now, nothing shortened; how far now is from that, and another seed."""
    yield "| | before | now | nothing shortened | now from that | another seed from that |"
    for kind, size in ENTRIES[group]:
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder) / f"{name}.json" for name in ("before", "now", "whole", "again")}
            missing = (kind, size) in NOT_BEFORE
            before = "-" if missing else predicted(other, kind, size, "before", 0, files["before"])
            now = predicted(here, kind, size, "now", 0, files["now"])
            whole = "-"
            if (kind, size) not in NOT_WHOLE:
                whole = predicted(here, kind, size, "whole", 0, files["whole"])
            if group == "configs" and whole[0].isdigit():
                predicted(here, kind, size, "whole", 1, files["again"])
            told = [differences(files[name], files["whole"]) for name in ("now", "again")]
            yield f"| {kind} {size} | {before} | {now} | {whole} | {told[0]} | {told[1]} |"


def as_asked(here: Path, other: Path, group: str) -> Iterator[str]:
    """Of both checkouts, one after the other."""
    yield "| | before | now |"
    for what, name in ASKED[group]:
        told = [
            _told(run(root, ["-c", AS_ASKED, what, name, str(here / "bench")], LIMIT_NOW), LIMIT_NOW)
            for root in (other, here)
        ]
        yield f"| {what} {name} | {' | '.join(told)} |"


def measurements(here: Path, other: Path) -> Iterator[str]:
    """Measured over plain steps, in turns, of both checkouts; this checkout's benchmark for both."""
    benchmark = (here / "bench" / "measure.py").read_text()
    told: dict[str, list[str]] = {}
    for root in (other, here):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "measured.py"
            script.write_text(benchmark.replace('if __name__ == "__main__":\n    main(*sys.argv[1:])', "ratios()"))
            for line in (run(root, [str(script)], 2 * LIMIT_NOW) or "all: too long").splitlines():
                name, _, found = line.partition(": ")
                told.setdefault(name, []).append(found)
    yield "| | before | now |"
    for name, found in told.items():
        yield f"| {name} | {' | '.join(found)} |"


def starts(here: Path, other: Path) -> Iterator[str]:
    """Medians by the clock, both in turns."""
    yield "| | before | now |"
    timed = "import time; start = time.perf_counter()\n{}\n"
    for name, code in STARTS.items():
        told = []
        ended = "try:\n    " + code + "\nexcept SystemExit:\n    pass\n"
        body = timed.format(ended) + "import sys; print('\\n', time.perf_counter() - start, time.process_time())"
        found = [[run(root, ["-c", body]) or "nan nan" for root in (other, here)] for _ in range(ROUNDS)]
        for column in zip(*found, strict=True):
            clock, used = zip(*(map(float, printed.split()[-2:]) for printed in column), strict=True)
            told.append(f"{statistics.median(clock):.2f} s ({statistics.median(used):.2f} of processor time)")
        yield f"| {name} | {told[0]} | {told[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    groups = [*ENTRIES, *ASKED, "measure", "start"]
    parser.add_argument("other", type=Path, metavar="OTHER_CHECKOUT", help="the checkout to compare with")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(groups)}; all, if none is named")
    parser.add_argument("--out", type=Path, help="a JSON file for what is printed")
    asked = parser.parse_args()
    if unknown := set(asked.groups) - set(groups):
        parser.error(f"no group {', '.join(sorted(unknown))}: there are {', '.join(groups)}")
    here, other = Path(__file__).parents[1], asked.other.resolve()
    stored: dict[str, dict[str, object]] = {}
    for group in asked.groups or groups:
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
        title = f"{when} UTC, {os.cpu_count()} cores ({platform.machine()}), load {load}"
        print(f"\n== {group}, {title}", flush=True)
        if group in ENTRIES:
            rows = predictions(here, other, group)
        elif group in ASKED:
            rows = as_asked(here, other, group)
        else:
            rows = measurements(here, other) if group == "measure" else starts(here, other)
        lines: list[str] = []
        for row in rows:
            print(row, flush=True)
            lines.append(row)
        stored[group] = {"when": title, "rows": lines}
        if asked.out is not None:
            asked.out.write_text(
                json.dumps({"command": "python -m bench.cost OTHER_CHECKOUT", **stored}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()

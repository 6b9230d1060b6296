"""Contexts longer than theory follows, against the real model: `python -m studies.long_contexts --help`.

Twelve layers of width 256, and small ones. Stored are, over all rows, the median, the 90th percentile and the worst
logarithm of predicted over measured: as `predict` gives it, and of theory alone, continued from 64 and 128 tokens.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from sigprop import predict
from sigprop.measurement import measure
from sigprop.measurement.initializations import summarize
from sigprop.results import Profile
from studies.stored import stamp, write

VOCABULARY = 500
OUT = Path("docs/data/long_contexts.json")
CASES = (
    "llama 2 layers 512",
    "bert 2 layers 512",
    "gpt2 2 layers 1024",
    "llama 2 layers 2048",
    "llama 2 layers 8192",
    "llama 12 layers 2048",
)
Columns = dict[tuple[str, str], float]


def model(case: str) -> Callable[[], nn.Module]:
    import transformers

    kind, layers, _, length = case.split()
    width = 64 if int(layers) < 12 else 256
    small: dict[str, Any] = {"vocab_size": VOCABULARY, "num_hidden_layers": int(layers), "num_attention_heads": 4}
    small |= {"hidden_size": width, "intermediate_size": 2 * width, "max_position_embeddings": int(length)}
    if kind == "llama":
        config: Any = transformers.LlamaConfig(**small)
        return lambda: transformers.LlamaForCausalLM(config)
    if kind == "bert":
        config = transformers.BertConfig(**small)
        return lambda: transformers.BertForMaskedLM(config).eval()
    sizes = {"n_layer": int(layers), "n_embd": width, "n_head": 4, "n_positions": int(length)}
    config = transformers.GPT2Config(**sizes, vocab_size=VOCABULARY, tie_word_embeddings=False)
    return lambda: transformers.GPT2LMHeadModel(config).eval()


def batch_of(case: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(VOCABULARY, (1, int(case.split()[-1])), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def measured(case: str, seed: int) -> Profile:
    torch.set_num_threads(1)
    return measure(None, batch_of(case), build=model(case), seeds=[seed])


def predicted(case: str, threads: int) -> dict[str, Any]:
    """The prediction as it comes, with processor seconds, and theory alone."""
    torch.set_num_threads(threads)
    make, batch = model(case), batch_of(case)
    predict(make, {key: value[:, :16] for key, value in batch.items()}, verify=0)
    start = time.process_time()
    found = predict(make, batch)
    seconds = time.process_time() - start
    return {"found": found, "seconds": seconds, "theory": predict(make, batch, verify=0)}


def columns(profile: Profile) -> Columns:
    """Variances and gradients by row."""
    found = {(row.name, name): getattr(row, name) for row in profile for name in ("variance", "grad_variance")}
    return found | {(row.name, "grad_second_moment"): row.grad_second_moment for row in profile.parameters}


def errors(profile: Profile, actual: Columns) -> list[float]:
    """Median, 90th percentile and worst logarithm of predicted over measured."""
    given = columns(profile)
    shared = [key for key in actual if given.get(key, 0.0) > 0 and actual[key] > 1e-14 * max(actual.values())]
    found = sorted(abs(math.log(given[key] / actual[key])) for key in shared)
    return [round(x, 4) for x in (statistics.median(found), found[int(0.9 * len(found))], found[-1])]


def main(
    seeds: Annotated[int, typer.Option(help="Initializations measured.")] = 8,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    threads: Annotated[int, typer.Option(help="Of the prediction that is timed.")] = 1,
    out: Annotated[Path, typer.Option(help="JSON file.")] = OUT,
) -> None:
    """Predict and measure long contexts."""
    rows = []
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        drawn = {case: [pool.submit(measured, case, 500 + seed) for seed in range(seeds)] for case in CASES}
        for case in CASES:
            actual = columns(summarize([job.result() for job in drawn[case]], list(range(seeds))))
            one = pool.submit(predicted, case, threads).result()
            statuses = Counter(row.status for row in (*one["found"].sites, *one["found"].parameters))
            row = {"case": case, "seconds": round(one["seconds"], 1), "statuses": dict(statuses)}
            row |= {"predicted": errors(one["found"], actual), "theory alone": errors(one["theory"], actual)}
            rows.append(row | {"tokens": one["found"].meta.get("tokens", "")})
            print(row, flush=True)
            write(out, stamp(f"long_contexts --seeds {seeds}", rows=rows))


if __name__ == "__main__":
    typer.run(main)

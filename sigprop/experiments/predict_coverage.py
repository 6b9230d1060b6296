"""Which models of transformers can be predicted: `python -m sigprop.experiments.predict_coverage --help`.

Every causal, masked and sequence-to-sequence language model and every image classifier of the installed release is
built from a small config on the meta device and predicted, forward and backward. The table goes to docs/coverage.md.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from sigprop.errors import SigpropError
from sigprop.trace import build, predict

KINDS = {
    "causal LM": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "masked LM": "MODEL_FOR_MASKED_LM_MAPPING",
    "seq2seq LM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "image classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
}
LAYERS = 2
SMALL = {
    "num_hidden_layers": LAYERS, "n_layer": LAYERS, "n_layers": LAYERS, "num_layers": LAYERS, "encoder_layers": LAYERS,
    "decoder_layers": LAYERS, "num_decoder_layers": LAYERS, "num_encoder_layers": LAYERS, "image_size": 64,
    "max_position_embeddings": 128, "n_positions": 128, "block_size": 128,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip


def small_config(kind: type) -> Any:
    """The default config with few layers, tokens and experts; what a config refuses is left as it was."""
    config = kind()
    for part in [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))]:
        for key, value in SMALL.items():
            current = getattr(part, key, None) if part is not None else None
            if isinstance(current, int) and not isinstance(current, bool) and current > value:
                try:
                    setattr(part, key, value)
                except Exception:
                    continue
        for key in ("layer_types", "layers_block_type", "mlp_layer_types", "block_types", "attention_types"):
            listed = getattr(part, key, None)
            if isinstance(listed, list) and len(listed) > LAYERS:
                setattr(part, key, listed[:LAYERS])
    return config


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(config_class: type, model_class: type, tokens: int, seconds: int) -> dict[str, Any]:
    """Build and predict one class: outcome is predicted, failed, or not built (with the reason)."""
    row: dict[str, Any] = {"model": model_class.__name__, "config": config_class.__name__}
    start = time.perf_counter()
    try:
        with limited(seconds):
            config = small_config(config_class)
            config.dtype = torch.float32
            model = build(lambda: model_class(config)).eval()
    except Exception as error:
        return row | {"outcome": "not built", "reason": _reason(error)}
    try:
        with limited(seconds):
            profile = predict(model, tokens=tokens)
        finite = [s for s in profile.sites if s.grad_variance == s.grad_variance]
        row["sampled"] = sum(s.status == "sampled" for s in profile.sites)
        row |= {"outcome": "predicted", "sites": len(profile.sites), "with_gradient": len(finite), "reason": ""}
    except SigpropError as error:
        row |= {"outcome": "failed", "reason": _reason(error)}
    except Exception as error:
        row |= {"outcome": "failed", "reason": f"unclear error, {_reason(error)}"}
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def classes(kind: str) -> list[tuple[type, type]]:
    import transformers

    mapping = getattr(transformers, KINDS[kind])
    found = []
    for config_class in mapping:
        try:
            models = mapping[config_class]
        except Exception:
            continue
        found.append((config_class, models[0] if isinstance(models, (tuple, list)) else models))
    return found


def markdown(rows: list[dict[str, Any]], version: str) -> str:
    lines = [
        "# Coverage",
        "",
        f"Models of transformers {version}, built from a small config on the meta device and predicted forward and",
        "backward. Made by `python -m sigprop.experiments.predict_coverage`.",
        "",
        "| kind | classes | built | predicted | share of built |",
        "|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        count = Counter(row["outcome"] for row in rows if row["kind"] == kind)
        made = count["predicted"] + count["failed"]
        share = f"{100 * count['predicted'] / made:.0f} %" if made else "-"
        lines.append(f"| {kind} | {sum(count.values())} | {made} | {count['predicted']} | {share} |")
    made = [row for row in rows if row["outcome"] != "not built"]
    good = [row for row in made if row["outcome"] == "predicted"]
    lines.append(f"| all | {len(rows)} | {len(made)} | {len(good)} | {100 * len(good) / max(len(made), 1):.1f} % |")
    for outcome, title in (("failed", "Not predicted"), ("not built", "Not built from the default config")):
        lines += ["", f"## {title}", "", "| model | kind | reason |", "|---|---|---|"]
        for row in rows:
            if row["outcome"] == outcome:
                reason = row["reason"].replace("|", "/")
                lines.append(f"| {row['model']} | {row['kind']} | {reason} |")
    lines += ["", "## Predicted", "", "| model | kind | sites | with gradient | seconds |", "|---|---|---|---|---|"]
    for row in good:
        lines.append(f"| {row['model']} | {row['kind']} | {row['sites']} | {row['with_gradient']} | {row['seconds']} |")
    return "\n".join(lines) + "\n"


def main(
    kinds: Annotated[str, typer.Option(help="Comma-separated kinds, or all.")] = "all",
    only: Annotated[str, typer.Option(help="Part of a class name.")] = "",
    tokens: Annotated[int, typer.Option()] = 16,
    seconds: Annotated[int, typer.Option(help="Limit for each model.")] = 60,
    out: Annotated[Path | None, typer.Option(help="JSON file for the rows.")] = None,
    page: Annotated[Path | None, typer.Option(help="Markdown page, e.g. docs/coverage.md.")] = None,
) -> None:
    """Predict every class and report the share that works."""
    import transformers

    transformers.logging.set_verbosity_error()
    rows: list[dict[str, Any]] = []
    for kind in KINDS if kinds == "all" else kinds.split(","):
        for config_class, model_class in classes(kind):
            if only.lower() in model_class.__name__.lower():
                row = attempt(config_class, model_class, tokens, seconds) | {"kind": kind}
                rows.append(row)
                print(kind, row["model"], row["outcome"], row.get("seconds", ""), row["reason"], flush=True)
                if out is not None:
                    out.parent.mkdir(parents=True, exist_ok=True)
                    out.write_text(json.dumps(rows, indent=1) + "\n")
    if page is not None:
        page.write_text(markdown(rows, transformers.__version__))
    Console().print(Counter((row["kind"], row["outcome"]) for row in rows))


if __name__ == "__main__":
    typer.run(main)

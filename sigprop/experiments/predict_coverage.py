"""Which models of transformers can be predicted: `python -m sigprop.experiments.predict_coverage --help`.

Every causal, masked and sequence-to-sequence language model and every image classifier of the installed release is
built from a small config on the meta device and predicted, forward and backward. The table goes to docs/coverage.md.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from sigprop.errors import SigpropError, UnsupportedError
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
    "max_position_embeddings": 128, "n_positions": 128, "block_size": 128, "num_experts": 16, "n_routed_experts": 16,
    "num_local_experts": 16, "num_experts_per_tok": 3, "moe_k": 3, "num_kv_shared_layers": 0,
    "num_self_attends_per_block": LAYERS, "num_latents": 64, "window_size": 2, "attention_window": 8, "H_cycles": 1,
    "L_cycles": 1, "num_blocks": LAYERS,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
BLANK = {
    "vocab_size": 1024, "num_experts_per_tok": 3, "n_routed_experts": 16, "n_shared_experts": 1,
    "layer_types": ["full_attention"] * LAYERS, "indexer_n_heads": 4, "indexer_kv_heads": 1, "clip_qkv": 8.0,
    "indexer_budget": 8, "indexer_compress_ratio": 4,
}  # fmt: skip
ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
LAYER_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types", "attention_types")


def small_config(kind: type, decoder: bool, copies: int = 1) -> Any:
    """The default config with few layers, tokens and experts; what a config refuses is left as it was.

    Of every kind of layer `copies` are kept. What a default config leaves open and a published one gives is filled in.
    """
    config = smaller(kind(), copies)
    if hasattr(config, "is_decoder") and not getattr(config, "is_encoder_decoder", False):
        _set(config, "is_decoder", decoder)
    return config


def smaller(config: Any, copies: int) -> Any:
    """The config and its parts with their changes; built anew where each layer has settings of its own."""
    settings = config.to_dict()
    changes = _changes(settings, copies)
    if "per_layer_config" in settings:
        return type(config)(**changes)
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if part is not None:
            changes[name] = smaller(part, copies)
            _set(changes[name], "rope_theta", getattr(part, "rope_theta", ROTARY["rope_theta"]))
    for key, value in changes.items():
        _set(config, key, value)
    return config


def _changes(settings: dict[str, Any], copies: int) -> dict[str, Any]:
    kinds = [value for key, value in settings.items() if key in LAYER_KINDS and isinstance(value, list)]
    length = len(kinds[0]) if kinds else 0
    kept = some_of_each([kind for kind in kinds if len(kind) == length], copies)
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, list) and len(value) == length > LAYERS:
            found[key] = [value[layer] for layer in kept]
        if key == "image_size" and isinstance(value, (list, tuple)):
            found[key] = [min(n, SMALL[key]) for n in value]
        if isinstance(value, int) and not isinstance(value, bool) and key in SMALL and value > SMALL[key]:
            found[key] = len(kept) if SMALL[key] == LAYERS and kept else SMALL[key]
    return found | _blanks(settings)


def some_of_each(kinds: list[list[str]], copies: int) -> list[int]:
    """The first layers of every kind, and the next ones up to the number of layers wanted."""
    rows = list(zip(*kinds, strict=True))
    first = [number for number, row in enumerate(rows) if rows[:number].count(row) < copies]
    others = [number for number in range(len(rows)) if number not in first]
    return sorted(first + others[: max(0, LAYERS - len(first))])


def _blanks(settings: dict[str, Any]) -> dict[str, Any]:
    heads, width = settings.get("num_attention_heads"), settings.get("hidden_size")
    derived: dict[str, Any] = {
        "num_key_value_heads": heads,
        "indexer_head_dim": settings.get("head_dim"),
        "default_language": next(iter(settings.get("languages", [])), None),
    }
    if isinstance(heads, int) and isinstance(width, int):
        derived["head_dim"] = width // heads
    found = {key: value for key, value in (BLANK | derived).items() if key in settings and settings[key] is None}
    if settings.get("rope_parameters") == {} and settings.get("layer_types"):
        found["rope_parameters"] = {kind: dict(ROTARY) for kind in settings["layer_types"]}
    return found


def _set(part: Any, key: str, value: Any) -> None:
    try:
        setattr(part, key, value)
    except Exception:
        return


def built(config_class: type, model_class: Any, decoder: bool) -> Any:
    """The model of a small config on meta; some classes need two layers of each kind."""
    try:
        return _built(config_class, model_class, decoder, 1)
    except Exception:
        return _built(config_class, model_class, decoder, 2)


def _built(config_class: type, model_class: Any, decoder: bool, copies: int) -> Any:
    config = small_config(config_class, decoder, copies)
    config.dtype = torch.float32
    return build(lambda: model_class(config)).eval()


class _Late(BaseException):
    """Not an Exception, so that no rule mistakes it for a failure of its own."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _Late(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(kind: str, number: int, tokens: int, seconds: int) -> dict[str, Any]:
    """Build and predict one class: outcome is predicted, failed, or not built (with the reason)."""
    config_class, model_class = classes(kind)[number]
    config_class = model_class.config_class or config_class
    row: dict[str, Any] = {"model": model_class.__name__, "config": config_class.__name__, "kind": kind}
    start = time.perf_counter()
    try:
        with limited(seconds):
            model = built(config_class, model_class, decoder=kind == "causal LM")
    except (Exception, _Late) as error:
        return row | {"outcome": "not built", "reason": _reason(error)}
    try:
        with limited(seconds):
            profile = predict(model, tokens=tokens)
        if not all(math.isfinite(site.variance) for site in profile.sites):
            raise UnsupportedError("the state of a site is not finite")
        finite = [s for s in profile.sites if s.grad_variance == s.grad_variance]
        row["sampled"] = sum(s.status == "sampled" for s in profile.sites)
        row |= {"outcome": "predicted", "sites": len(profile.sites), "with_gradient": len(finite), "reason": ""}
    except (SigpropError, _Late) as error:
        row |= {"outcome": "failed", "reason": _reason(error)}
    except Exception as error:
        row |= {"outcome": "failed", "reason": f"unclear error, {_reason(error)}"}
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__.strip('_')}: {lines[0] if lines else ''}"[:200]


def classes(kind: str) -> list[tuple[type, Any]]:
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


def markdown(rows: list[dict[str, Any]], version: str, checks: list[str]) -> str:
    lines = [
        "# Coverage",
        "",
        f"Models of transformers {version}, built from a small config on the meta device and predicted forward and",
        "backward. Made by `python -m sigprop.experiments.predict_coverage`. Asked: at least 90 %.",
        "",
        "The small config is the default one with two layers (or one of each kind), images of 64 pixels and at most 16",
        "experts; what a default config leaves open and a published one gives is filled in. Widths are those of the",
        "default. A class counts as predicted when every site has a finite state.",
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
    for outcome, title in (("failed", "Not predicted"), ("not built", "Not built")):
        lines += ["", f"## {title}", "", "| model | kind | reason |", "|---|---|---|"]
        for row in rows:
            if row["outcome"] == outcome:
                reason = row["reason"].replace("|", "/")
                lines.append(f"| {row['model']} | {row['kind']} | {reason} |")
    lines += [
        *checks,
        "",
        "## Predicted",
        "",
        "| model | kind | sites | with gradient | seconds |",
        "|---|---|---|---|---|",
    ]
    for row in good:
        lines.append(f"| {row['model']} | {row['kind']} | {row['sites']} | {row['with_gradient']} | {row['seconds']} |")
    return "\n".join(lines) + "\n"


def _checks(path: Path) -> list[str]:
    from sigprop.experiments.coverage_check import markdown

    return markdown(json.loads(path.read_text())) if path.exists() else []


def _quiet(gigabytes: int) -> None:
    """One thread for each process, and an error instead of a machine without memory."""
    import resource

    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))


def main(
    kinds: Annotated[str, typer.Option(help="Comma-separated kinds, or all.")] = "all",
    only: Annotated[str, typer.Option(help="Parts of class names, comma-separated.")] = "",
    tokens: Annotated[int, typer.Option()] = 16,
    seconds: Annotated[int, typer.Option(help="Limit for each model.")] = 60,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    gigabytes: Annotated[int, typer.Option(help="Memory for each process.")] = 16,
    out: Annotated[Path | None, typer.Option(help="JSON file for the rows.")] = None,
    page: Annotated[Path | None, typer.Option(help="Markdown page, e.g. docs/coverage.md.")] = None,
    checks: Annotated[Path, typer.Option(help="Rows of coverage_check.")] = Path("docs/data/coverage_check.json"),
) -> None:
    """Predict every class and report the share that works."""
    import transformers

    wanted = [
        (kind, number, tokens, seconds)
        for kind in (KINDS if kinds == "all" else kinds.split(","))
        for number, (_, model_class) in enumerate(classes(kind))
        if any(part.lower() in model_class.__name__.lower() for part in only.split(","))
    ]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_quiet, initargs=(gigabytes,)) as pool:
        for row in pool.map(attempt, *zip(*wanted, strict=True)):
            rows.append(row)
            print(row["kind"], row["model"], row["outcome"], row.get("seconds", ""), row["reason"], flush=True)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(rows, indent=1) + "\n")
    if page is not None:
        page.write_text(markdown(rows, transformers.__version__, _checks(checks)))
    Console().print(Counter((row["kind"], row["outcome"]) for row in rows))


if __name__ == "__main__":
    typer.run(main)

"""Do covered models get sensible numbers: `python -m sigprop.experiments.coverage_check --help`.

Classes of the coverage table are predicted and measured over a few initializations of the same small config. A site
disagrees when the prediction is off by more than a tenth and by more than five standard errors.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from sigprop.experiments.predict_coverage import KINDS, built, classes, small_config
from sigprop.measure import measure
from sigprop.trace import predict
from sigprop.trace.inputs import default_batch

SAMPLE = (
    "MambaForCausalLM,GPT2LMHeadModel,Olmo2ForCausalLM,ConvBertForMaskedLM,FNetForMaskedLM,"
    "LongformerForMaskedLM,XmodForMaskedLM,LongT5ForConditionalGeneration,ResNetForImageClassification,"
    "SegformerForImageClassification,SwinForImageClassification,PoolFormerForImageClassification"
)
LARGEST, ERRORS, SMALLEST = 0.1, 5.0, 1e-25


def check(kind: str, config_class: type, model_class: Any, seeds: int, tokens: int) -> dict[str, Any]:
    """Errors of variance and gradient variance over all sites of one class."""
    decoder = kind == "causal LM"
    config_class = model_class.config_class or config_class
    model = built(config_class, model_class, decoder)
    batch = default_batch(model, tokens)

    def make() -> torch.nn.Module:
        config = small_config(config_class, decoder)
        config.dtype, config.use_cache = torch.float32, False
        return model_class(config).eval()

    predicted = predict(model, batch, tokens=max(tokens, 1024))
    compared = predicted.compare(measure(None, batch, None, build=make, seeds=seeds))
    row: dict[str, Any] = {"model": model_class.__name__, "kind": kind, "seeds": seeds}
    for column in ("variance", "grad_variance"):
        found = [
            item
            for item in compared.differences
            if item.column == column and math.isfinite(item.error) and abs(item.reference) > SMALLEST
        ]
        off = [item for item in found if abs(item.error) > max(LARGEST, ERRORS * item.standard_error)]
        worst = max(off, key=lambda item: abs(item.error), default=None)
        row[column] = {
            "sites": len(found),
            "median": statistics.median(abs(item.error) for item in found) if found else None,
            "off": len(off),
            "worst": None if worst is None else [worst.name, worst.error, worst.standard_error],
        }
    return row


def markdown(rows: list[dict[str, Any]]) -> list[str]:
    """A section of the coverage page."""
    lines = [
        "",
        "## Spot checks",
        "",
        "Predictions of some classes against a few initializations of the same small config",
        "(`python -m sigprop.experiments.coverage_check`). A site is off when it misses by more than a tenth and by",
        "more than five standard errors; the worst of them is named.",
        "",
        "| model | seeds | quantity | sites | median error | off | worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for column, title in (("variance", "variance"), ("grad_variance", "gradient variance")):
            found = row[column]
            median = "-" if found["median"] is None else f"{100 * found['median']:.1f} %"
            name, error, spread = found["worst"] or ("", 0.0, 0.0)
            worst = f"`{name}` {100 * error:+.0f} % (s.e. {100 * spread:.0f} %)" if name else ""
            counts = f"{found['sites']} | {median} | {found['off']}"
            lines.append(f"| {row['model']} | {row['seeds']} | {title} | {counts} | {worst} |")
    return lines


def main(
    only: Annotated[str, typer.Option(help="Class names, comma-separated.")] = SAMPLE,
    seeds: Annotated[int, typer.Option(help="Initializations measured.")] = 6,
    tokens: Annotated[int, typer.Option()] = 16,
    out: Annotated[Path, typer.Option(help="JSON file; classes already in it are kept.")] = Path(
        "docs/data/coverage_check.json"
    ),
) -> None:
    """Compare predictions and measurements of some classes."""
    import transformers

    transformers.logging.set_verbosity_error()
    rows = json.loads(out.read_text()) if out.exists() else []
    for kind in KINDS:
        for config_class, model_class in classes(kind):
            if model_class.__name__ in only.split(",") and model_class.__name__ not in [row["model"] for row in rows]:
                rows.append(check(kind, config_class, model_class, seeds, tokens))
                print(json.dumps(rows[-1]), flush=True)
                out.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n".join(markdown(rows)))


if __name__ == "__main__":
    typer.run(main)

"""The prescriptions on many models: `python -m studies.plan_sweeps [--processes N] [--parts functions,widths,...]`.

- `functions`: scales folded into weights and scales applied by hooks are one function, in float64, with skip scales and
  with branch scales alone: transformers classes, and blocks as people write them (`tests/structure`).
- `widths`: the coordinate check of `mup` on transformers classes whose heads grow: it passes, and names three planted
  mistakes (a hidden rate, the init of the readout or, where that is tied, the rate of the table, and attention's 1/d).
- `alarms`: correct runs of the coordinate check with its default settings, other seeds each time, and how many of them
  raise an alarm.

Results are stored in `docs/data/plan_sweeps.json`; rows of models that were not run stay.
"""

from __future__ import annotations

import argparse
import copy
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sigprop.errors import SigpropError
from sigprop.plans import Plan
from sigprop.plans.recipes import plan
from sigprop.plans.scaling import coord_check, parametrize
from studies.plan_models import CAUSAL, IMAGES, MASKED, batch_of, build
from studies.stored import read, write

STORED = Path(__file__).parents[1] / "docs/data/plan_sweeps.json"
WIDTHS = (32, 64, 128)
TINY = 1e-30
CHECKED = (
    "Llama", "Llama, one key head", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3", "Phi", "Phi3", "GPT2",
    "GPTNeo", "GPTNeoX", "GPTJ", "OPT", "Bloom", "Mpt", "Falcon", "Cohere", "Granite", "Olmo2", "Glm4", "StableLm",
    "Starcoder2", "Mixtral", "Qwen3Moe", "Olmoe", "GptOss", "GraniteMoe", "Mamba", "Bert", "Roberta", "DistilBert",
    "ModernBert", "ViT", "Dinov2",
)  # fmt: skip
ALARMED = ("Llama", "Llama, six layers", "GPT2", "Bert", "ViT", "Qwen3", "Bloom", "Mixtral", "GPTNeoX")
REPEATS, FEW_REPEATS = 20, 8
"""Correct runs of each class of `ALARMED`, and of each other class of `CHECKED`."""


# -- functions


class Double(TorchFunctionMode):
    """Float64 throughout: norms and softmaxes that cast to float32 do not, and norms have no epsilon."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {key: _double(value) for key, value in (kwargs or {}).items()}
        name = getattr(func, "__name__", "")
        if name == "float" and args[0].is_floating_point():
            return args[0]
        if name in ("to", "type") and args[0].is_floating_point():
            args = tuple(map(_double, args))
        if name in ("layer_norm", "rms_norm"):
            kwargs = {**kwargs, "eps": TINY}
            args = args[:4] if name == "layer_norm" else args[:3]
        return func(*args, **kwargs)


def _double(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def logits(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with Double(), torch.no_grad():
        return model(**batch).logits


def functions(name: str) -> dict[str, Any]:
    """The largest difference of logits, relative to the largest logit, and what the scales change."""
    torch.manual_seed(0)
    model = build(name).double()
    for module in model.modules():
        for attribute in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, TINY)
    batch = batch_of(name, torch.float64)
    row: dict[str, Any] = {"model": name}
    for label, recipe, options in (
        ("skip and branch", "depth_scaling", {"k": 0.5, "alpha": 0.5}),
        ("branch", "noci", {}),
    ):
        try:
            row[label] = _difference(model, recipe, options, batch)
        except SigpropError as error:
            row[label] = str(error).splitlines()[0]
    return row


def _difference(model: nn.Module, recipe: str, options: dict[str, Any], batch: dict[str, Any]) -> dict[str, float]:
    folded = plan(model, recipe, batch=batch, **options)
    hooked = plan(model, recipe, batch=batch, surgery=True, **options)
    one = folded.apply_(copy.deepcopy(model))
    values = {key: value.detach().clone() for key, value in one.named_parameters()}
    for row in folded.junctions:
        for key in row.weights:
            values[key] = (values[key] + row.shift) / (row.branch / row.level) - row.shift
    twin, plain = hooked.attach_(copy.deepcopy(model)), copy.deepcopy(model)
    for each in (twin, plain):
        each.load_state_dict(values, strict=False)
    wanted, found, unscaled = (logits(each, batch) for each in (one, twin, plain))
    largest = wanted.abs().max()
    return {
        "difference": float((found - wanted).abs().max() / largest),
        "effect": float((unscaled - wanted).abs().max() / largest),
    }


# -- widths


def factory(name: str) -> Callable[[int], nn.Module]:
    """Four heads that grow with the width; the variants that the names tell."""
    kind, _, variant = name.partition(", ")
    others: dict[str, Any] = {"num_key_value_heads": 1} if variant == "one key head" else {}
    layers = 6 if variant == "six layers" else 2
    return lambda width: build(kind, width, layers, heads=4, **others)


def example(name: str) -> dict[str, torch.Tensor]:
    batch = batch_of(name.partition(",")[0])
    labels = torch.tensor([0, 1]) if "pixel_values" in batch else batch["input_ids"]
    return {**batch, "labels": labels}


def roles_of(name: str) -> dict[str, str] | None:
    """What shapes cannot tell of a model that is not traced."""
    if name != "Mamba":
        return None
    named = dict(factory(name)(WIDTHS[0]).named_parameters())
    return {key: "vector" for key in named if key.endswith(("A_log", "conv1d.weight", ".D"))}


def mistakes(name: str, batch: Any) -> dict[str, tuple[Callable, str, str]]:
    """By mistake: a plan with it, the culprit's name and its cause."""
    known = parametrize(factory(name)(64), "mup", base=factory(name)(32), batch=batch, roles=roles_of(name))
    two = [row for row in known if len(row.shape) > 1]
    hidden = [row.name for row in two if row.role == "hidden" and not row.name.endswith(("q_proj.weight",))]
    found: dict[str, tuple[Callable, str, str]] = {}

    def with_mistake(target: str, change: Callable) -> Callable:
        def made(model: nn.Module, base: nn.Module) -> Plan:
            right = parametrize(model, "mup", base=base, batch=batch, roles=roles_of(name))
            ratio = _width(model) / _width(base)
            rows = [change(row, ratio) if row.name == target else row for row in right.parameters]
            return replace(right, parameters=rows)

        return made

    found["hidden rate"] = (with_mistake(hidden[-1], _rate(1.0)), hidden[-1], "learning rate")
    readout = next((row.name for row in two if row.role == "readout"), None)
    if readout is not None:
        found["readout init"] = (with_mistake(readout, _init(0.5)), readout, "init")
    else:
        table = next(row.name for row in two if row.role == "embedding")
        found["table rate"] = (with_mistake(table, _rate(-1.0)), table, "learning rate")
    if any("attention 1/d" in row.why for row in known):

        def unscaled(model: nn.Module, base: nn.Module) -> Plan:
            return parametrize(model, "mup", base=base, batch=batch, attention="keep")

        found["attention scale"] = (unscaled, "", "attention scale")
    return found


def _width(model: nn.Module) -> int:
    config: Any = model.config
    return next(getattr(config, key) for key in ("hidden_size", "d_model", "n_embd", "dim") if hasattr(config, key))


def _rate(power: float) -> Callable:
    return lambda row, ratio: replace(row, lr=row.lr * ratio**power, weight_decay=row.weight_decay / ratio**power)


def _init(power: float) -> Callable:
    return lambda row, ratio: replace(row, init=replace(row.init, value=row.init.value * ratio**power))


def widths(name: str) -> dict[str, Any]:
    batch = example(name)
    options: dict[str, Any] = {"batch": batch, "seeds": 2, "steps": 2, "lr": 1e-2, "roles": roles_of(name)}
    good = coord_check(factory(name), WIDTHS, **options)
    row: dict[str, Any] = {"model": name, "passed": good.passed, "culprits": [str(item) for item in good.culprits]}
    row["mistakes"] = {}
    for label, (made, culprit, cause) in mistakes(name, batch).items():
        report = coord_check(factory(name), WIDTHS, plan=made, **options)
        first = report.culprits[0] if report.culprits else None
        named = first is not None and first.cause == cause and (not culprit or first.name == culprit)
        told = [str(item) for item in report.culprits[:2]]
        row["mistakes"][label] = {"caught": not report.passed, "named": named, "first": told}
    return row


# -- alarms


def alarms(item: tuple[str, int]) -> dict[str, Any]:
    """One correct run with default settings; its seeds are those of no other run."""
    name, run = item
    make = factory(name)

    def build_anew(width: int) -> nn.Module:
        torch.manual_seed(int(torch.randint(1 << 30, ())) + 1000 * run)
        return make(width)

    report = coord_check(build_anew, WIDTHS, batch=example(name))
    told = [str(item) for item in report.culprits]
    return {"model": name, "run": run, "passed": report.passed, "suspects": report.meta["suspects"], "culprits": told}


# -- all


PARTS: dict[str, tuple[Callable, list[Any]]] = {
    "functions": (functions, [*CAUSAL, *MASKED, *IMAGES]),
    "widths": (widths, list(CHECKED)),
    "alarms": (
        alarms,
        [(name, run) for run in range(REPEATS) for name in ALARMED]
        + [(name, run) for run in range(FEW_REPEATS) for name in CHECKED if name not in ALARMED],
    ),
}


def work(task: tuple[str, Any]) -> dict[str, Any]:
    part, item = task
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    try:
        return PARTS[part][0](item)
    except Exception as error:
        return {"model": item, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def store(part: str, row: dict[str, Any]) -> None:
    """A row among those that are stored, in the order of the models."""
    found = read(STORED, {})
    rows = {_key(row): row for row in found.get(part, {}).get("rows", [])} | {_key(row): row}
    kept = [rows.get(_key({"model": item})) for item in PARTS[part][1]]
    found["command"] = "python -m studies.plan_sweeps"
    found[part] = {"date": date.today().isoformat(), "torch": torch.__version__, "rows": [row for row in kept if row]}
    write(STORED, found)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    model = row["model"]
    return (model, row.get("run")) if isinstance(model, str) else tuple(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--only", nargs="*", default=[], help="models")
    parser.add_argument("--missing", action="store_true", help="only what is not stored")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for part in args.parts.split(","):
        items = [item for item in PARTS[part][1] if not args.only or item in args.only or item[0] in args.only]
        stored = read(STORED).get(part, {}).get("rows", []) if args.missing else []
        items = [item for item in items if _key({"model": item}) not in {_key(row) for row in stored}]
        with get_context("spawn").Pool(args.processes) as pool:
            for row in pool.imap_unordered(work, [(part, item) for item in items]):
                store(part, row)
                print(part, row, flush=True)


if __name__ == "__main__":
    main()

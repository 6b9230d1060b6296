"""What a sweep is: settings in four sections and a grid over any of them, read from TOML (docs/do/train.md#sweeps).

`[model]` has a source and its settings, `[data]` a text (Zipf tokens without it), passages and length, `[plan]` a
recipe and its options (none: the model's own initialization), `[train]` the settings of a training.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from sigprop.errors import InputError, UnknownNameError
from sigprop.inputs import open_source
from sigprop.models import load_text
from sigprop.plans.scaling import plan as prescribe
from sigprop.research.lab.data import TextBatches, tokens_of, zipf_tokens
from sigprop.research.lab.settings import Settings
from sigprop.research.lab.trainer import train

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

KEYS: dict[str, tuple[str, ...] | None] = {
    "model": None,  # any setting of the model
    "data": ("text", "passages", "length", "seed"),
    "plan": None,  # recipe and its options
    "train": tuple(item.name for item in fields(Settings)),
}
Trial = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class SweepSpec:
    """Fixed settings by section, and for every key of the grid its values."""

    fixed: Trial
    grid: dict[str, list[Any]]

    def trials(self) -> list[Trial]:
        """All combinations, the last key of the grid fastest."""
        found = []
        for values in itertools.product(*self.grid.values()):
            trial = {section: dict(given) for section, given in self.fixed.items()}
            for key, value in zip(self.grid, values, strict=True):
                section, name = key.split(".", 1)
                trial.setdefault(section, {})[name] = value
            found.append(trial)
        return found


def identity(trial: Trial) -> str:
    """A name that belongs to these settings alone, in any order."""
    text = json.dumps(trial, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_spec(path: str | Path) -> SweepSpec:
    """Read and check a sweep's TOML file; what is unknown is named."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    grid = content.pop("grid", {})
    for section, given in content.items():
        if section not in KEYS:
            raise UnknownNameError(f"section of {path}", section, [*KEYS, "grid"])
        if not isinstance(given, dict):
            raise InputError(f"{path}: {section} is {given!r}: needs a section [{section}]")
        for name in given:
            _check(f"{section}.{name}", path)
    for key, values in grid.items():
        _check(key, path)
        if not isinstance(values, list) or not values:
            raise InputError(f"{path}: grid key {key!r} is {values!r}: needs a list with at least one value")
    if "source" not in content.get("model", {}) and "model.source" not in grid:
        raise InputError(f"{path}: [model] has no source: a reference network, a config.json, or file.py:factory")
    return SweepSpec(content, grid)


def _check(key: str, path: str | Path) -> None:
    section, dot, name = key.partition(".")
    if not dot or section not in KEYS:
        raise UnknownNameError(f"key of {path}", key, [f"{known}.…" for known in KEYS], "Write section.name.")
    known = KEYS[section]
    if known is not None and name not in known:
        raise UnknownNameError(f"key of {path} in [{section}]", name, known)


ZIPF = 1 << 16
"""Tokens of synthetic text where no file is given."""


def run_trial(trial: Trial) -> dict[str, Any]:
    """The result of one training as plain numbers."""
    settings = Settings.of(**trial.get("train", {}))
    given = dict(trial["model"])
    torch.manual_seed(settings.seed)
    source = open_source(given.pop("source"), given)
    model = source.build()
    plan = prescription(model, source, trial.get("plan", {}))
    if plan is not None:
        plan.apply_(model, torch.Generator().manual_seed(settings.seed))
    run = train(model, batches_of(trial.get("data", {})), settings, plan=plan)
    return {
        "last": run.last if run.ended == "finished" else None,
        "first": run.losses[0],
        "losses": [round(value, 5) for value in run.losses[:: max(len(run.losses) // 100, 1)]],
        "ended": run.ended,
        "seconds": round(run.seconds, 2),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "torch": torch.__version__,
    }


def prescription(model: torch.nn.Module, source: Any, given: dict[str, Any]) -> Any:
    """The plan that a trial asks for; none for the model's own initialization."""
    options = dict(given)
    recipe = options.pop("recipe", "default")
    return None if recipe == "default" and not options else prescribe(model, recipe, batch=source.batch, **options)


def batches_of(given: dict[str, Any]) -> TextBatches:
    """Passages of the text that a trial names."""
    options: dict[str, Any] = {"passages": 16, "length": 128} | given
    text = options.pop("text", None)
    tokens = zipf_tokens(ZIPF, 256) if text is None else tokens_of(load_text(text))
    return TextBatches(tokens, **options)

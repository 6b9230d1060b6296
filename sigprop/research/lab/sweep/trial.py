"""One trial: build the model, prescribe, train, and say in a few numbers how it went."""

from __future__ import annotations

from typing import Any

import torch

from sigprop.api import plan as prescribe
from sigprop.inputs import open_source
from sigprop.models import load_text
from sigprop.research.lab.data import TextBatches, tokens_of, zipf_tokens
from sigprop.research.lab.settings import Settings
from sigprop.research.lab.sweep.sheet import Trial
from sigprop.research.lab.trainer import train

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

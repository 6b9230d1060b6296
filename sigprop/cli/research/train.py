"""`sigprop research train`: one small, resumable training of a model, with its own initialization or a recipe's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sigprop.cli.options import Model, Quiet, Settings, progress, show


def train_command(
    model: Model,
    settings: Settings = None,
    text: Annotated[str | None, typer.Option(help="A text file, read as bytes; Zipf tokens without it.")] = None,
    recipe: Annotated[str, typer.Option(help="An initialization recipe; default is the model's own.")] = "default",
    width: Annotated[str | None, typer.Option(help="A width rule for the learning rates, such as mup.")] = None,
    train: Annotated[
        list[str] | None, typer.Option("--train", help="A training setting, such as lr=0.01; may be repeated.")
    ] = None,
    passages: Annotated[int, typer.Option(help="Passages in a batch.")] = 16,
    length: Annotated[int, typer.Option(help="Tokens in a passage.")] = 128,
    folder: Annotated[Path | None, typer.Option(help="RunLog and checkpoint; a run found there is resumed.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a language model on a text. Exit code 1 when the loss is no longer finite."""
    import torch

    from sigprop.inputs import open_source, parse_settings
    from sigprop.research.lab import Settings as TrainingSettings
    from sigprop.research.lab import train as run_training
    from sigprop.research.lab.sweep.spec import batches_of, prescription

    chosen = TrainingSettings.of(**parse_settings(train or []))
    batches = batches_of({"passages": passages, "length": length} | ({"text": text} if text else {}))
    torch.manual_seed(chosen.seed)
    source = open_source(model, parse_settings(settings or []), None, 1, length)
    made = source.build()
    plan = prescription(made, source, {"recipe": recipe} | ({"width": width} if width else {}))
    if plan is not None:
        plan.apply_(made, torch.Generator().manual_seed(chosen.seed))
    with progress(f"training {model}", chosen.steps, quiet) as done:
        run = run_training(made, batches, chosen, plan=plan, folder=folder, progress=lambda step, loss: done(step + 1))
    show(f"{model}, {chosen.steps} steps: first loss {run.losses[0]:.4f}, last tenth {run.last:.4f}; {run.ended}")
    if run.ended != "finished":
        raise typer.Exit(1)

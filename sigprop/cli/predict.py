"""`sigprop predict`: moments of a model from theory, beside a measurement if asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sigprop.cli.options import Data, Everything, Figure, Json, Model, Quiet, Seeds, Settings, Tokens, show
from sigprop.errors import InputError

if TYPE_CHECKING:
    from sigprop.results import Profile


def predict_command(
    context: typer.Context,
    model: Model,
    settings: Settings = None,
    data: Data = None,
    tokens: Tokens = 128,
    networks: Annotated[
        int, typer.Option(min=1, max=1000, help="Predictions of networks whose attention heads differ, averaged.")
    ] = 1,
    verify: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**24, help="Initializations that judge the prediction; by default up to 24 where cheap."
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure the real model; a name means the reference network then.")
    ] = False,
    seeds: Seeds = 8,
    all: Everything = False,
    json: Json = False,
    quiet: Quiet = False,
    figure: Figure = None,
) -> None:
    """Predict forward and backward moments at initialization."""
    from sigprop.api import predict
    from sigprop.blueprints import BLUEPRINTS
    from sigprop.inputs import open_source, parse_settings
    from sigprop.measurement import measure as measure_model
    from sigprop.results.profile import COLUMNS_IN_WORDS

    chosen = parse_settings(settings or [])
    profiles: dict[str, Profile] = {}
    if model in BLUEPRINTS and not measure:
        _require_unused(context, model)
        profiles["predicted"] = predict(BLUEPRINTS[model].from_settings(chosen))
    else:
        source = open_source(model, chosen, data, batch=1, tokens=tokens)
        options = {"networks": networks, "verify": verify}
        given = source.build() if source.fixed else source.build
        profiles["predicted"] = predict(given, source.batch, loss=source.loss, **options)
        if measure:
            count = 1 if source.fixed else seeds
            batch = source.required_batch()
            profiles["measured"] = measure_model(
                None, batch, source.loss, build=source.build, seeds=count, progress=not (json or quiet)
            )
    predicted = profiles["predicted"]
    if figure is not None:
        others = {name: profile for name, profile in profiles.items() if name != "predicted"}
        predicted.plot(figure, **others)
    if json:
        show(predicted.to_json())
        return
    for profile in profiles.values():
        show(profile.summary(), "", profile.table(all), "")
    show(COLUMNS_IN_WORDS)
    if measure:
        comparison = predicted.compare(profiles["measured"])
        show("", comparison.summary(), "", comparison.table(all))
    if figure is not None:
        show(f"figure: {figure}")


def _require_unused(context: typer.Context, model: str) -> None:
    """The blueprint of a reference network is predicted without a batch and without being run."""
    for name in ("data", "tokens", "networks", "verify", "seeds"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(
                f"--{name} has no use for the blueprint of {model}: give --measure to predict the network itself, or "
                "--set to change the blueprint"
            )

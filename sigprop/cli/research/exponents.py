"""`sigprop research exponents`: width exponents of a parametrization, its stability and its learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sigprop.cli.options import Json, show
from sigprop.grid import Grid

if TYPE_CHECKING:
    from sigprop.plans.exponents import Parametrization
    from sigprop.research.exponents import Classification


def exponents_command(
    parametrization: Annotated[str, typer.Argument(help="SP, NTK, muP, MF, or a=..,..,..;b=..,..,..[;c=..,..,..].")],
    optimizer: Annotated[str, typer.Option(help="sgd, adam, adafactor, muon, ...; a wrong name lists them.")] = "adam",
    alignment: Annotated[str, typer.Option(help="full, readout, none, or alpha=..,omega_readout=..,u=..")] = "full",
    depth: Annotated[int, typer.Option(min=1, max=10_000, help="Hidden layers in the chain.")] = 2,
    json: Json = False,
) -> None:
    """Judge a parametrization by its width exponents.

    Exact numbers for each role: init, multiplier, largest stable learning rate. Exit code 1 when it is unstable.
    """
    from sigprop.plans.exponents import read_alignment, read_optimizer, read_parametrization
    from sigprop.research.exponents import classify

    entry = read_parametrization(parametrization)
    verdict = classify(entry, read_optimizer(optimizer), read_alignment(alignment), depth)
    if json:
        show(_data(entry, verdict, optimizer, alignment))
    else:
        _print(entry, verdict, f"{entry.name}, {optimizer}, {alignment} alignment")
    if not verdict.stable:
        raise typer.Exit(1)


def _print(entry: Parametrization, verdict: Classification, title: str) -> None:
    parts = (("multiplier a", entry.a), ("init b", entry.b), ("learning rate c", verdict.c))
    rows = [[label, *map(str, values)] for label, values in parts]
    show(Grid(["", "embedding", "hidden", "readout"], rows, title=f"{title}: powers of 1/width"))
    show(f"regime: {verdict.regime}; equivalent to {', '.join(verdict.equivalent) or 'no table entry'}")
    show(*map(str, verdict.failures))


def _data(entry: Parametrization, verdict: Classification, optimizer: str, alignment: str) -> dict[str, Any]:
    return {
        "parametrization": entry.name,
        "optimizer": optimizer,
        "alignment": alignment,
        **{key: [str(x) for x in values] for key, values in (("a", entry.a), ("b", entry.b), ("c", verdict.c))},
        "stable": verdict.stable,
        "regime": verdict.regime,
        "equivalent": list(verdict.equivalent),
        "failures": [str(condition) for condition in verdict.failures],
        "feature_updates": [str(r) for r in verdict.chain.updates],
    }

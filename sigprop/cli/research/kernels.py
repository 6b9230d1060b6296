"""`sigprop research kernels`: NNGP and NTK between two inputs at every overlap."""

from __future__ import annotations

from typing import Annotated

import typer

from sigprop.cli.options import Json, Settings, show
from sigprop.grid import Grid

OVERLAPS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


def kernels_command(
    overlaps: Annotated[
        list[float] | None, typer.Option("--overlap", min=-1, max=1, help="Overlap of two inputs; may be repeated.")
    ] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """NNGP and NTK of an infinitely wide MLP between inputs of unit variance.

    Settings are those of the `mlp` blueprint: depth, activation, sigma_w, sigma_b.
    """
    import torch

    from sigprop.blueprints import MLP
    from sigprop.inputs import parse_settings
    from sigprop.research.kernels import kernels

    network = MLP.from_settings(parse_settings(settings or []))
    asked = torch.tensor(overlaps or OVERLAPS, dtype=torch.float64)
    first = torch.tensor([[1.0, 0.0]], dtype=torch.float64) * 2**0.5
    others = torch.stack([asked, (1 - asked**2).sqrt()], dim=-1) * 2**0.5
    found = kernels(network, first, others)
    rows = [
        {"overlap": overlap, "nngp": nngp, "ntk": ntk}
        for overlap, nngp, ntk in zip(asked.tolist(), found.nngp[0].tolist(), found.ntk[0].tolist(), strict=True)
    ]
    if json:
        show(rows)
        return
    show(Grid(list(rows[0]), [[f"{value:.4g}" for value in row.values()] for row in rows]))

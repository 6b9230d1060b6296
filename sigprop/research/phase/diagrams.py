"""Phase diagrams of the reference networks (those the apjn paper measures), with the theory drawn over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Generator, Tensor, nn

from sigprop.errors import UnknownNameError
from sigprop.grid import thinned
from sigprop.models import build
from sigprop.models.transformer import Block, TransformerConfig
from sigprop.research.criticality import Vanilla, architecture, critical_line, critical_points, predicted_diagram
from sigprop.research.phase.diagram import Axis, PhaseDiagram
from sigprop.research.phase.figure import Overlay
from sigprop.research.phase.networks import MeasuredMLP, Network, network_phase
from sigprop.research.phase.predicted import BLUEPRINTS, blueprint_diagram


def mlp_phase(network: Network, x: Axis, y: Axis, fixed: dict[str, float] | None = None, **run: Any) -> PhaseDiagram:
    """chi_J of MLPs over two of sigma_w, sigma_b and residual, e.g. x=("sigma_w", values); `fixed` sets the third.

    `run`: `initializations`, `seed`, `device`, `resume` and `progress`, as for `network_phase`.
    """
    alone = {} if "residual" in (x[0], y[0]) else {"residual": 0.0}
    return network_phase(
        lambda: MeasuredMLP(network),
        lambda model: model.get_submodule(f"blocks.{network.depth - 3}"),
        lambda generator: torch.randn(network.batch, network.inputs, generator=generator, device=generator.device),
        x,
        y,
        {**alone, **(fixed or {})},
        settings=network.settings(),
        **run,
    )


class AttentionBlock(Block):
    """A Transformer block without its mlp."""

    def forward(self, x: Tensor, *inputs: Tensor | None) -> Tensor:  # type: ignore[override]
        return self._attach(x, "attention", *inputs)


SIZES: dict[str, dict[str, Any]] = {
    "vit": {"image": 32, "channels": 3, "patch": 4, "width": 256, "depth": 24, "heads": 8},
    "resnet": {"depth": 18, "width": 16},
    "mixer": {"depth": 30},
}


def _vit(mlp: bool = True, **settings: Any) -> nn.Module:
    model = build("vit", **{**SIZES["vit"], **settings})
    if not mlp:
        config: TransformerConfig = model.config.encoder()  # type: ignore[operator, union-attr, assignment]
        model.blocks = nn.ModuleList(AttentionBlock(config, causal=False) for _ in range(config.depth))
    return model


def _resnet(**settings: Any) -> nn.Module:
    return build("resnet", **{**SIZES["resnet"], "bias": True, **settings})


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "resnet": _resnet,
    "mixer": lambda **settings: build("mixer", **{**SIZES["mixer"], **settings}),
    "vit": _vit,
}


def measured_diagram(
    name: str, x: Axis, y: Axis, fixed: dict[str, float], settings: dict[str, Any], batch: int = 1, **run: Any
) -> PhaseDiagram:
    """chi_J of the penultimate block of a reference network, on white-noise images."""
    if name not in BUILDERS:
        raise UnknownNameError("model", name, BUILDERS, "(to be measured)")
    if settings.get("norm") == "batch_norm" or (name == "resnet" and "norm" not in settings):
        batch = max(batch, 32)
    model = BUILDERS[name](**settings)
    config: Any = model.config
    size, channels = getattr(config, "image", 32), config.channels
    device = run.get("device", "cpu")

    def images(generator: Generator) -> Tensor:
        return torch.randn(batch, channels, size, size, generator=generator, device=device)

    record = {"model": name, "batch": batch, **settings}
    return network_phase(
        lambda: model,
        lambda m: list(m.get_submodule("blocks").children())[-2],
        images,
        x,
        y,
        fixed,
        settings=record,
        **run,
    )


def coarse(axis: Axis) -> Axis:
    """The same range with at most eight values: enough for a contour, where every point costs."""
    return axis[0], thinned(axis[1], 8)


def overlays(activation: Any, norm: str, x: Axis, y: Axis, fixed: dict[str, float]) -> dict[str, Any]:
    """Critical line and points of an MLP over the (sigma_w, sigma_b) plane; elsewhere the contour chi_J = 1."""
    if {x[0], y[0]} != {"sigma_w", "sigma_b"}:
        return {"contour": predicted_diagram(activation, x, y, fixed, norm)}
    network = architecture(activation, norm, fixed.get("residual", 0.0))
    found: list[Overlay] = []
    line = critical_line(network, reach=max(x[1]) * 1.1)
    if line is not None:
        found.append(_curve(line.sigma_w[line.stable], line.sigma_b[line.stable], "line"))
        if not line.stable.all():
            found.append(_curve(line.sigma_w[~line.stable], line.sigma_b[~line.stable], "dotted"))
    if isinstance(network, Vanilla):
        points = critical_points(network)
        found.append(Overlay([p.sigma_w for p in points], [p.sigma_b for p in points], "star"))
    return {"overlays": found}


def _curve(sigma_w: Tensor, sigma_b: Tensor, kind: str) -> Overlay:
    return Overlay(sigma_w.tolist(), sigma_b.tolist(), kind)


def contour(
    name: str, x: Axis, y: Axis, fixed: dict[str, float], settings: dict[str, Any], theory: PhaseDiagram | None
) -> dict[str, Any]:
    """The contour chi_J = 1 of a reference network, from the diagram of theory where it is there."""
    if not set(settings) <= {field.name for field in fields(BLUEPRINTS[name])}:
        return {}  # a variant that only the measured network has
    axes = (coarse(x), coarse(y)) if name == "mixer" else (x, y)
    return {"contour": theory or blueprint_diagram(name, *axes, fixed, settings)}

"""Phase diagrams of the reference networks (those the apjn paper measures), with the theory drawn over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from sigprop.errors import UnknownNameError, require
from sigprop.grid import thinned
from sigprop.measurement.statistics import Average, average_over
from sigprop.models import build
from sigprop.models.transformer import Block, TransformerConfig
from sigprop.research.criticality import Vanilla, architecture, critical_line, critical_points, predicted_diagram
from sigprop.research.phase.diagram import Axis, PhaseDiagram, plane_values
from sigprop.research.phase.figure import Overlay
from sigprop.research.phase.networks import Layers, Network, Points, network_phase
from sigprop.research.phase.predicted import BLUEPRINTS, blueprint_diagram

Progress = Callable[[int, int], None]


_FAINT = 1e-20


def block_factors(network: Network, points: Points, seed: int, probes: int = 1) -> Tensor:
    """chi_J of the penultimate block at every point [P], for one initialization and one random input.

    States that fade below 1e-20 are lifted back to it before they underflow: so close to zero every activation is
    homogeneous, and its slopes do not depend on the scale.
    """
    layers = Layers(network, points, seed)
    with torch.no_grad():
        h = layers.linear(network.inputs)(layers.normal(network.batch, network.inputs))
        for layer in range(network.depth - 3):
            h = layers.block()(h)
            if layer % 8 == 7:
                peak = h.abs().amax((1, 2), keepdim=True)
                h = h * torch.where((peak > 0) & (peak < _FAINT), _FAINT / peak, 1.0)
    pull = torch.func.vjp(layers.block(), h)[1]
    total = torch.zeros(len(h), device=h.device)
    for _ in range(probes):
        (back,) = pull(layers.signs(1, network.batch, network.width).expand_as(h))
        total += back.square().sum((1, 2))
    return total / (probes * network.batch * network.width)


def measure_factors(
    network: Network,
    sigma_w: Tensor,
    sigma_b: Tensor,
    residual: Tensor | float = 0.0,
    *,
    initializations: int = 100,
    probes: int = 1,
    seed: int = 0,
    device: str | torch.device = "cpu",
    resume: str | Path | None = None,
    progress: Progress | None = None,
) -> Average:
    """chi_J averaged over initializations, at points given by broadcasting sigma_w, sigma_b and residual."""
    require(initializations >= 1, "initializations", initializations, "at least 1")
    require(probes >= 1, "probes", probes, "at least 1")
    residual = torch.as_tensor(residual)
    points = Points.of(sigma_w, sigma_b, residual, device)
    shape = tuple(torch.broadcast_shapes(sigma_w.shape, sigma_b.shape, residual.shape))
    settings = {
        **network.settings(),
        "probes": probes,
        "seed": seed,
        **{name: value.tolist() for name, value in (("w", sigma_w), ("b", sigma_b), ("mu", residual))},
    }

    def sample(index: int) -> Tensor:
        return block_factors(network, points, _seed(seed, index), probes).reshape(shape)

    return average_over(sample, initializations, shape, settings, resume, progress)


def mlp_phase(
    network: Network,
    x: Axis,
    y: Axis,
    fixed: dict[str, float] | None = None,
    *,
    initializations: int = 100,
    probes: int = 1,
    seed: int = 0,
    **run: Any,
) -> PhaseDiagram:
    """Phase diagram over two of sigma_w, sigma_b and residual, e.g. x=("sigma_w", values); `fixed` sets the third.

    `run`: `device`, `resume` and `progress`, as for `measure_factors`.
    """
    values = plane_values(x, y, fixed, {"sigma_w": 1.0, "sigma_b": 0.0, "residual": 0.0})
    asked = {"initializations": initializations, "probes": probes, "seed": seed}
    average = measure_factors(network, **values, **asked, **run)
    settings = {**network.settings(), **(fixed or {}), **asked, "source": "measure"}
    return PhaseDiagram.over(x, y, average.mean.tolist(), average.standard_error.tolist(), settings)


def _seed(seed: int, index: int) -> int:
    return seed * 1_000_003 + index


@dataclass(frozen=True)
class Plane:
    """What was asked for: a model (`network` if it is an MLP), two ranges, and what is held fixed."""

    model: str
    network: Network | None
    x: Axis
    y: Axis
    fixed: dict[str, float]
    extra: dict[str, Any]


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
        raise UnknownNameError("model", name, BUILDERS)
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


def predicted_plane(plane: Plane) -> PhaseDiagram:
    if plane.network is not None:
        return predicted_diagram(plane.network.activation, plane.x, plane.y, plane.fixed, plane.network.norm)
    return blueprint_diagram(plane.model, plane.x, plane.y, plane.fixed, plane.extra)


def measured_plane(plane: Plane, run: dict[str, Any]) -> PhaseDiagram:
    if plane.network is not None:
        return mlp_phase(plane.network, plane.x, plane.y, plane.fixed, **run)
    if plane.model not in BUILDERS:
        raise UnknownNameError("model", plane.model, BUILDERS, "(to be measured)")
    return measured_diagram(plane.model, plane.x, plane.y, plane.fixed, plane.extra, **run)


def drawn_above(plane: Plane, theory: PhaseDiagram | None) -> dict[str, Any]:
    """What theory draws over the heat map: line and stars of an MLP, the contour chi_J = 1 of others."""
    x, y = plane.x, plane.y
    if plane.network is not None:
        return overlays(plane.network.activation, plane.network.norm, x, y, plane.fixed)
    if not set(plane.extra) <= {field.name for field in fields(BLUEPRINTS[plane.model])}:
        return {}  # a variant that only the measured network has
    axes = (coarse(x), coarse(y)) if plane.model == "mixer" else (x, y)
    return {"contour": theory or blueprint_diagram(plane.model, *axes, plane.fixed, plane.extra)}

"""chi_J of whole blueprints: the backward chain started from white noise at one block, read one block earlier."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor

from sigprop.blueprints.base import Blueprint, Setting, Tape
from sigprop.blueprints.inits import AttentionVariances, InitScheme, MLPVariances, get_init
from sigprop.blueprints.mixer import Mixer
from sigprop.blueprints.mlp import MLP
from sigprop.blueprints.repeated import Layer, RepeatedBlueprint
from sigprop.blueprints.resnet import ResNet
from sigprop.blueprints.transformer import Transformer
from sigprop.blueprints.vit import ViT
from sigprop.errors import UnknownNameError, require
from sigprop.research.phase.diagram import AXES, Axis, PhaseDiagram, check_plane
from sigprop.theory import Signal
from sigprop.theory.ops import loss

BLUEPRINTS: dict[str, type[Blueprint]] = {"mixer": Mixer, "resnet": ResNet, "transformer": Transformer, "vit": ViT}
START = {"sigma_w": 1.0, "sigma_b": 0.0, "residual": 1.0}


class GainScheme(InitScheme):
    """Variance sigma_w^2 / fan_in for every matrix, unit embeddings."""

    def __init__(self, sigma_w: Setting):
        self.variance = sigma_w**2

    def matrix(self, fan_in: int, fan_out: int) -> Any:
        return self.variance / fan_in


def block_factor(blueprint: Blueprint) -> Tensor:
    """chi_J of the penultimate block: energy of a unit white-noise gradient at its output, seen at its input."""
    tape = Tape()
    if isinstance(blueprint, RepeatedBlueprint) and getattr(blueprint, "kind", "") != "encoder_decoder":
        require(blueprint.depth >= 3, "depth", blueprint.depth, "at least three blocks, to have a penultimate one")
        along = Tape()
        stream = along.signal(blueprint.start(along))
        for layer in range(blueprint.depth - 2):
            along = Tape()
            stream = along.signal(blueprint.block(along, along.source(stream), layer, ""))
        before = tape.source(stream)
        after = blueprint.block(tape, before, blueprint.depth - 2, "")
    else:
        blueprint.forward(tape)
        blocks = [site.node for site in tape.graph.sites if re.fullmatch(r"(.*\.)?blocks\.\d+", site.name)]
        require(len(blocks) >= 3, "depth", len(blocks), "at least three blocks, to have a penultimate one")
        before, after = blocks[-3], blocks[-2]
    tape.backward((after, loss.white_noise(tape.signal(after))), until=before)
    return tape.states.gradient(before).summary()[0]


def blueprint_at(name: str, point: dict[str, Setting], settings: dict[str, Any] | None = None) -> Blueprint:
    """The blueprint with all matrices of gain sigma_w, biases sigma_b and residual strength `residual`.

    The Mixer away from `residual = 1` has its token mixing sampled (seed 0 unless set): averaged over, chi_J comes out
    too low there, by a fifth to two thirds.
    """
    if name not in BLUEPRINTS:
        raise UnknownNameError("blueprint", name, BLUEPRINTS)
    for key in point:
        require(key in AXES, "axis", key, " or ".join(AXES))
    point, known = {**START, **point}, dict(settings or {})
    sigma_w, sigma_b, mu = (point[key] for key in AXES)
    if name in ("transformer", "vit"):
        known |= {"init": GainScheme(sigma_w), "bias_variance": sigma_b**2, "skip_scale": mu}
    else:
        known |= {"sigma_w": sigma_w, "sigma_b": sigma_b, "mu": mu}
    if name == "mixer" and bool((torch.as_tensor(mu) != 1).any()):
        known.setdefault("seed", 0)
    return BLUEPRINTS[name].from_settings(known)


def blueprint_diagram(
    name: str, x: Axis, y: Axis, fixed: dict[str, float] | None = None, settings: dict[str, Any] | None = None
) -> PhaseDiagram:
    """chi_J over two of sigma_w, sigma_b and residual; `fixed` sets the third.

    The whole plane in one call where tokens are exchangeable, point by point where all pairs of tokens are kept.
    """
    check_plane(x, y, fixed)
    across, up = (torch.tensor(list(axis[1]), dtype=torch.float64) for axis in (x, y))
    across, up = torch.broadcast_tensors(across[None, :], up[:, None])
    plane = blueprint_at(name, {**(fixed or {}), x[0]: across, y[0]: up}, settings)
    if getattr(plane, "seed", None) is None and not getattr(plane, "is_dense", False):
        chi = block_factor(plane).expand(across.shape).tolist()
    else:
        chi = [[_at(name, {**(fixed or {}), x[0]: a, y[0]: b}, settings) for a in x[1]] for b in y[1]]
    record = {"model": name, **(settings or {}), **(fixed or {}), "source": "theory"}
    return PhaseDiagram.over(x, y, chi, None, record)


def _at(name: str, point: dict[str, Setting], settings: dict[str, Any] | None) -> float:
    return float(block_factor(blueprint_at(name, point, settings)))


def blueprint_line(
    name: str, x: Axis, y: Axis, fixed: dict[str, float] | None = None, settings: dict[str, Any] | None = None
) -> list[tuple[float, float]]:
    """The critical line: all (x, y) with chi_J = 1 at the given values of y, between the least and the largest x.

    Every change of sign of log chi_J between neighbouring x is refined to 1e-6. Empty where there is none.
    """

    def height(across: float, up: float) -> float:
        return math.log(_at(name, {**(fixed or {}), x[0]: across, y[0]: up}, settings))

    check_plane(x, y, fixed)
    found = []
    for up in map(float, y[1]):
        found += [(root, up) for root in _roots(lambda across, up=up: height(across, up), list(map(float, x[1])))]
    return found


def _roots(function: Callable[[float], float], places: list[float]) -> list[float]:
    values = [function(place) for place in places]
    found = [place for place, value in zip(places, values, strict=True) if value == 0]
    for i in range(len(places) - 1):
        if values[i] * values[i + 1] < 0:
            found.append(float(brentq(function, places[i], places[i + 1], xtol=1e-6)))  # type: ignore[arg-type]
    return sorted(found)


def depth_law(blueprint: RepeatedBlueprint) -> tuple[str, float]:
    """How squared gradients change with depth: ("power", g) for J ~ depth^g, ("exponential", s) for J ~ exp(s depth).

    From chi_J at this depth and at twice it: log chi_J = g / depth halves, a constant s stays. Transients of
    other shapes give the nearer of the two, so take the blueprint deep enough.
    """
    twice = replace(blueprint, depth=2 * blueprint.depth)
    near, far = (math.log(float(block_factor(network))) for network in (blueprint, twice))
    if near == 0 or far / near > 0.75:
        return "exponential", far
    return "power", far * (twice.depth - 2)


class Gained(InitScheme):
    """Another scheme with the standard deviations of all matrices of blocks times a gain.

    `whole` is the blueprint that the scheme belongs to: where a shallower copy is evaluated, draws that depend on the
    depth stay those of the whole.
    """

    def __init__(self, scheme: InitScheme, gain: Setting, whole: Transformer):
        self.scheme, self.variance, self.whole = scheme, gain**2, whole

    def matrix(self, fan_in: int, fan_out: int) -> float:
        return self.scheme.matrix(fan_in, fan_out)

    def embedding(self, blueprint: Transformer) -> Any:
        return self.scheme.embedding(self.whole)

    def attention(self, blueprint: Transformer, layer: Layer, x: Signal) -> AttentionVariances:
        base = self.scheme.attention(self.whole, layer, x)
        return AttentionVariances(*(self.variance * getattr(base, field.name) for field in fields(base)))

    def mlp(self, blueprint: Transformer, layer: Layer, x: Signal) -> MLPVariances:
        base = self.scheme.mlp(self.whole, layer, x)
        return MLPVariances(self.variance * base.up, self.variance * base.down)


def plane_around(blueprint: Blueprint, gains: Sequence[float], others: Sequence[float], depth: int = 8) -> PhaseDiagram:
    """chi_J around the settings of a blueprint: all matrices of blocks times `gains`, and the strength of the skip (of
    an MLP, which has none, the standard deviation of the biases) set to `others`.

    It is that of the penultimate block of the first `depth` blocks, in one call; a decoder's tokens are taken as
    exchangeable.
    """
    across = torch.tensor(list(gains), dtype=torch.float64)[None, :]
    up = torch.tensor(list(others), dtype=torch.float64)[:, None]
    across, up = torch.broadcast_tensors(across, up)
    known = {field.name: getattr(blueprint, field.name) for field in fields(blueprint)}
    blocks = min(max(known["depth"], 3), depth)
    name, changes = "skip", {"depth": blocks}
    if isinstance(blueprint, Transformer):
        scheme = Gained(get_init(blueprint.init), across, blueprint)
        changes |= {"init": scheme, "skip_scale": up, "state": "exchangeable"}
        if isinstance(blueprint.branch_scale, (list, tuple)):
            changes["branch_scale"] = [*blueprint.branch_scale, blueprint.branch_scale[-1]][:blocks]
    elif isinstance(blueprint, MLP) and not blueprint.mu:
        name = "sigma_b"
        changes |= {"sigma_w": known["sigma_w"] * across, "sigma_b": up}
    else:
        changes |= {"sigma_w": known["sigma_w"] * across, "mu": up}
    chi = block_factor(replace(blueprint, **changes)).expand(across.shape).tolist()
    record = {"model": blueprint.name, "block": blocks - 1, "source": "theory"}
    return PhaseDiagram("gain", list(gains), name, list(others), chi, None, record)

"""What every blueprint is: settings, checked once, and a chain of theory ops built from them."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sigprop.errors import InputError, UnknownNameError, require
from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.theory import Gradient, Node, Tape
from sigprop.theory.ops import loss

Setting = float | Tensor
PerLayer = float | Tensor | Sequence[float]
TOPS = ("cross_entropy", "white_noise")


@dataclass(frozen=True)
class Blueprint(ABC):
    """A declarative network. Numbers may be grids (tensors) wherever the state is exchangeable."""

    name: ClassVar[str]

    @abstractmethod
    def forward(self, tape: Tape) -> Node:
        """Record the whole network on the tape and return its output."""

    def top_gradient(self, output: Node) -> Gradient:
        """The gradient of the loss at the output."""
        return loss.white_noise(output.signal)

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Blueprint:
        """Build from keyword settings; an unknown key names its nearest neighbours."""
        known = {field.name for field in dataclasses.fields(cls)}
        for key in settings:
            if key not in known:
                raise UnknownNameError("setting", key, known, f"(of blueprint {cls.name})")
        try:
            return cls(**settings)
        except TypeError as error:
            raise InputError(f"{cls.name}: a setting has the wrong type ({error})") from error


def run(blueprint: Blueprint, top: Gradient | None = None) -> tuple[Tape, Node]:
    """Forward and backward on one tape; `top` replaces the blueprint's own gradient at the output."""
    tape = Tape()
    output = blueprint.forward(tape)
    tape.backward((output, blueprint.top_gradient(output) if top is None else top))
    return tape, output


def predict(blueprint: Blueprint, top: Gradient | None = None) -> Profile:
    """The profile of a blueprint: one row per named site, one per parameter."""
    tape, _ = run(blueprint, top)
    return profile_of(tape, {"source": "predict", "model": blueprint.name, "settings": _plain(blueprint)})


def profile_of(tape: Tape, meta: dict[str, Any]) -> Profile:
    """Rows from the named nodes of a tape."""
    sites = [site_row(node) for node in tape.nodes if node.name]
    parameters = [
        ParameterRow(
            f"{node.parameter_prefix}.{state.name}",
            state.shape,
            state.role,
            _number(torch.as_tensor(state.variance, dtype=torch.float64).sqrt()),
            _number(state.grad_second_moment),
            status=str(node.signal.evidence.status),
        )
        for node in tape.nodes
        if node.parameter_prefix
        for state in node.parameters
    ]
    return Profile(sites, parameters, meta)


def site_row(node: Node) -> SiteRow:
    mean, variance, correlation = node.signal.summary()
    evidence = node.signal.evidence
    row = SiteRow(node.name, node.depth, _number(mean), _number(variance), _number(correlation))
    if node.gradient is not None:
        energy, grad_correlation = node.gradient.summary()
        row.grad_variance, row.grad_token_correlation = _number(energy), _number(grad_correlation)
        evidence = evidence.join(node.gradient.evidence)
    row.status, row.reason = str(evidence.status), evidence.reason
    return row


def _number(value: Tensor) -> Any:
    """A float where there is one setting, the tensor where there is a grid."""
    return float(value) if value.numel() == 1 else value


def _plain(blueprint: Blueprint) -> dict[str, Any]:
    settings = {field.name: getattr(blueprint, field.name) for field in dataclasses.fields(blueprint)}
    return {key: _jsonable(value) for key, value in settings.items()}


def _jsonable(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return value if isinstance(value, (int, float, str, bool, type(None), list, tuple)) else str(value)


def at_layer(value: PerLayer, layer: int) -> Setting:
    """The value of a setting at one layer: a sequence has one entry per layer, anything else serves all."""
    return value[layer] if isinstance(value, (list, tuple)) else value  # type: ignore[return-value]


def require_positive_int(key: str, value: object) -> None:
    require(
        isinstance(value, int) and not isinstance(value, bool) and value >= 1, key, value, "a positive whole number"
    )


def require_range(key: str, value: PerLayer, low: float, high: float, allowed: str) -> None:
    """Every entry finite and in `[low, high)`."""
    numbers = torch.as_tensor(value, dtype=torch.float64)
    require(bool(torch.isfinite(numbers).all()), key, value, "finite numbers")
    require(bool(((numbers >= low) & (numbers < high)).all()), key, value, allowed)


def require_layers(key: str, value: PerLayer, depth: int) -> None:
    if isinstance(value, (list, tuple)):
        require(len(value) == depth, key, f"{len(value)} values", f"one number, or one for each of {depth} layers")
    require_range(key, value, -math.inf, math.inf, "finite numbers")

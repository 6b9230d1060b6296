"""Fresh initializations of a model: its constructor called again, or its random parameters initialized anew.

Tied parameters stay tied, parameters that hold the same numbers keep doing so, constants, formula tables and trained
weights stay as they are, orthogonal matrices are drawn orthogonal.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.distributions.distribution import INDEPENDENT, ORTHOGONAL, PIECE, STRUCTURED, UNKNOWN, Distribution
from sigprop.distributions.independence import FEWEST, constructed
from sigprop.distributions.model_distributions import (
    copied_with,
    default_distribution,
    distributions_of,
    factory_of_model,
    places_of,
)
from sigprop.errors import UnsupportedError

NEGLIGIBLE = 0.02
Perturb = Callable[[Tensor, int], Tensor]


def perturbation(parameter: Tensor, distribution: Distribution, stays: bool, name: str) -> Perturb | None:
    """How a parameter is perturbed, by its values and the number of the draw; None where nothing is in doubt."""
    if distribution.variance == 0.0:
        return None
    if stays and distribution.kind == STRUCTURED:
        return _displaced(name) if parameter.dim() > 1 and not _few_numbers(parameter) else None
    if stays:
        return lambda values, number: independent(values.shape, distribution, _generator(name, number))
    if distribution.uncertainty <= NEGLIGIBLE:
        return None
    return lambda values, number: _resized(values, distribution, _generator(name, number))


def independent(
    shape: torch.Size, distribution: Distribution, generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Independent entries with the moments of a distribution, made piece by piece in float64."""
    values = distribution.quantiles
    if len(values) < 2 or not float(values.std()):
        return distribution.mean + math.sqrt(distribution.variance) * torch.randn(
            shape, generator=generator, dtype=torch.float64
        )
    scale = math.sqrt(distribution.variance) / float(values.std(correction=0))
    made = torch.empty(math.prod(shape), dtype=dtype)
    for piece in made.split(PIECE):
        piece.copy_(distribution.mean + (distribution.draw(piece.shape, generator) - values.mean()) * scale)
    return made.view(shape)


def _resized(values: Tensor, distribution: Distribution, generator: torch.Generator) -> Tensor:
    sign = 2 * int(torch.randint(2, (1,), generator=generator)) - 1
    return distribution.mean + (values - distribution.mean) * math.sqrt(max(1.0 + sign * distribution.uncertainty, 0.1))


def _displaced(name: str) -> Perturb:
    def perturb(values: Tensor, number: int) -> Tensor:
        generator = _generator(name, number)
        made = values.detach().clone()
        for axis in (0, 1):
            size = made.shape[axis]
            signs = 2.0 * torch.randint(2, (size,), generator=generator) - 1.0
            shape = [size if n == axis else 1 for n in range(made.dim())]
            made = made.index_select(axis, torch.randperm(size, generator=generator)) * signs.to(made.dtype).view(shape)
        return made

    return perturb


def _few_numbers(parameter: Tensor) -> bool:
    """An identity, a mask: a formula, and not one of many draws."""
    values = parameter.detach().flatten()[:4096]
    values = values[values != 0]
    return 2 * len(values.unique()) < len(values)


def _generator(name: str, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()) + 7_919 * number)


FIRST_SEED = 100_003


class Draws:
    """Numbered initializations of one model, each the same whenever it is asked for; the model is left alone.

    Number 0 of a real module has the module's weights. `random` is false where no parameter is random: all are then
    the same.
    """

    def __init__(self, model: nn.Module, seed: int = 0):
        self._model = model
        self._seed = FIRST_SEED * (seed + 1)
        self._factory = factory_of_model(model)
        self.on_meta = any(parameter.is_meta for parameter in model.parameters())
        self._fills: dict[str, Fill] = {}
        self._copies: dict[str, str] = {}
        self._perturbations: dict[str, Perturb] = {}
        if self._factory is None:
            self._fills, self._copies, self._perturbations = _redrawn(model)
        self.random = self._factory is not None or bool(self._fills)

    @property
    def has_constructor(self) -> bool:
        """Whether draws come from the model's own constructor: hooks on them are then the model's."""
        return self._factory is not None

    @property
    def way(self) -> str:
        """How a fresh initialization is made, in words."""
        if self._factory is not None:
            return "the model's own constructor"
        return (
            "parameters initialized anew from their distributions" if self.random else "the model's weights as they are"
        )

    @property
    def doubtful(self) -> bool:
        """Whether distributions were read off one draw of the weights, which tells them roughly."""
        return bool(self._perturbations)

    def perturbed(self, number: int) -> nn.Module:
        """Initialization `number` as it were with other distributions that the weights could have been drawn from."""
        made = self(number if self.random else 0)
        twins = dict(made.named_parameters())
        for name, perturb in self._perturbations.items():
            with torch.no_grad():
                twins[name].copy_(perturb(twins[name], number))
        return made

    def __call__(self, number: int) -> nn.Module:
        if self._factory is not None:
            return _in_mode_of(self._model, constructed(self._factory, self._seed + number))
        made = _real_copy(self._model)
        if number == 0 and not self.on_meta:
            return made
        generator = torch.Generator().manual_seed(self._seed + number)
        twins = dict(made.named_parameters())
        for name, fill in self._fills.items():
            with torch.no_grad():
                twins[name].copy_(fill(generator))
        for name, first in self._copies.items():
            with torch.no_grad():
                twins[name].copy_(twins[first])
        return made


def _in_mode_of(model: nn.Module, made: nn.Module) -> nn.Module:
    """Training flags and frozen parameters as in the model."""
    flags = {name: module.training for name, module in model.named_modules()}
    for name, module in made.named_modules():
        module.training = flags.get(name, module.training)
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in made.named_parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(trained.get(name, parameter.requires_grad))
    return made


def _real_copy(model: nn.Module) -> nn.Module:
    """A copy whose parameters on meta have memory."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if parameter.is_meta:
            empty = torch.zeros(parameter.shape, dtype=parameter.dtype)
            memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return copied_with(model, memo)


Fill = Callable[[torch.Generator], Tensor]


def _redrawn(model: nn.Module) -> tuple[dict[str, Fill], dict[str, str], dict[str, Perturb]]:
    """For every random parameter how it is drawn, or which one it is a copy of; and for all of which one draw leaves a
    doubt, how they are perturbed; by the first name of each."""
    fills: dict[str, Fill] = {}
    copies: dict[str, str] = {}
    perturbations: dict[str, Perturb] = {}
    distributions = distributions_of(model)
    seen: set[int] = set()
    same: dict[tuple, str] = {}
    for place in places_of(model):
        parameter = place.parameter
        if id(parameter) in seen or not parameter.is_floating_point() or not parameter.numel():
            continue
        seen.add(id(parameter))
        distribution = distributions[id(parameter)]
        if parameter.is_meta and distribution.kind == UNKNOWN:
            raise UnsupportedError(
                f"{place.name} is on meta and no distribution of it is known: give the function that builds it"
            )
        key = (tuple(parameter.shape), distribution.mean, distribution.variance, _print(parameter))
        few = parameter.numel() < FEWEST and not parameter.is_meta
        unsure = few and default_distribution(place.module, place.key, parameter) is None
        fill = None if unsure else _fill(distribution, parameter)  # a few numbers may well be a formula: they stay
        perturb = (
            None
            if parameter.is_meta
            else perturbation(parameter, distribution, stays=fill is None, name=same.get(key, place.name))
        )
        if perturb is not None:
            perturbations[place.name] = perturb
        if fill is None:
            if key[-1] is not None:
                same.setdefault(key, place.name)
            continue
        if key[-1] is not None and same.get(key) in fills:
            copies[place.name] = same[key]
            continue
        if key[-1] is not None:
            same[key] = place.name
        fills[place.name] = fill
    return fills, copies, perturbations


def _print(parameter: Tensor) -> tuple[float, ...] | None:
    """A few numbers of a real tensor, by which copies of one draw are known."""
    return (
        None if parameter.is_meta else tuple(parameter.detach().flatten()[:: max(1, parameter.numel() // 8)].tolist())
    )


def _fill(distribution: Distribution, parameter: Tensor) -> Fill | None:
    """How to draw a parameter; None where it stays as it is."""
    if distribution.variance == 0.0:
        return (lambda generator: torch.full(parameter.shape, distribution.mean)) if parameter.is_meta else None
    if distribution.kind == ORTHOGONAL:
        return lambda generator: _orthogonal(parameter.shape, distribution, generator)
    if distribution.kind != INDEPENDENT and not parameter.is_meta:
        return None
    if parameter.is_meta:
        return lambda generator: independent(parameter.shape, distribution, generator, parameter.dtype)
    constant = _constant_rows(parameter)

    def fill(generator: torch.Generator) -> Tensor:
        made = independent(parameter.shape, distribution, generator, parameter.dtype).to(parameter.device)
        return made if constant is None else torch.where(constant, parameter.detach(), made)

    return fill


def _constant_rows(parameter: Tensor) -> Tensor | None:
    """Rows of one number, as that of a padding id, stay."""
    if parameter.dim() < 2 or parameter[0].numel() < 2:
        return None
    rows = parameter.detach().flatten(1)
    same = (rows == rows[:, :1]).all(1)
    return same.reshape(-1, *[1] * (parameter.dim() - 1)) if bool(same.any()) else None


def _orthogonal(shape: torch.Size, distribution: Distribution, generator: torch.Generator) -> Tensor:
    rows, columns = shape[0], math.prod(shape[1:])
    noise = torch.randn(max(rows, columns), min(rows, columns), generator=generator, dtype=torch.float64)
    basis, upper = torch.linalg.qr(noise)
    basis = basis * upper.diagonal().sign()
    gain = math.sqrt(distribution.second_moment * max(rows, columns))
    return gain * (basis if rows >= columns else basis.T).reshape(shape)

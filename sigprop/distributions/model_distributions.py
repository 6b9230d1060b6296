"""Models with the distributions of their parameters: built without weights, or a copy of a real one without them."""

from __future__ import annotations

import copy
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sigprop.compat import ConvNd, own_parameters
from sigprop.distributions.distribution import COPIED, INDEPENDENT, UNKNOWN, Distribution
from sigprop.distributions.independence import Factory, Known, agrees, constructed, measured_distribution, refined
from sigprop.distributions.recorder import DrawRecorder, building
from sigprop.errors import UnsupportedError
from sigprop.isolation import Interrupts, observers, undisturbed, without_observers

FEW_ENTRIES = 2048
FEWEST = 3
Rule = Callable[[nn.Module, tuple[int, ...]], float]


@dataclass(frozen=True)
class Sibling:
    """A layer's weight with the distribution that its own numbers show."""

    module: nn.Module
    shape: tuple[int, ...]
    distribution: Distribution

    @property
    def entries(self) -> int:
        return math.prod(self.shape)


def _fan_in(module: nn.Module, shape: tuple[int, ...]) -> float:
    return math.prod(shape[1:])


def _fan_out(module: nn.Module, shape: tuple[int, ...]) -> float:
    return shape[0] * math.prod(shape[2:])


def _fan_out_of_group(module: nn.Module, shape: tuple[int, ...]) -> float:
    return _fan_out(module, shape) / getattr(module, "groups", 1)


RULES: tuple[Rule, ...] = (
    lambda module, shape: 1.0,
    _fan_in,
    _fan_out,
    _fan_out_of_group,
    lambda module, shape: (_fan_in(module, shape) + _fan_out(module, shape)) / 2,
)


def shared_distributions(found: Sequence[Sibling]) -> list[Distribution]:
    """The distributions of weights of one type of layer, small ones corrected by what all of them show."""
    usable = [
        item
        for item in found
        if item.distribution.kind == INDEPENDENT and item.distribution.variance and not item.distribution.mean
    ]
    distributions = [item.distribution for item in found]
    if len(usable) < FEWEST:
        return distributions
    misfit, rule = min(((_misfit(usable, rule), rule) for rule in RULES), key=lambda pair: pair[0])
    freedom = len(usable) - 1
    if misfit > freedom + 3.0 * math.sqrt(2.0 * freedom):
        return distributions
    level, told = _level(usable, rule), math.sqrt(2.0 / sum(item.entries for item in usable))
    small = [item in usable and item.entries <= FEW_ENTRIES for item in found]
    return [
        _scaled(item.distribution, level / rule(item.module, item.shape), told) if corrected else item.distribution
        for item, corrected in zip(found, small, strict=True)
    ]


def _level(usable: Sequence[Sibling], rule: Rule) -> float:
    total = sum(item.entries for item in usable)
    return sum(item.entries * item.distribution.variance * rule(item.module, item.shape) for item in usable) / total


def _misfit(usable: Sequence[Sibling], rule: Rule) -> float:
    """Chi-squared of the variances about their common level, for normal entries."""
    level = _level(usable, rule)
    return sum(
        item.entries / 2.0 * (item.distribution.variance * rule(item.module, item.shape) / level - 1.0) ** 2
        for item in usable
    )


def _scaled(distribution: Distribution, variance: float, told: float) -> Distribution:
    quantiles = distribution.quantiles * math.sqrt(variance / distribution.variance)
    return replace(distribution, quantiles=quantiles, variance=variance, uncertainty=told)


UNIFORM_IN_FAN = (nn.Linear, ConvNd, nn.Bilinear)


def default_distribution(module: nn.Module, key: str, parameter: Tensor) -> Distribution | None:
    """Torch's own distribution of a layer's weight or bias, if the numbers are within it and could come from it."""
    distribution = _default(module, key)
    if distribution is None or not 2 <= parameter.numel() <= FEW_ENTRIES or not parameter.is_floating_point():
        return None
    values = parameter.detach()
    if values.min() == values.max():
        return None
    low, high = float(distribution.quantiles[0]), float(distribution.quantiles[-1])
    slack = (high - low) / len(distribution.quantiles)
    bounded = float(values.min()) >= low - slack and float(values.max()) <= high + slack
    return distribution if bounded and agrees(distribution, values) else None


def _default(module: Any, key: str) -> Distribution | None:
    if isinstance(module, UNIFORM_IN_FAN) and key in ("weight", "bias"):
        weight = module.weight
        fan = weight.shape[1] * math.prod(weight.shape[2:]) if not isinstance(module, nn.Bilinear) else weight.shape[1]
        return Distribution.uniform(-1 / math.sqrt(fan), 1 / math.sqrt(fan))
    if isinstance(module, nn.RNNBase) and key.startswith(("weight", "bias")):
        return Distribution.uniform(-1 / math.sqrt(module.hidden_size), 1 / math.sqrt(module.hidden_size))
    return None


SEED = 0
"""Of the one draw that a constructor without weights makes of what it gives its parameters as numbers."""
FEW = 8
"""Entries by which two draws are told apart."""
_DISTRIBUTION = "_sigprop_distribution"
_FACTORY = "_sigprop_factory"
_COPIED = "_sigprop_copied"
_ZERO_ROWS = "_sigprop_zero_rows"


def distribution(parameter: Tensor) -> Distribution:
    """What the builder recorded for a parameter, or what a real tensor measures."""
    found = getattr(parameter, _DISTRIBUTION, None)
    if found is not None:
        return found
    return Distribution.constant(0.0, UNKNOWN) if parameter.is_meta else measured_distribution(parameter)


def set_distribution(parameter: Tensor, distribution: Distribution) -> None:
    """Say how a parameter without weights is drawn."""
    setattr(parameter, _DISTRIBUTION, distribution)


def is_copied(parameter: Tensor) -> bool:
    """Whether another parameter of the model holds the same draw, as layers that are deep copies of one do."""
    return getattr(parameter, _COPIED, False)


def law_of(parameter: Tensor) -> Distribution:
    """The distribution of a parameter's entries; a draw that others have too is no draw of its own."""
    found = distribution(parameter)
    return replace(found, kind=COPIED) if is_copied(parameter) and found.variance else found


def read_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter, Distribution, tuple[int, ...]]]:
    """Of a model without weights: each parameter with its name, its distribution and the rows that are zero."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.is_meta]
    return [(name, parameter, law_of(parameter), zero_rows(parameter)) for name, parameter in named]


def zero_rows(table: Tensor) -> tuple[int, ...]:
    """Rows of a table that are zero although the others are drawn, as that of a padding id is."""
    found = getattr(table, _ZERO_ROWS, None)
    if found is not None or table.is_meta or table.dim() != 2 or not table.numel():
        return found or ()
    suspects = (table[:, 0] == 0.0).nonzero()[:, 0]
    rows = suspects[(table[suspects] == 0.0).all(1)]
    return tuple(rows.tolist()) if len(rows) < len(table) else ()


def factory_of_model(model: nn.Module) -> Factory | None:
    """The function that made a model, where `build` did."""
    return model.__dict__.get(_FACTORY)


def build(factory: Factory) -> nn.Module:
    """Call a function that makes a model, without allocating its weights; their distributions are kept beside them."""
    with undisturbed() as interrupts:
        made = _built(factory, interrupts)
    if isinstance(made, nn.Module):
        made.__dict__[_FACTORY] = factory
    return made


def _built(factory: Factory, interrupts: Interrupts) -> nn.Module:
    try:
        with building() as recorder, interrupts.let_through():  # an interrupt leaves no mode and no hook
            made = constructed(factory, SEED)
    except Exception:  # a constructor that computes with its weights; or one that fails, and does so again
        with interrupts.let_through():
            made = constructed(factory, SEED)
            return skeleton_of(made) if isinstance(made, nn.Module) else made
    if isinstance(made, nn.Module):
        with interrupts.let_through():
            _keep_distributions(made, recorder, factory)
    return made


def parameters_on_meta(model: nn.Module, frozen: bool = False) -> dict[int, Any]:
    """For each trainable parameter, by `id`, a twin on meta that knows its distribution.

    With `frozen` also for weights that are not trained, but not for tables that a class computes (sinusoids).
    """
    distributions = distributions_of(model)
    parameters = {id(place.parameter): place.parameter for place in places_of(model)}
    copies = _copies({key: _numbers(item) for key, item in parameters.items() if distributions[key].variance})
    drawn = {id(place.parameter) for place in places_of(model) if frozen and _is_drawn(place)}
    return {
        key: _on_meta(parameter, distributions[key], key in copies or is_copied(parameter))
        for key, parameter in parameters.items()
        if parameter.requires_grad or parameter.is_meta or key in drawn
    }


def _is_drawn(place: Place) -> bool:
    computed = isinstance(place.module, nn.Embedding) and type(place.module) is not nn.Embedding
    return place.key in ("weight", "bias") and place.parameter.is_floating_point() and not computed


def distributions_of(model: nn.Module) -> dict[int, Distribution]:
    """That of every parameter, by `id`: recorded, torch's own, or what its and its siblings' numbers say."""
    distributions: dict[int, Distribution] = {}
    families: dict[type, list[tuple[int, Sibling]]] = {}
    for place in places_of(model):
        parameter, key = place.parameter, id(place.parameter)
        if key in distributions:
            continue
        distributions[key] = _distribution_in(place)
        if place.key == "weight" and parameter.dim() >= 2 and not parameter.is_meta:
            sibling = Sibling(place.module, tuple(parameter.shape), distributions[key])
            families.setdefault(type(place.module), []).append((key, sibling))
    for family in families.values():
        found = shared_distributions([sibling for _, sibling in family])
        distributions.update({key: distribution for (key, _), distribution in zip(family, found, strict=True)})
    return distributions


def copied_with(model: nn.Module, replaced: dict[int, Any]) -> nn.Module:
    """A copy of a model, without the hooks of its user, in which objects, by `id`, are replaced."""
    memo = dict(replaced)
    for _, hooks, key in observers(model):
        memo[id(hooks[key])] = hooks[key]  # not to be copied, since they are taken off
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach()  # computed from parameters, as by weight norm; computed again
            elif type(value) in (dict, OrderedDict) and not value:
                memo[id(value)] = type(value)()  # most of a module is tables of no hooks, slow to copy
    try:
        made = copy.deepcopy(model, memo)
    except Exception as error:
        raise UnsupportedError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}). "
            "Pass a function that builds it instead, or remove what cannot be copied."
        ) from error
    without_observers(made)
    return made


def skeleton_of(model: nn.Module, frozen: bool = False) -> nn.Module:
    """A copy of a model with its trainable (and `frozen`) parameters on meta; the model itself is not touched."""
    return copied_with(model, parameters_on_meta(model, frozen))


class Place(NamedTuple):
    """A parameter where a module holds it."""

    module: nn.Module
    key: str
    name: str
    parameter: nn.Parameter


def places_of(model: nn.Module) -> Iterator[Place]:
    for prefix, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield Place(module, key, f"{prefix}.{key}" if prefix else key, parameter)


def _distribution_in(place: Place) -> Distribution:
    parameter = place.parameter
    if parameter.is_meta or hasattr(parameter, _DISTRIBUTION):
        return distribution(parameter)
    return default_distribution(place.module, place.key, parameter) or measured_distribution(parameter)


def _on_meta(parameter: Tensor, distribution: Distribution, copied: bool) -> nn.Parameter:
    twin = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
    setattr(twin, _DISTRIBUTION, distribution)
    setattr(twin, _COPIED, copied)
    setattr(twin, _ZERO_ROWS, zero_rows(parameter))
    return twin


def _numbers(parameter: Tensor) -> Any:
    """What tells one draw from another."""
    if parameter.is_meta:
        return id(parameter)
    return (tuple(parameter.shape), *parameter.detach().flatten()[:FEW].tolist())


def _copies(draws: dict[int, Any]) -> set[int]:
    """Keys whose draw is that of another."""
    count = Counter(draws.values())
    return {key for key, draw in draws.items() if count[draw] > 1}


def _keep_distributions(model: nn.Module, recorder: DrawRecorder, factory: Factory) -> None:
    """Write the distribution of each parameter beside it; frozen tables take their numbers back."""
    places = [place for place in places_of(model) if place.parameter.is_meta]
    recorded = recorder.known_of({place.name: place.parameter for place in places})
    known: dict[str, Known] = {
        name: Distribution.constant(0.0, UNKNOWN) if item.entries is None else item.entries
        for name, item in recorded.items()
    }
    parameters = {id(place.parameter): place.parameter for place in places}
    for key in _copies({id(place.parameter): recorded[place.name].draw or id(place.parameter) for place in places}):
        setattr(parameters[key], _COPIED, True)
    found = refined(known, {place.name: place.parameter for place in places}, factory)
    for place in places:
        entries, parameter = found[place.name], place.parameter
        setattr(parameter, _ZERO_ROWS, recorded[place.name].zero_rows)
        if isinstance(entries, Tensor) and not parameter.requires_grad and entries.shape == parameter.shape:
            own_parameters(place.module)[place.key] = nn.Parameter(entries.to(parameter.dtype), requires_grad=False)
        elif not hasattr(parameter, _DISTRIBUTION):
            setattr(parameter, _DISTRIBUTION, _as_distribution(entries, is_table=entries is not known[place.name]))


def _as_distribution(entries: Known, is_table: bool) -> Distribution:
    if isinstance(entries, Distribution):
        return entries
    return Distribution.table(entries) if is_table else measured_distribution(entries)

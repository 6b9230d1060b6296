"""What every activation can tell about itself under a Gaussian input, and where it is found."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from sigprop.errors import InputError
from sigprop.registry import Registry
from sigprop.theory.activations import quadrature
from sigprop.theory.activations.gaussian import as_double, as_pair

Number = Tensor | float


class ActivationFunction:
    """An elementwise function f with its Gaussian moments; quadrature unless a subclass knows better.

    A `pair` are the variances of x and y, their covariance, and their means unless these are zero: float64 tensors or
    numbers that broadcast together, e.g. [..., T, 1], [..., 1, T] and [..., T, T] for a token kernel. `kinks` are the
    points where f' jumps.
    """

    name: str = ""
    status: str = "quadrature"
    kinks: tuple[float, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def derivative(self, x: Tensor) -> Tensor:
        """f'(x), by autograd unless overridden."""
        return _differentiate(self, x)

    def second_derivative(self, x: Tensor) -> Tensor:
        """f''(x) away from kinks, by autograd unless overridden."""
        return _differentiate(self.derivative, x)

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        """E f(x), x ~ N(mean, variance)."""
        return self.expectation(self, variance, mean)

    def second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        """E f(x)^2."""
        return self.expectation(lambda x: self(x) ** 2, variance, mean)

    def cross_moment(self, *pair: Number) -> Tensor:
        """E f(x) f(y)."""
        return self._cross_moment(*as_pair(*pair))

    def _cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        return quadrature.cross_moment(self, self.derivative, vx, vy, c, mx, my, self.kinks)

    def derivative_mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        """E f'(x)."""
        return self.expectation(self.derivative, variance, mean)

    def derivative_second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        """E f'(x)^2."""
        return self.expectation(lambda x: self.derivative(x) ** 2, variance, mean)

    def derivative_cross_moment(self, *pair: Number) -> Tensor:
        """E f'(x) f'(y)."""
        return self._derivative_cross_moment(*as_pair(*pair))

    def _derivative_cross_moment(self, vx: Tensor, vy: Tensor, c: Tensor, mx: Tensor, my: Tensor) -> Tensor:
        curvature = None if self.kinks else self.second_derivative
        return quadrature.cross_moment(self.derivative, curvature, vx, vy, c, mx, my, self.kinks)

    def curvature_cross_moment(self, *pair: Number) -> Tensor:
        """E f''(x) f(y), by Stein's lemma `(E (x - m) f'(x) f(y) - c E f'(x) f'(y)) / v`: kinks do not disturb it."""
        vx, vy, c, mx, my = as_pair(*pair)

        def moment(function: quadrature.Function) -> Tensor:
            return quadrature.cross_moment(function, None, vx, vy, c, mx, my, self.kinks, self)

        along = moment(self.radial)
        if bool(torch.any(mx)):
            along = along - mx * moment(self.derivative)
        slopes = self.derivative_cross_moment(vx, vy, c, mx, my)
        return (along - c * slopes) / vx.clamp_min(torch.finfo(vx.dtype).tiny)

    @cached_property
    def radial(self) -> ActivationFunction:
        """The function x f'(x), the change of f(x) with the scale of x."""
        return Radial(self)

    @cached_property
    def half_square_slope(self) -> ActivationFunction:
        """The function f(x) f'(x), the slope of f^2 / 2."""
        return HalfSquareSlope(self)

    def radial_moments(self, variance_x: Number, variance_y: Number, covariance: Number) -> tuple[Tensor, ...]:
        """With p(x) = x f'(x) and mean zero: E p(x) p(y), E f'(x) p'(y), E p'(x) p'(y), E x p'(x) p(y)."""
        vx, vy, c = as_double(variance_x, variance_y, covariance)
        radial, zero = self.radial, torch.zeros((), dtype=torch.float64)

        def moment(f: quadrature.Function, g: quadrature.Function) -> Tensor:
            return quadrature.cross_moment(f, None, vx, vy, c, zero, zero, self.kinks, g)

        steep = moment(lambda x: x * radial.derivative(x), radial)
        mixed = moment(self.derivative, radial.derivative)
        return radial.cross_moment(vx, vy, c), mixed, radial.derivative_cross_moment(vx, vy, c), steep

    def expectation(self, function: quadrature.Function, variance: Number, mean: Number) -> Tensor:
        """E of another function of x that has the kinks of this one."""
        variance, mean = as_double(variance, mean)
        return quadrature.expectation(function, variance, mean, self.kinks)

    def __repr__(self) -> str:
        return f"ActivationFunction({self.name!r}, {self.status})"


class HalfSquareSlope(ActivationFunction):
    """q(x) = f(x) f'(x) of another activation."""

    def __init__(self, function: ActivationFunction):
        self.function, self.kinks, self.name = function, function.kinks, f"{function.name} times its slope"

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x) * self.function.derivative(x)

    def derivative(self, x: Tensor) -> Tensor:
        return self.function.derivative(x) ** 2 + self.function(x) * self.function.second_derivative(x)


class Shifted(ActivationFunction):
    """f(x + c): another activation behind a constant."""

    def __init__(self, function: ActivationFunction, constant: float):
        self.function, self.constant, self.status = function, constant, function.status
        self.kinks, self.name = tuple(k - constant for k in function.kinks), f"{function.name} of x + {constant:g}"

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x + self.constant)

    def derivative(self, x: Tensor) -> Tensor:
        return self.function.derivative(x + self.constant)

    def second_derivative(self, x: Tensor) -> Tensor:
        return self.function.second_derivative(x + self.constant)


class Radial(ActivationFunction):
    """p(x) = x f'(x) of another activation."""

    def __init__(self, function: ActivationFunction):
        self.function, self.kinks, self.name = function, function.kinks, f"x d/dx {function.name}"

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.function.derivative(x)

    def derivative(self, x: Tensor) -> Tensor:
        return self.function.derivative(x) + x * self.function.second_derivative(x)


STEP = 1e-6
"""Between which numbers a slope is taken that autograd does not have, in double precision."""


def _differentiate(function: quadrature.Function, x: Tensor) -> Tensor:
    keep = torch.is_grad_enabled() and x.requires_grad
    with torch.enable_grad():
        leaf = x if keep else x.detach().requires_grad_()
        value = function(leaf)
        if not value.requires_grad:  # locally constant
            return torch.zeros_like(x)
        try:
            (slope,) = torch.autograd.grad(value.sum(), leaf, create_graph=True)
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            slope = (function(x + STEP) - function(x - STEP)) / (2.0 * STEP)
    return slope if keep else slope.detach()


# -- By name, by torch function, or from any elementwise callable


Factory = TypeVar("Factory", bound=Callable[..., ActivationFunction])

ACTIVATIONS: Registry[Callable[..., ActivationFunction]] = Registry("activation", __package__ or "")
_BY_CALLABLE: dict[Hashable, str] = {}


def register(name: str, *callables: Hashable) -> Callable[[Factory], Factory]:
    """Decorator: make an ActivationFunction class (or a factory of one) known by name and by torch functions."""

    def add(factory: Factory) -> Factory:
        ACTIVATIONS.add(name, factory)
        _BY_CALLABLE.update(dict.fromkeys(callables, name))
        return factory

    return add


def names() -> list[str]:
    """All registered names."""
    return list(ACTIVATIONS)


def get(activation: str | ActivationFunction | quadrature.Function, **parameters: Any) -> ActivationFunction:
    """The activation of that name, with its parameters, or an elementwise callable wrapped as one.

    For a callable: `kinks=(...)` are the points where its derivative jumps, `name=` is its name.
    """
    if isinstance(activation, ActivationFunction):
        return activation
    if isinstance(activation, str):
        factory = ACTIVATIONS[activation]
        try:
            return factory(**parameters)
        except TypeError as error:
            raise InputError(f"activation {activation!r} does not take {sorted(parameters)}: {error}") from None
    if not callable(activation):
        raise InputError(f"activation = {activation!r} is not allowed: needs a name or an elementwise callable")
    known = _BY_CALLABLE.get(activation) if len(ACTIVATIONS) and isinstance(activation, Hashable) else None
    if known is not None:
        return ACTIVATIONS[known](**parameters)
    return UserActivation(activation, **parameters)


class UserActivation(ActivationFunction):
    """Any elementwise torch function; all moments by quadrature, derivatives by autograd."""

    def __init__(self, function: quadrature.Function, kinks: tuple[float, ...] = (), name: str | None = None):
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.function = function
        self.kinks = tuple(float(k) for k in kinks)
        _require_elementwise(function, self.name)

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)


def _require_elementwise(function: quadrature.Function, name: str) -> None:
    """Shape, finiteness, differentiability, and that no output looks at another input."""
    x = torch.tensor([-3.1, -1.3, -0.4, 0.2, 0.9, 2.3, 4.7], dtype=torch.float64).requires_grad_()
    problem = f"activation {name!r} is not an elementwise torch function: "
    try:
        value = function(x)
        alone = torch.cat([function(part) for part in x.detach().flip(0).split(1)]).flip(0)
    except Exception as error:
        raise InputError(f"{problem}it failed on a vector of 7 float64 numbers ({error})") from error
    if not isinstance(value, Tensor) or value.shape != x.shape:
        came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"{problem}an input of shape (7,) gave {came}")
    if not torch.isfinite(value).all():
        where = x[~torch.isfinite(value)][0].item()
        raise InputError(f"activation {name!r} is not finite at x = {where}: it must be defined on the whole line")
    if not torch.allclose(value.detach(), alone, rtol=1e-9, atol=1e-12):
        raise InputError(f"{problem}an output depends on the other inputs, or on chance")
    if not value.requires_grad:
        raise InputError(f"{problem}autograd cannot differentiate it (written without torch operations?)")

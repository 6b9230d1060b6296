"""Squared ReLU (Primer)."""

from __future__ import annotations

import torch
from torch import Tensor

from sigprop.theory.activations.base import ActivationFunction, Number
from sigprop.theory.activations.gaussian import as_double
from sigprop.theory.activations.positive_part import PositivePair, positive_moment
from sigprop.theory.activations.registry import register


@register("relu_squared")
class ReluSquared(ActivationFunction):
    """f(x) = max(x, 0)^2; at zero mean E f^2 = 3 v^2 / 2, E f'^2 = 2 v (Cho and Saul 2009, n = 2 and 1)."""

    name = "relu_squared"
    status = "exact"
    kinks = (0.0,)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.relu(x) ** 2

    def mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return positive_moment(2, *as_double(variance, mean))

    def second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return positive_moment(4, *as_double(variance, mean))

    def cross_moment(
        self,
        variance_x: Number,
        variance_y: Number,
        covariance: Number,
        mean_x: Number = 0.0,
        mean_y: Number = 0.0,
    ) -> Tensor:
        return PositivePair(variance_x, variance_y, covariance, mean_x, mean_y).moment(2, 2)

    def derivative(self, x: Tensor) -> Tensor:
        return 2 * torch.relu(x)

    def derivative_mean(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return 2 * positive_moment(1, *as_double(variance, mean))

    def derivative_second_moment(self, variance: Number, mean: Number = 0.0) -> Tensor:
        return 4 * positive_moment(2, *as_double(variance, mean))

    def derivative_cross_moment(
        self,
        variance_x: Number,
        variance_y: Number,
        covariance: Number,
        mean_x: Number = 0.0,
        mean_y: Number = 0.0,
    ) -> Tensor:
        return 4 * PositivePair(variance_x, variance_y, covariance, mean_x, mean_y).moment(1, 1)

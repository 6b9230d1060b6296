"""Draws of a model, each run forward and backward on the batch and measured."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from sigprop.batches import copied
from sigprop.distributions import Draws
from sigprop.isolation import as_written, seed_all, seed_of, undisturbed
from sigprop.losses import LossChoice
from sigprop.measurement.batch import call, what_to_differentiate
from sigprop.measurement.measurement import summarize
from sigprop.measurement.one_pass import Options, measure_once
from sigprop.results import Profile
from sigprop.results.stated_errors import stated_columns
from sigprop.verification.spread import widen
from sigprop.verification.verdict import left_open
from sigprop.verification.work import WorkCounter, parameter_count

PRECISE = 0.05
PER_PARAMETER = 308
"""Operations that drawing a parameter, and reading it and its gradient, stand for."""


class Simulation:
    """Measured profiles of fresh initializations, made when asked for.

    Model, batch and random states are left alone.
    """

    def __init__(self, model: nn.Module, batch: Any, loss: LossChoice, seed: int = 0):
        self._model, self._draws = model, Draws(model, seed)
        self._batch, self._loss, self._seed = batch, loss, seed
        self.profiles: list[Profile] = []
        self.operations = 0

    @property
    def way(self) -> str:
        return self._draws.way

    @property
    def random(self) -> bool:
        return self._draws.random

    def extend(self, count: int, counted: bool = True) -> None:
        """Until `count` initializations are measured; the first one is also counted in operations, where asked for."""
        count = count if self.random else min(count, 1)
        while len(self.profiles) < count:
            number = len(self.profiles)
            self.profiles.append(self._drawn(number, counted and number == 0))

    def _drawn(self, number: int, counted: bool) -> Profile:
        """One initialization, let go before the next is made."""
        model = self._draws(number)
        if not counted:
            return self._measured(model, number)
        with WorkCounter() as counter:
            found = self._measured(model, number)
        self.operations = counter.operations + PER_PARAMETER * parameter_count(model)
        return found

    def operations_of_a_pass(self) -> int:
        """Of one pass forward and backward, without its measurement."""
        model = as_written(self._draws(0))
        with undisturbed() as interrupts, interrupts.let_through(), WorkCounter() as counter:
            batch = copied(self._batch)
            what_to_differentiate(batch, call(model, batch), self._loss).tensor.sum().backward()
        return counter.operations

    def perturbed(self, count: int) -> list[Profile]:
        """Twins of initializations 1 to `count`, with laws that the weights of a given module could as well have had;
        none where the laws are known."""
        if not self._draws.doubtful:
            return []
        self.extend(count + 1)
        return [self._measured(self._draws.perturbed(number), number) for number in range(1, count + 1)]

    def _measured(self, model: nn.Module, number: int) -> Profile:
        with undisturbed() as interrupts, interrupts.let_through():
            seed_all(seed_of("model", self._seed + number))  # what the model itself draws: dropout, noise
            options = Options(observers=self._draws.has_constructor)
            return measure_once(model, self._batch, self._loss, options, noise_seed=self._seed + number)

    def until_precise(self, most: int, operations: float) -> None:
        """At least three initializations, then more until nine of ten numbers are known to 5 % or it costs too much."""
        self.operations = PER_PARAMETER * parameter_count(self._model)
        self.extend(1, counted=self.operations <= operations / 4)  # else the parameters alone say that it is three
        count, affordable = 3, max(3, int(operations / max(self.operations, 1)))
        self.extend(count)
        while self.random and count < min(most, affordable) and self._imprecise():
            count = min(2 * count, most, affordable)
            self.extend(count)

    def _imprecise(self) -> bool:
        found = self.summary()
        columns = ("variance", "grad_variance", "grad_second_moment")
        relative = sorted(
            row.errors[column] / abs(getattr(row, column))
            for row in (*found.sites, *found.parameters)
            for column in columns
            if row.errors.get(column) and getattr(row, column)
        )
        return bool(relative) and relative[int(0.9 * (len(relative) - 1))] > PRECISE

    def _state_errors(self, found: Profile) -> None:
        for rows, tables in (
            (found.sites, [profile.sites for profile in self.profiles]),
            (found.parameters, [profile.parameters for profile in self.profiles]),
        ):
            named = [{row.name: row for row in table} for table in tables]
            for row in rows:
                for column in stated_columns(row):
                    draws = [getattr(table[row.name], column) for table in named]
                    if all(map(math.isfinite, draws)):
                        row.stated_errors[column] = left_open(draws)

    def summary(self) -> Profile:
        """Means with standard errors over the initializations; rows are `simulated`."""
        found = summarize(self.profiles, list(range(len(self.profiles))))
        widen(found.sites, [profile.sites for profile in self.profiles])
        widen(found.parameters, [profile.parameters for profile in self.profiles])
        for row in (*found.sites, *found.parameters):
            row.status = row.source = "simulated"
        self._state_errors(found)
        meta = {"source": "simulate", "draws": len(self.profiles), "way": self.way}
        return Profile(found.sites, found.parameters, {**found.meta, **meta})

"""Draws of a model, each run forward and backward on the batch and measured."""

from __future__ import annotations

from typing import Any

from torch import nn

from sigprop.initialization import Draws
from sigprop.measure.batch import Loss
from sigprop.measure.initializations import summarize
from sigprop.measure.once import Options, measure_once
from sigprop.results import Profile
from sigprop.simulate.work import WorkCounter


class Simulation:
    """Measured profiles of fresh initializations, made when asked for; model, batch and random states are left alone."""

    def __init__(self, model: nn.Module, batch: Any, loss: Loss | None, seed: int = 0):
        self._draws = Draws(model, seed)
        self._batch, self._loss, self._seed = batch, loss, seed
        self.profiles: list[Profile] = []
        self.operations = 0

    @property
    def way(self) -> str:
        return self._draws.way

    @property
    def random(self) -> bool:
        return self._draws.random

    def extend(self, count: int) -> None:
        """Until `count` initializations are measured; the first one is also counted in operations."""
        count = count if self.random else min(count, 1)
        while len(self.profiles) < count:
            number = len(self.profiles)
            model = self._draws(number)
            counter = WorkCounter() if number == 0 else None
            if counter is None:
                self.profiles.append(self._measured(model, number))
                continue
            with counter:
                self.profiles.append(self._measured(model, number))
            self.operations = counter.operations

    def _measured(self, model: nn.Module, number: int) -> Profile:
        return measure_once(model, self._batch, self._loss, Options(), noise_seed=self._seed + number)

    def summary(self) -> Profile:
        """Means with standard errors over the initializations; rows are `sampled`."""
        found = summarize(self.profiles, list(range(len(self.profiles))))
        for row in (*found.sites, *found.parameters):
            row.status = "sampled"
        meta = {"source": "simulate", "draws": len(self.profiles), "way": self.way}
        return Profile(found.sites, found.parameters, {**found.meta, **meta})

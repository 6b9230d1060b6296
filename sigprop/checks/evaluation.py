"""Predicting and measuring the subject, as it is and under a plan, always on one batch and one loss."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.batches import mapped, tensors_in
from sigprop.capture import predict
from sigprop.capture.layout import LARGEST
from sigprop.compat import return_free_memory
from sigprop.distributions import distribution, set_distribution, skeleton_of, zero_rows
from sigprop.errors import SigpropError, TooLarge, UnsupportedError
from sigprop.isolation import as_written
from sigprop.losses import LossChoice
from sigprop.measurement import measure
from sigprop.plans import Plan
from sigprop.plans.recipes.planned_states import distribution_of
from sigprop.prediction import limits
from sigprop.results import Profile
from sigprop.results.parameters import KEEP
from sigprop.sites import parameter_names, plain_name, unwrap
from sigprop.structure import Structure, read_structure
from sigprop.verification import Simulation

OTHERS = 5
"""Initializations that show how far apart two are."""
DRAWN = 3
"""Initializations that stand for a prediction where theory would take minutes."""
CROPS, IMAGE = (16, 32), 4
"""Sides of a crop, the smallest that the model takes; and the axes of a batch of images."""


@dataclass(frozen=True)
class Experiment:
    """One experiment: a model, a batch and a loss, the same for theory and measurement."""

    model: nn.Module
    batch: Any
    loss: LossChoice = None
    seed: int = 0

    @cached_property
    def skeleton(self) -> nn.Module:
        """The model without its weights. Their laws are read off once here: that costs more than all predictions."""
        return skeleton_of(as_written(self.model))

    @cached_property
    def positions(self) -> int:
        """Those that theory follows; fewer where the model can as well be run."""
        return limits(self.model, self.batch).get("positions", LARGEST)

    def predicted(self, plan: Plan | None = None) -> Profile:
        """From theory; under a plan only the distributions are replaced. From a few initializations where a model that
        can be run has more positions than theory follows."""
        subject = self.skeleton if plan is None else planned_skeleton(self.skeleton, plan)
        options: dict[str, Any] = {"loss": self.loss, "scores": True, "seed": self.seed}
        try:
            return predict(subject, self.batch, **options, positions=self.positions)
        except TooLarge:
            if self.positions == LARGEST:
                raise
            drawn = Simulation(subject, self.batch, self.loss, self.seed)
            drawn.extend(DRAWN, counted=False)
            return drawn.summary()

    def structure(self, model: nn.Module) -> Structure:
        """On crops of larger images than theory follows: structure does not depend on how large they are."""
        try:
            return read_structure(model, self.batch, self.positions)
        except TooLarge as error:
            refusal: SigpropError = error
        for side in CROPS if any(item.dim() == IMAGE for _, item in tensors_in(self.batch)) else ():
            try:
                return read_structure(model, mapped(self.batch, partial(_cropped, side=side)))
            except SigpropError as error:
                refusal = error
        raise refusal

    @cached_property
    def others(self) -> list[Profile]:
        """What a few other initializations of the model measure."""
        drawn = Simulation(self.skeleton, self.batch, self.loss, self.seed)
        drawn.extend(OTHERS, counted=False)
        return drawn.profiles

    def measured(self) -> Profile:
        """From one pass through the weights."""
        found = measure(self.model, self.batch, self.loss, scores=True)
        return_free_memory()  # what is free between blocks in use would stay with us, as much as the activations
        return found

    def applied(self, plan: Plan) -> nn.Module:
        """A copy of the model with a plan applied; parameters that the plan keeps are the model's own."""
        kept = {row.name for row in plan if row.init == KEEP}
        own = unwrap(self.model).named_parameters(remove_duplicate=False)
        copied = copy.deepcopy(self.model, {id(item): item for name, item in own if plain_name(name) in kept})
        return plan.apply_(copied, torch.Generator().manual_seed(self.seed))


def _cropped(item: Any, side: int) -> Any:
    """Two images, or what belongs to them."""
    if not isinstance(item, Tensor) or not item.dim():
        return item
    return item[:2, ..., :side, :side] if item.dim() == IMAGE else item[:2]


def is_weights_only(plan: Plan) -> bool:
    """Whether applying the plan changes nothing but parameters."""
    return not plan.scales and all(row.folded for row in plan.junctions)


def planned_skeleton(model: nn.Module, plan: Plan) -> nn.Module:
    """The model without weights, with the laws of a plan that changes weights only."""
    if not is_weights_only(plan):
        raise UnsupportedError("only a plan that changes nothing but weights is predicted without applying it")
    twin = skeleton_of(model)
    parameters = {plain_name(name): value for name, value in unwrap(twin).named_parameters()}
    own = {plain_name(name): distribution(value) for name, value in unwrap(model).named_parameters()}
    rows = {row.name: row for row in plan.parameters}
    for first, aliases in parameter_names(twin).items():
        row = next((rows[name] for name in aliases if name in rows), None)
        if row is not None:
            zeros = len(zero_rows(parameters[first]))
            set_distribution(parameters[first], distribution_of(row.init, own[first], tuple(row.shape), zeros))
    return twin

"""What a model becomes under a plan, predicted: the same ops under other distributions, no new run of the model.

`PlannedStates` only reads the graph, so that any number of them may be made in any order; `predict_plan` says what they
are along the residual stream, `with_initial_loss` what they mean for the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from sigprop.capture.record import Field
from sigprop.capture.rows import token_correlation
from sigprop.distributions import Distribution
from sigprop.errors import SigpropError, UnsupportedError
from sigprop.graph.evaluate import Evaluation, uses_of
from sigprop.graph.graph import Node
from sigprop.plans.plan import Plan
from sigprop.plans.recipes.rows import RECIPES, init_all, times
from sigprop.results import Init
from sigprop.structure import Structure
from sigprop.theory.ops.residual import Residual


class PlannedStates(Evaluation):
    """States of a captured model under initializations that are set name by name; `run` recomputes them in order."""

    def __init__(self, structure: Structure):
        super().__init__(structure.traced.capture.graph, structure.traced.states)
        self.structure = structure
        self.weights = structure.traced.weights
        self.place = {node: index for index, node in enumerate(self.nodes)}
        self.uses = uses_of(self.graph)

    @classmethod
    def under(cls, structure: Structure, plan: Plan) -> PlannedStates:
        """All states under a plan, its junctions scaled as it says."""
        states = cls(structure)
        states.set_plan(plan)
        for place, (junction, spot) in enumerate(zip(structure.junctions, structure.sums, strict=True)):
            if not junction.parallel:
                row = plan.junctions[place] if plan.junctions else None
                states.scale_sum(spot.total, spot.skip, (1.0, 1.0) if row is None else (row.skip, row.branch))
        states.run()
        return states

    def set_init(self, name: str, init: Init, shape: tuple[int, ...]) -> None:
        """Set how a parameter is initialized; states change when they are run."""
        own = self.weights[name]
        self.set_law(own, distribution_of(init, own.distribution, shape, len(own.zero_rows)))

    def distribution_now(self, name: str) -> Distribution:
        """How a parameter is initialized now."""
        return self.law(self.weights[name])

    def set_plan(self, plan: Plan) -> None:
        """Set every parameter as a plan says."""
        for row in plan.parameters:
            if row.name in self.weights:
                self.set_init(row.name, row.init, row.shape)

    def scale_sum(self, total: Field, skip: Field, scales: tuple[float, float]) -> None:
        """Make a residual sum `scales[0] * skip + scales[1] * branch`, on top of the model's own factors."""
        node = total.node
        first, second = scales if node.inputs[0] is skip.node else scales[::-1]
        own = node.op if isinstance(node.op, Residual) else Residual()
        self.set_op(node, replace(own, skip=own.skip * first, branch=own.branch * second))

    def between(self, first: Node, last: Node) -> list[Node]:
        """The nodes of the graph from one to another, both included."""
        return self.nodes[self.place[first] : self.place[last] + 1]


def variance(node: Node, states: Evaluation) -> float:
    """Second moment about the overall mean, averaged over tokens."""
    signal = states.signal(node)
    overall = signal.mean.mean()
    return float((signal.kernel.diagonal - 2 * overall * signal.mean + overall**2).mean())


def start_variance(structure: Structure, plan: Plan) -> float:
    """The variance that the first stream starts with."""
    states = PlannedStates(structure)
    states.set_plan(plan)
    start = structure.sums[0].source.node
    states.run(states.nodes[: states.place[start] + 1])
    return variance(start, states)


def correlation(field: Field, states: Evaluation) -> float:
    """Token correlation as in a profile: over pairs of one sequence."""
    return token_correlation(states.signal(field.node), field.layout)


def distribution_of(init: Init, own: Distribution, shape: tuple[int, ...], zero_rows: int = 0) -> Distribution:
    """The distribution of one entry, of all rows of a table of which some stay zero; a fused init counts as a mixture,
    which is an approximation."""
    if init.kind == "keep":
        return own if init.value == 1.0 else own.times(init.value)
    if zero_rows:
        return distribution_of(init, own, shape).with_zeros(zero_rows / shape[0])
    if init.kind == "constant":
        return Distribution.constant(init.value)
    if init.kind == "uniform":
        return Distribution.uniform(-math.sqrt(3) * init.std, math.sqrt(3) * init.std)
    if init.kind == "blocks":
        found = [distribution_of(part, own, shape) for part in init.parts]
        total = sum(init.sizes)
        second = sum(size * part.second_moment for size, part in zip(init.sizes, found, strict=True)) / total
        return Distribution.normal(0.0, math.sqrt(second))
    return Distribution.normal(0.0, init.std)


LARGEST_EXCESS = 1.05
"""How far above ln(classes) the predicted loss of a recipe may start."""


@dataclass(frozen=True)
class PredictedPlan:
    """Predicted along the residual stream, one entry per sum, scaled as the recipe says.

    `sensitivity` sums, over branches, the variance that a branch adds relative to its skip (dslm 5.6).
    """

    recipe: str
    variance: list[float]
    token_correlation: list[float]
    grad_variance: list[float]
    sensitivity: float

    @property
    def forward_growth(self) -> float:
        return self.variance[-1] / self.variance[0]

    @property
    def gradient_growth(self) -> float:
        """First sum over last sum; not a number where no gradient comes back (a readout of zeros)."""
        return self.grad_variance[0] / self.grad_variance[-1] if self.grad_variance[-1] else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "recipe": self.recipe,
            "forward_growth": self.forward_growth,
            "gradient_growth": self.gradient_growth,
            "token_correlation": self.token_correlation[-1],
            "sensitivity": self.sensitivity,
            "profile": {
                "variance": self.variance,
                "token_correlation": self.token_correlation,
                "grad_variance": self.grad_variance,
            },
        }


def predict_plan(structure: Structure, recipe: str | None, **options: Any) -> PredictedPlan:
    """Predict a model under a recipe (None: as it initializes itself), gradients of its loss or of white noise."""
    structure.require("a predict_plan", "junctions")
    if recipe is None:
        made = init_all(structure, lambda item, role, size: Init("keep"), embedding=None)
        rows = [type(row)(row.name, row.shape, Init("keep")) for row in made.parameters]
        return predict_made(structure, Plan(rows), "as it is")
    return predict_made(structure, RECIPES[recipe](structure, **options), recipe)


def predict_made(structure: Structure, made: Plan, name: str) -> PredictedPlan:
    """The same graph evaluated under the distributions and scales of a plan that is made already."""
    if any(row.place == "input" for row in made.junctions):
        raise UnsupportedError(f"{name} changes attention itself: measure it, no prediction is made for it")
    states = PlannedStates.under(structure, made)
    scales = dict.fromkeys(range(len(structure.sums)), (1.0, 1.0))
    if made.junctions:
        scales = {place: (row.skip, row.branch) for place, row in enumerate(made.junctions)}
    pairs = zip(structure.junctions, structure.sums, strict=True)
    sums = [spot.total for junction, spot in pairs if not junction.parallel]
    nodes = [total.node for total in sums]
    first = min(nodes, key=states.nodes.index)  # what is before the first sum is not shown
    states.backward(structure.traced.differentiate(None, states)[0], until=first, weights=False)
    found = [states.gradients.get(node) for node in nodes]
    return PredictedPlan(
        name,
        [variance(node, states) for node in nodes],
        [correlation(total, states) for total in sums],
        [math.nan if gradient is None else float(gradient.summary()[0]) for gradient in found],
        _sensitivity(structure, states, scales),
    )


def _sensitivity(structure: Structure, states: PlannedStates, scales: dict[int, tuple[float, float]]) -> float:
    total = 0.0
    for place, spot in enumerate(structure.sums):
        skip, branch = scales[place]
        own = variance(spot.skip.node, states)
        total += (branch / skip) ** 2 * variance(spot.branch.node, states) / own if own > 0 and not spot.scaled else 0.0
    return total


def initial_loss(structure: Structure, plan: Plan) -> tuple[float, float] | None:
    """(cross entropy at the start, what it is above ln(classes)), predicted under a plan that is folded or hooked.

    Logits of variance `v` within a token give `ln(classes) + v / 2`. None where the output is no row of logits, for a
    tied readout, where the logit of the token itself stands out, and where a plan scales inside a branch.
    """
    output = structure.traced.signal
    if output is None or output.shape[-1:] in ((), (1,)) or structure.tied_table is not None:
        return None
    if not any(item.role == "readout" for item in structure):
        return None
    if any(row.place == "input" for row in plan.junctions):
        return None
    applied = replace(plan, junctions=[row for row in plan.junctions if not row.folded])
    excess = variance(output.node, PlannedStates.under(structure, applied)) / 2
    return math.log(output.shape[-1]) + excess, excess


def with_initial_loss(made: Plan, structure: Structure) -> Plan:
    """The plan with its predicted loss; a recipe whose logits start too large has them made smaller, and says so."""
    try:
        found = initial_loss(structure, made)
    except SigpropError:
        return made
    if found is None or math.isnan(found[1]):
        return made
    loss, excess = found
    if excess <= LARGEST_EXCESS or made.meta["recipe"] == "own":
        return replace(made, meta={**made.meta, "initial_loss": loss})
    factor = math.sqrt(0.5 / excess)
    told = f"std x{factor:.3g}: the loss would start {excess:.3g} above ln(classes)"
    rows = [
        replace(row, init=times(row.init, factor), why=f"{row.why}; {told}") if row.role == "readout" else row
        for row in made.parameters
    ]
    repaired = replace(made, parameters=rows)
    again = initial_loss(structure, repaired)
    if again is None or again[1] > LARGEST_EXCESS:
        raise UnsupportedError(
            f"{made.meta['recipe']}: the loss would start at {loss:.3g}, {excess:.3g} above ln(classes), and a smaller "
            "readout does not repair that; choose another recipe"
        )
    return replace(repaired, meta={**made.meta, "initial_loss": again[0], "readout_factor": factor})

"""A capture is only read: evaluations leave nothing behind, in any order and in several threads."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError

import pytest
import torch
import torch.nn.functional as F

from sigprop.capture import build, trace
from sigprop.graph.evaluate import Evaluation
from sigprop.models import build as reference
from sigprop.plans.recipes.planned_states import predict_plan
from sigprop.structure import read_structure

IDS = torch.randint(64, (1, 12), generator=torch.Generator().manual_seed(0))


def model():
    return reference("transformer", width=32, depth=4, heads=4, vocabulary=64, norm_placement="pre")


def cross_entropy(output):
    return F.cross_entropy(output.flatten(0, 1), IDS.flatten())


def smooth(output):
    return F.cross_entropy(output.flatten(0, 1), IDS.flatten(), label_smoothing=0.3)


def gradients(found, loss):
    states = Evaluation(found.capture.graph, found.states)
    states.backward(found.differentiate(loss, states)[0])
    return states.energy


def test_a_plan_does_not_change_what_the_model_is():
    """The comparison used to show a recipe's numbers as the model's own."""
    structure = read_structure(model(), IDS)
    before = predict_plan(structure, None)
    predict_plan(structure, "unit")
    after = predict_plan(structure, None)
    assert after == before


def test_evaluations_write_nothing_into_the_graph():
    found = trace(build(model), IDS)
    for loss in ("noise", cross_entropy):
        gradients(found, loss)
    with pytest.raises(FrozenInstanceError):
        found.capture.graph.nodes[0].op = None  # type: ignore[misc]
    laws = {name: weight.distribution for name, weight in found.weights.items()}
    structure = read_structure(model(), IDS)
    drawn = {name: weight.distribution for name, weight in structure.traced.weights.items()}
    predict_plan(structure, "unit")
    assert {name: weight.distribution for name, weight in structure.traced.weights.items()} == drawn
    assert laws == {name: weight.distribution for name, weight in found.weights.items()}


@pytest.mark.parametrize("loss", ["noise", cross_entropy, smooth])
def test_the_order_of_questions_does_not_matter(loss):
    first = gradients(trace(build(model), IDS), loss)
    asked = trace(build(model), IDS)
    for other in (smooth, "noise", cross_entropy):
        gradients(asked, other)
    assert gradients(asked, loss) == first


def test_two_threads_may_evaluate_one_graph():
    found = trace(build(model), IDS)
    losses = ["noise", cross_entropy] * 3
    expected = {loss: gradients(found, loss) for loss in dict.fromkeys(losses)}
    with ThreadPoolExecutor(2) as pool:
        seen = list(pool.map(lambda loss: gradients(found, loss), losses))
    for loss, energy in zip(losses, seen, strict=True):
        assert energy == expected[loss]

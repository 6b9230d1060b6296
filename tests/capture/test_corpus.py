"""Models of the corpus and blueprints: evaluated again under their own distributions they are what was predicted."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from sigprop.blueprints import MLP, Mixer, ResNet, Transformer, ViT, run
from sigprop.blueprints.base import Blueprint
from sigprop.capture import build, trace
from sigprop.errors import Fault, SigpropError
from sigprop.graph import Evaluation, Start, evaluate
from studies.corpus.case import Case

SETS, SAMPLE = ("constructs", "ninth", "tenth"), 36
"""Files of the corpus; one construct in so many is run by default, whole networks take up to a minute each."""


ALWAYS = ("construct/spectral norm", "construct/branch of the average", "ninth/sinks")
"""One writes into its own tensors while it runs, as a replay must not; one averages the batch with what follows it; one
is a whole network."""


def cases_of(name: str) -> list[Case]:
    return list(importlib.import_module(f"studies.corpus.{name}").cases())


def chosen() -> list[Any]:
    return [
        pytest.param(case, id=case.name, marks=[] if _is_drawn(case.name) else pytest.mark.slow)
        for name in SETS
        for case in cases_of(name)
    ]


def _is_drawn(name: str) -> bool:
    return name in ALWAYS or (name.startswith("construct/") and zlib.crc32(name.encode()) % SAMPLE == 0)


def agree(one: Evaluation, other: Evaluation, start: Start) -> None:
    """Signals, gradients and evidence of every node, energy and evidence of every parameter, to 1e-12."""
    for node in one.nodes:
        mine, theirs = one.signal(node), other.signal(node)
        close(mine.kernel.values, theirs.kernel.values)
        close(mine.mean, theirs.mean)
        assert mine.evidence == theirs.evidence
    one.backward(start)
    other.backward(start)
    assert other.energy == pytest.approx(one.energy, rel=1e-12, nan_ok=True)
    assert other.evidence == one.evidence
    assert set(other.gradients) == set(one.gradients)
    for node, gradient in one.gradients.items():
        close(other.gradient(node).kernel.values, gradient.kernel.values)


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    scale = float(one.abs().max()) if one.numel() else 0.0
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12 * scale, equal_nan=True)


def evaluated_again(case: Case) -> None:
    torch.manual_seed(7)
    batch = case.batch()
    found = trace(case.make() if case.given_as_module else build(case.make), batch)
    start, _ = found.differentiate(case.loss or "noise")
    weights = found.weights.values()
    own = {item: replace(item.distribution, quantiles=item.distribution.quantiles.clone()) for item in weights}
    agree(found.states, evaluate(found.capture.graph, own), start)


@pytest.mark.parametrize("case", chosen())
def test_a_model_evaluated_under_its_own_distributions_is_its_prediction(case: Case):
    """A named refusal is an answer; a fault of the engine is not."""
    try:
        evaluated_again(case)
    except Fault:
        raise
    except SigpropError as refusal:
        pytest.skip(f"refused: {str(refusal).splitlines()[0][:100]}")


BLUEPRINTS: dict[str, Callable[[], Blueprint]] = {
    "mlp": lambda: MLP(depth=6, activation="gelu", sigma_b=0.1),
    "mlp, residual, deep": lambda: MLP(depth=20, mu=1.0, norm_placement="preactivation"),
    "mlp, batch norm": lambda: MLP(depth=4, norm_placement="batch"),
    "transformer": lambda: Transformer(depth=3),
    "decoder": lambda: Transformer(depth=2, kind="decoder", tokens=24),
    "encoder and decoder": lambda: Transformer(depth=2, kind="encoder_decoder", tokens=16),
    "vit": lambda: ViT(depth=3),
    "resnet": ResNet,
    "mixer": lambda: Mixer(depth=2),
}


@pytest.mark.parametrize("name", BLUEPRINTS)
def test_a_blueprint_evaluated_again_is_its_prediction(name: str):
    blueprint = BLUEPRINTS[name]()
    tape, output = run(blueprint)
    agree(tape.states, evaluate(tape.graph), Start([(output, blueprint.top_gradient(tape, output))]))

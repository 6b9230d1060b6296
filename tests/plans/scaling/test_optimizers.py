"""Multipliers of every optimizer against the exact solver, and Muon's against real orthogonal updates."""

import math

import pytest
import torch

from sigprop.errors import InputError, UnknownNameError
from sigprop.plans import Plan
from sigprop.plans.exponents import Parametrization, exponents, solve
from sigprop.plans.multipliers import multipliers
from sigprop.plans.own_scale import Lion
from sigprop.plans.rows import ParameterPlan
from sigprop.plans.scaling.dimensions import Dimensions
from sigprop.plans.scaling.training import make_optimizers
from sigprop.plans.scaling.width_rules import width_rule

M = 4.0


def dims(role, rows=(64, 16), columns=(64, 16)):
    m_in = M if role in ("hidden", "readout") else 1.0
    m_out = M if role in ("hidden", "embedding") else 1.0
    return Dimensions(
        "w", (rows[0], columns[0]), (rows[1], columns[1]), role, m_in, m_out, 1.0, rows, columns, ("w",), "w"
    )


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "sign", "lion", "adafactor"])
@pytest.mark.parametrize(("name", "outer", "alignment"), [("mup", 1, "readout"), ("sp", "1/2", "full")])
def test_multipliers_follow_the_exact_exponents(optimizer, name, outer, alignment):
    rule = width_rule(name)
    solution = solve(Parametrization(exponents(0, 0, 0), exponents(0, "1/2", outer)), optimizer, alignment)
    for role in ("embedding", "hidden", "readout"):
        found = multipliers(rule.factors(dims(role)), optimizer)
        assert math.log(found.lr, M) == pytest.approx(-float(getattr(solution.c, role))), role
        if optimizer != "adam":
            assert found.lr * found.weight_decay == pytest.approx(1.0)
        if optimizer in ("adam", "adamw"):
            assert math.log(found.eps, M) == pytest.approx(-float(getattr(solution.epsilon, role)))


@pytest.mark.parametrize(("scale", "lr"), [("none", 1.0), ("shape", 1.0), ("rms", M**-0.5), ("unit", 1.0)])
def test_muon_hidden_rate(scale, lr):
    found = multipliers(width_rule("mup").factors(dims("hidden")), f"muon:{scale}", dims("hidden").matrix)
    assert found.lr == pytest.approx(lr)


@pytest.mark.parametrize("scale", ["none", "shape", "rms", "unit"])
def test_muon_rate_keeps_the_response_when_only_the_fan_in_ratio_differs(scale):
    """RMS(lr * scale * O h) / RMS(h) of a real orthogonal factor, at two shapes of one hidden layer."""
    sizes = []
    for rows, columns in ((16, 8), (64, 64)):
        generator = torch.Generator().manual_seed(0)
        gradient = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        left, _, right = torch.linalg.svd(gradient, full_matrices=False)
        h = right[0]
        factor = {"none": 1.0, "shape": max(1, rows / columns) ** 0.5, "rms": max(rows, columns) ** 0.5}
        factor["unit"] = (rows / columns) ** 0.5
        out = factor[scale] * (left @ right) @ h
        sizes.append((out.square().mean() / h.square().mean()).sqrt().item())
    item = Dimensions("w", (64, 64), (16, 8), "hidden", 8.0, 4.0, 1.0, (64, 16), (64, 8), ("w",), "w")
    found = multipliers(width_rule("mup").factors(item), f"muon:{scale}", item.matrix)
    assert found.lr * sizes[1] == pytest.approx(sizes[0])


def test_lion_is_its_formula_and_sign_descent_its_limit():
    generator = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(7, generator=generator), torch.randn(3, 7, generator=generator)
    for betas in ((0.9, 0.99), (0.0, 0.0)):
        weight = torch.nn.Parameter(start.clone())
        optimizer = Lion([weight], lr=0.1, betas=betas, weight_decay=0.5)
        expected, momentum = start.clone(), torch.zeros(7)
        for gradient in gradients:
            weight.grad = gradient.clone()
            optimizer.step()
            expected = expected * (1 - 0.05) - 0.1 * torch.sign(betas[0] * momentum + (1 - betas[0]) * gradient)
            momentum = betas[1] * momentum + (1 - betas[1]) * gradient
        torch.testing.assert_close(weight.detach(), expected)
    assert optimizer.step(lambda: 3.0) == 3.0


@pytest.mark.parametrize("scale", ["none", "shape", "rms", "unit"])
def test_every_scale_of_muon_trains_with_its_own_factor(scale):
    """The first update of a tall matrix is lr times the scale times an orthogonal factor (torch's rms: 0.2 of it)."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(8, 32, bias=False))
    rows = [ParameterPlan("0.weight", (8, 4), role="embedding"), ParameterPlan("1.weight", (32, 8), role="hidden")]
    before = model[1].weight.detach().clone()
    optimizers = make_optimizers(f"muon:{scale}", model, Plan(rows), lr=0.1)
    model(torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).float()).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    sizes = torch.linalg.svdvals(before - model[1].weight.detach())
    factor = {"none": 1.0, "shape": 2.0, "rms": 0.2 * 32**0.5, "unit": 2.0}[scale]
    assert sizes[0].item() == pytest.approx(0.1 * factor, rel=0.3)


def test_muon_asks_for_roles():
    with pytest.raises(InputError, match="hidden matrices only"):
        make_optimizers("muon", torch.nn.Linear(2, 2), None)


def test_unknown_optimizer():
    with pytest.raises(UnknownNameError, match="adamw"):
        multipliers(width_rule("mup").factors(dims("hidden")), "adamx")

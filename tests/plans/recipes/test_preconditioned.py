"""SOAP and Shampoo, as short as they can be written, on a weight that carries a factor: the same trajectory."""

import pytest
import torch

import sigprop as sp
from sigprop.errors import UnsupportedError
from sigprop.models import build
from sigprop.plans.multipliers import Sizes, multipliers

FACTOR, LR, DECAY, EPS, STEPS = 0.07, 0.03, 0.2, 1e-3, 12


def inverse_root(matrix, power):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp(min=1e-300) ** -power) @ vectors.T


def adam(state, gradient, eps, b1=0.9, b2=0.95):
    state["t"] = state.get("t", 0) + 1
    state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * gradient
    state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * gradient**2
    return state["m"] / (1 - b1 ** state["t"]) / ((state["v"] / (1 - b2 ** state["t"])).sqrt() + eps)


def soap(state, gradient, eps):
    """Vyas et al. 2024: Adam in the eigenbasis of Shampoo's factors."""
    for key, square in (("L", gradient @ gradient.T), ("R", gradient.T @ gradient)):
        state[key] = 0.9 * state.get(key, 0.0) + 0.1 * square
    if "left" not in state:
        state["left"], state["right"] = (torch.linalg.eigh(state[key])[1] for key in ("L", "R"))
    return state["left"] @ adam(state, state["left"].T @ gradient @ state["right"], eps) @ state["right"].T


def shampoo(state, gradient, eps):
    """Gupta et al. 2018, each tensor's update with the norm of Adam's (Anil et al. 2020)."""
    start = 1e-9 * torch.linalg.matrix_norm(gradient, 2) ** 2
    for key, square in (("L", gradient @ gradient.T), ("R", gradient.T @ gradient)):
        state[key] = state.get(key, start * torch.eye(len(square), dtype=square.dtype)) + square
    update = inverse_root(state["L"], 0.25) @ gradient @ inverse_root(state["R"], 0.25)
    return update * adam(state.setdefault("adam", {}), gradient, 0.0).norm() / update.norm()


@pytest.mark.parametrize("optimizer", [soap, shampoo])
def test_a_weight_with_a_factor_follows_the_one_without(optimizer):
    generator = torch.Generator().manual_seed(0)
    start, target, inputs = (torch.randn(size, generator=generator).double() for size in ((5, 4), (20, 5), (20, 4)))
    lr, decay, eps = multipliers(Sizes().gauged(FACTOR), optimizer.__name__)
    ends = []
    for factor, rates in ((FACTOR, (1.0, 1.0, 1.0)), (1.0, (lr, decay, eps))):
        weight, state = (start if factor != 1.0 else FACTOR * start).clone().requires_grad_(), {}
        for _ in range(STEPS):
            (gradient,) = torch.autograd.grad(((inputs @ (factor * weight).T - target) ** 2).mean(), weight)
            update = optimizer(state, gradient, EPS * rates[2])
            with torch.no_grad():
                weight.mul_(1 - LR * rates[0] * DECAY * rates[1]).sub_(LR * rates[0] * update)
        ends.append(factor * weight.detach())
    assert (ends[0] - FACTOR * start).abs().max() > 1e-3
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["soap", "shampoo"])
def test_plans_have_groups_for_them_and_say_that_torch_has_none(name):
    model = build("transformer", depth=2, width=16, heads=2, vocabulary=32, context=8)
    plan = sp.plan(model, "unit", width="mup", optimizer=name, batch=torch.zeros(1, 8, dtype=torch.long))
    groups = plan.param_groups(model, lr=0.01, weight_decay=0.1)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    with pytest.raises(UnsupportedError, match=f"torch has no {name}: give plan.param_groups"):
        plan.optimizers(model, lr=0.01)

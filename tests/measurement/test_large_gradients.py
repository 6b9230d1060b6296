"""Large gradients are summed and let go as they come; what is measured is the same."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import sigprop as sp
from sigprop.measurement import parameters

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class Twice(nn.Module):
    """One layer in two checkpointed segments: reentrant ones send its gradient in two parts."""

    def __init__(self, reentrant):
        super().__init__()
        self.first, self.shared, self.reentrant = nn.Linear(6, 6), nn.Linear(6, 6), reentrant

    def forward(self, x):
        x = self.first(x)
        for _ in range(2):
            x = checkpoint(self.shared, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)), Twice(True), Twice(False)]
)
def test_the_numbers_are_the_same(model, monkeypatch):
    kept = sp.measure(model, X)
    monkeypatch.setattr(parameters, "LARGE", 1)
    for before, row in zip(kept.parameters, sp.measure(model, X).parameters, strict=True):
        assert row.grad_second_moment == pytest.approx(before.grad_second_moment, rel=1e-6)
    for parameter in model.parameters():
        assert parameter.grad is None
        assert not parameter._post_accumulate_grad_hooks


def test_a_large_gradient_is_gone_before_the_next_comes(monkeypatch):
    model = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(4)))
    monkeypatch.setattr(parameters, "LARGE", 1)
    seen, alive, real = [], [], parameters.square_of

    def watched(tensor):
        if not isinstance(tensor, nn.Parameter):
            alive.append(sum(item() is not None for item in seen))
            seen.append(weakref.ref(tensor))
        return real(tensor)

    monkeypatch.setattr(parameters, "square_of", watched)
    sp.measure(model, X)
    assert alive == [0, 0, 0, 0]


@pytest.mark.parametrize("call", [sp.measure, sp.check, sp.predict, lambda model, x: sp.plan(model, "xavier", batch=x)])
def test_hooks_of_the_user_do_not_run_and_are_still_there(call, monkeypatch):
    """An optimizer that steps as gradients come would take steps that nobody asked for."""
    monkeypatch.setattr(parameters, "LARGE", 1)
    model, seen = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)), []
    handles = [item.register_post_accumulate_grad_hook(seen.append) for item in model.parameters()]
    call(model, X)
    assert not seen
    model(X).sum().backward()
    assert {id(item) for item in seen} == {id(item) for item in model.parameters()}
    for handle in handles:
        handle.remove()
    model(X).sum().backward()
    assert len(seen) == len(handles)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 6, padding_idx=3)

    def forward(self, ids):
        return self.table(ids) @ self.table.weight.mT


@pytest.mark.parametrize("make", [Tied, lambda: nn.Embedding(40, 6)])
def test_an_embedding_sends_the_rows_that_were_looked_up(make, monkeypatch):
    model, ids = make(), torch.arange(24).reshape(4, 6) % 7
    kept = sp.measure(model, ids).parameters
    monkeypatch.setattr(parameters, "LARGE", 1)
    monkeypatch.setattr(parameters, "RETURNED", 1)
    for before, row in zip(kept, sp.measure(model, ids).parameters, strict=True):
        assert row.grad_second_moment == pytest.approx(before.grad_second_moment, rel=1e-6)
    assert not any(getattr(module, "sparse", False) for module in model.modules())


def test_an_embedding_whose_gradient_others_see_is_left_alone(monkeypatch):
    model, seen = nn.Embedding(40, 6), []
    model.weight.register_hook(lambda gradient: seen.append(gradient.layout))
    monkeypatch.setattr(parameters, "LARGE", 1)
    sp.measure(model, torch.arange(6)[None])
    assert seen == [torch.strided]

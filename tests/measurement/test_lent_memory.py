"""A large weight's memory is lent, not copied: it stays where it is, and whoever shares it still does."""

import pytest
import torch
from torch import nn

from sigprop.compat import is_sole_holder
from sigprop.measurement import guard, measure
from sigprop.measurement.guard import lendable_clone

KEPT: list[torch.Tensor] = []


def read(weight):
    return weight


def write_in_place(weight):
    weight.data.mul_(0.5)
    return weight


def write_by_numpy(weight):
    weight.detach().numpy()[:] *= 0.5
    return weight


def rebind(weight):
    weight.data = weight.data * 0.5
    return weight


def keep_a_view(weight):
    KEPT.append(weight.detach().t())
    return weight


def keep_a_view_and_write(weight):
    KEPT.append(weight.detach())
    weight.data.mul_(0.5)
    return weight


def keep_the_storage(weight):
    KEPT.append(weight.untyped_storage())
    return weight


class Layer(nn.Module):
    """A linear map whose weight something is done to first."""

    def __init__(self, act):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(160, 160, generator=torch.Generator().manual_seed(0)))
        self.act = act

    def forward(self, x):
        return x @ self.act(self.weight)


BATCH = torch.randn(8, 160, generator=torch.Generator().manual_seed(1))
ACTS = [read, write_in_place, write_by_numpy, rebind, keep_a_view, keep_a_view_and_write, keep_the_storage]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_weight_stays_where_it_is(act):
    model = Layer(act)
    before, place = model.weight.detach().clone(), model.weight.data_ptr()
    expected = (BATCH @ (before if act in (read, keep_a_view, keep_the_storage) else 0.5 * before)).var(correction=0)
    profile = measure(model, BATCH)
    assert profile.sites[-1].variance == pytest.approx(float(expected), rel=1e-5)
    assert torch.equal(model.weight, before)
    model.weight.data.add_(1.0)
    assert model.weight.data_ptr() == place, "a write after the measurement moved the weight"
    assert torch.equal(model.weight, before + 1.0)
    for tensor in KEPT:
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, 0.5 * before if act is keep_a_view_and_write else before.t())
    KEPT.clear()


def test_nothing_is_copied_where_nothing_is_written(monkeypatch):
    model = Layer(read)
    places, alone = [], []
    monkeypatch.setattr(guard, "is_sole_holder", lambda x: alone.append(is_sole_holder(x)) or alone[-1])
    model.act = lambda weight: places.append(torch._C._data_address(weight)) or weight
    address = torch._C._data_address(model.weight)
    measure(model, BATCH)
    assert places == [address]
    assert alone[-1], "whoever still holds the clone at the end makes it a copy"


@pytest.mark.parametrize(
    "share",
    [
        lambda weight: weight.detach(),
        lambda weight: weight.detach().numpy(),
        lambda weight: weight.untyped_storage(),
        lambda weight: weight[3:5],
    ],
    ids=["tensor", "numpy", "storage", "view"],
)
def test_memory_that_others_hold_is_not_lent(share):
    weight = nn.Parameter(torch.randn(160, 160))
    assert lendable_clone(weight) is not None
    held = share(weight)
    assert lendable_clone(weight) is None
    del held
    assert lendable_clone(weight) is not None


@pytest.mark.parametrize("way", ["tensor", "numpy"])
def test_what_a_model_writes_by_another_name_is_seen_and_put_back(way):
    model = Layer(read)
    alias = model.weight.detach() if way == "tensor" else model.weight.detach().numpy()

    def act(weight):
        alias[:] *= 0.5
        return weight

    model.act = act
    before = model.weight.detach().clone()
    profile = measure(model, BATCH)
    assert profile.sites[-1].variance == pytest.approx(float((BATCH @ (0.5 * before)).var(correction=0)), rel=1e-5)
    assert torch.equal(model.weight, before)
    model.weight.data.add_(1.0)
    assert torch.equal(torch.as_tensor(alias), before + 1.0), "both names still mean one memory"


@pytest.mark.parametrize("kind", ["buffer", "frozen weight"])
def test_what_a_model_writes_through_an_array_of_its_own_is_seen_and_put_back(kind):
    model = Layer(read)
    weight = model.weight.detach()
    del model.weight
    if kind == "buffer":
        model.register_buffer("weight", weight)
    else:
        model.weight = nn.Parameter(weight, requires_grad=False)
    del weight
    array = model.weight.numpy()

    def act(weight):
        array[:] *= 0.5
        return weight

    model.act = act
    before = model.weight.clone()
    profile = measure(model, BATCH.clone().requires_grad_())
    assert profile.sites[-1].variance == pytest.approx(float((BATCH @ (0.5 * before)).var(correction=0)), rel=1e-5)
    assert torch.equal(model.weight, before)

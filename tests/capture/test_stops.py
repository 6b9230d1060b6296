"""What is not differentiated, or not as it is computed, against autograd on fresh networks."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from sigprop.capture import build, predict
from sigprop.errors import InputError, UnsupportedError
from sigprop.measurement import measure

X = torch.randn(12, 24, generator=torch.Generator().manual_seed(0))
Y = torch.randint(10, (12,), generator=torch.Generator().manual_seed(1))


def loss(out: Tensor) -> Tensor:
    return F.cross_entropy(out, Y)


class Reversed(torch.autograd.Function):
    """Three times the gradient, reversed."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return -3.0 * gradient


class Signs(torch.autograd.Function):
    """Signs forward, a clipped identity backward."""

    @staticmethod
    def forward(ctx, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.sign()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < ctx.bound), None


class Net(nn.Module):
    """Three linear maps of width 96 with something between them."""

    def __init__(self, between=None) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(24, 96), nn.Linear(96, 96), nn.Linear(96, 10)
        self.branch = nn.Linear(96, 96)
        self.between = between or (lambda net, h: h)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.between(self, self.first(x))).relu())


def detached_branch(net: Net, h: Tensor) -> Tensor:
    return h + net.branch(h.detach().relu())


def quiet_branch(net: Net, h: Tensor) -> Tensor:
    with torch.no_grad():
        gate = net.branch(h).sigmoid()
    return h * gate


@torch.no_grad()
def _features(net: Net, h: Tensor) -> Tensor:
    return net.branch(h.relu())


def quiet_part(net: Net, h: Tensor) -> Tensor:
    return h.relu() + _features(net, h)


def straight_through(net: Net, h: Tensor) -> Tensor:
    return h + ((4 * h).round() / 4 - h).detach()


def another_straight_through(net: Net, h: Tensor) -> Tensor:
    """The gradient at `h` was none: all of it was taken as lost with what is detached."""
    return h + (net.branch(h.detach().relu()) - h).detach()


def only_detached(net: Net, h: Tensor) -> Tensor:
    return h.detach().relu()


def detached_statistic(net: Net, h: Tensor) -> Tensor:
    return h / h.square().mean(-1, keepdim=True).sqrt().detach()


def quieter(net: Net, h: Tensor) -> Tensor:
    h = h.relu()
    h.register_hook(lambda gradient: 0.1 * gradient)
    return h


def data(net: Net, h: Tensor) -> Tensor:
    return h + h.data.relu()


BETWEEN = {
    "nothing": None,
    "detached branch": detached_branch,
    "gate without gradient": quiet_branch,
    "branch without gradient": quiet_part,
    "straight-through": straight_through,
    "another straight-through": another_straight_through,
    "data": data,
    "detached": only_detached,
    "detached statistic": detached_statistic,
    "hook": quieter,
    "custom function": lambda net, h: Reversed.apply(h),
    "custom function with numbers": lambda net, h: Signs.apply(h, 0.5),
    "checkpoint": lambda net, h: checkpoint(lambda x: net.branch(x).relu(), h, use_reentrant=True),
    "checkpoint, not reentrant": lambda net, h: checkpoint(lambda x: net.branch(x).relu(), h, use_reentrant=False),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_gradients_are_those_of_autograd(name):
    make = lambda: Net(BETWEEN[name])  # noqa: E731
    predicted, measured = predict(build(make), X, loss=loss), measure(None, X, loss, build=make, seeds=40)
    found = 0
    for row in measured.parameters:
        if row.name.endswith("bias"):
            continue
        made = predicted.parameter(row.name).grad_second_moment
        if math.isnan(row.grad_second_moment):
            assert math.isnan(made), row.name
            continue
        found += 1
        assert abs(made - row.grad_second_moment) <= 5 * row.errors["grad_second_moment"], (row.name, made, row)
    assert found >= 2


def test_gradients_at_sites_stop_where_they_stop():
    rows = predict(build(lambda: Net(only_detached)), X, loss=loss)
    assert math.isnan(rows["first"].grad_variance)
    assert math.isnan(rows.parameter("first.weight").grad_second_moment)
    assert rows["second"].grad_variance > 0.0


def test_the_site_behind_a_hook_has_the_gradient_that_the_hook_returns():
    class Hooked(Net):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            h = self.act(self.first(x))
            h.register_hook(lambda gradient: 0.1 * gradient)
            return self.third(self.second(h).relu())

    predicted, measured = predict(build(Hooked), X, loss=loss), measure(None, X, loss, build=Hooked, seeds=30)
    plain = predict(build(lambda: Net(lambda net, h: h.relu())), X, loss=loss)
    assert predicted["first"].grad_variance == pytest.approx(0.01 * plain["first"].grad_variance, rel=1e-9)
    error = measured["first"].errors["grad_variance"]
    assert abs(predicted["first"].grad_variance - measured["first"].grad_variance) < 5 * error


def test_frozen_parameters_have_no_gradient_and_pass_it_on():
    """Frozen weights are part of the model: their numbers are kept, and the gradient goes through them."""
    fixed = torch.randn(96, 96, generator=torch.Generator().manual_seed(3)) / 10

    def make() -> nn.Module:
        model = Net(detached_branch)
        model.second.requires_grad_(False)
        model.second.weight.copy_(fixed)
        return model

    predicted, measured = predict(make(), X, loss=loss), measure(None, X, loss, build=make, seeds=30)
    assert all(math.isnan(row.grad_second_moment) for row in predicted.parameters if row.name.startswith("second"))
    assert math.isnan(measured.parameter("second.weight").grad_second_moment)
    row = measured.parameter("first.weight")
    made = predicted.parameter("first.weight").grad_second_moment
    assert abs(made - row.grad_second_moment) <= 5 * row.errors["grad_second_moment"]


def test_nothing_to_differentiate_is_refused():
    class Quiet(nn.Linear):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    with pytest.raises(InputError, match="does not depend on its parameters"):
        predict(build(lambda: Quiet(24, 10)), X, loss="noise")
    with pytest.raises(InputError, match="does not depend on its parameters"):
        predict(build(lambda: Quiet(24, 10)), X, loss=loss)


def test_a_hook_that_does_more_is_refused():
    def clipped(net: Net, h: Tensor) -> Tensor:
        h = h.relu()
        h.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
        return h

    with pytest.raises(UnsupportedError, match="does more to its gradient than multiply it"):
        predict(build(lambda: Net(clipped)), X, loss=loss)


def test_custom_functions_are_torchs_own_afterwards():
    before = torch.autograd.Function.__dict__["apply"]
    predict(build(lambda: Net(BETWEEN["custom function"])), X, loss=loss)
    assert torch.autograd.Function.__dict__["apply"] is before

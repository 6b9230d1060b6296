"""Lookup by name and by callable, and what happens with functions that are not activations."""

import pytest
import torch
from torch.nn import functional

from sigprop.errors import InputError, UnknownNameError
from sigprop.theory.activations import get, names, register
from sigprop.theory.activations.base import ACTIVATIONS, ActivationFunction


def test_torch_functions_find_their_closed_form():
    assert get(functional.gelu).name == "gelu"
    assert get(torch.tanh).name == "tanh"
    assert get(functional.leaky_relu, slope=0.3).derivative_second_moment(1.0).item() == pytest.approx(1.09 / 2)


def test_user_function_agrees_with_the_registered_one():
    for name, kinks in (("gelu", ()), ("relu", (0.0,)), ("erf", ())):
        known = get(name)
        user = get(lambda x, known=known: known(x) * 1.0, kinks=kinks, name="mine")
        assert user.name == "mine"
        assert user.status == "quadrature"
        for method in ("second_moment", "derivative_second_moment", "mean", "derivative_mean"):
            for mean in (0.0, 0.4):
                got, want = getattr(user, method)(2.0, mean), getattr(known, method)(2.0, mean)
                torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-14)
        for rho in (-0.6, 0.6):
            args = (2.0, 1.0, rho * 2**0.5, 0.2, -0.3)
            torch.testing.assert_close(user.cross_moment(*args), known.cross_moment(*args), rtol=1e-8, atol=1e-10)


def test_second_derivatives_that_autograd_does_not_have():
    """Of torch's hardsigmoid as a part of another function (a gate of squeeze and excitation): it was a fault."""
    x = torch.tensor([-4.0, -1.0, 0.5, 2.0, 5.0], dtype=torch.float64)
    function = get(lambda x: x * functional.hardsigmoid(x), kinks=(-3.0, 3.0), name="mine")
    expected = torch.where(x.abs() < 3, 1 / 3, 0.0)
    torch.testing.assert_close(function.second_derivative(x), expected, rtol=1e-8, atol=1e-8, check_dtype=False)


def test_kinks_of_a_user_function_matter():
    function = lambda x: (x - 0.37).clamp(min=0)  # noqa: E731
    shifted = get("relu").second_moment(1.0, -0.37)
    torch.testing.assert_close(get(function, kinks=(0.37,)).second_moment(1.0), shifted, rtol=1e-12, atol=0)
    assert abs(get(function).second_moment(1.0) / shifted - 1) > 1e-9


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: x.sum(),
        lambda x: torch.cumsum(x, -1),
        lambda x: x - x.mean(),
        lambda x: functional.dropout(x, 0.5),
        lambda x: torch.relu(x)[:3],
        lambda x: x.detach().numpy() ** 2,
        lambda x: torch.from_numpy(x.detach().numpy() ** 2),
        lambda x: torch.cat([x, x]),
    ],
)
def test_functions_that_are_not_elementwise(function):
    with pytest.raises(InputError, match="not an elementwise torch function"):
        get(function)


def test_function_not_defined_everywhere():
    with pytest.raises(InputError, match=r"not finite at x = -3.1"):
        get(torch.log)


def test_divergent_second_moment():
    bump = get(lambda x: torch.exp(x**2 / 5))
    bump.second_moment(0.5)
    with pytest.raises(InputError, match="at variance 2 diverges"):
        bump.second_moment(torch.tensor([0.5, 2.0]))


def test_unknown_names_and_parameters():
    with pytest.raises(UnknownNameError, match="gelu"):
        get("gellu")
    with pytest.raises(InputError, match="does not take"):
        get("relu", slope=0.1)
    with pytest.raises(InputError, match="needs a name or an elementwise callable"):
        get(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="slope"):
        get("leaky_relu", slope=float("nan"))


def test_registering():
    class Cubic(ActivationFunction):
        name = "cubic_for_test"

        def __call__(self, x):
            return x**3

    register("cubic_for_test")(Cubic)
    try:
        assert "cubic_for_test" in names()
        assert get("cubic_for_test").second_moment(2.0).item() == pytest.approx(15 * 8, rel=1e-12)
        with pytest.raises(InputError, match="already registered"):
            register("cubic_for_test")(Cubic)
    finally:
        ACTIVATIONS.remove("cubic_for_test")

"""The Hermite series of a cross moment."""

import torch

from sigprop.theory.activations import quadrature


def test_terms_that_vanish_are_left_out_without_a_trace():
    """The even part of a function has a gap at every second order, an odd one starts at order one."""
    variance, covariance = torch.tensor(1.3, dtype=torch.float64), torch.tensor([-1.3, -0.4, 0.0, 0.9, 1.3]).double()
    zero = torch.zeros((), dtype=torch.float64)
    for f, exact in (
        (lambda x: x**2, lambda c: variance**2 + 2 * c**2),
        (lambda x: x**3, lambda c: 9 * variance**2 * c + 6 * c**3),
        (lambda x: x**4 + x, lambda c: 9 * variance**4 + 72 * variance**2 * c**2 + 24 * c**4 + c),
    ):
        found = quadrature.cross_moment(f, None, variance, variance, covariance, zero, zero, ())
        torch.testing.assert_close(found, exact(covariance), rtol=1e-12, atol=1e-12)

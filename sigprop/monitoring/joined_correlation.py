"""Token correlation as a function of the mean it is taken about, so that ranks can be joined.

The cosine of two tokens is taken about the mean of the whole tensor, which one rank does not know while it holds its
part. About `c + e` instead of `c` the inverse length of a token is the generating function of Legendre's polynomials,

    |x_t - c - e|^-1 = |x_t - c|^-1 sum_n P_n(z_t) (e sqrt(d) / |x_t - c|)^n,

with `z_t` the cosine between `x_t - c` and the vector of ones. So the sum of unit vectors is a power series in `e`
whose coefficients are weighted sums of the tokens, and the series of its squared length is all that has to be sent.
`e` is the distance of two means in units of a token's spread, a few hundredths; terms above `ORDER` are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

ORDER = 5


def correlation_about(x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Coefficients `about_0` ... in `e` of the correlation summed over sequences, and how many these are."""
    x = x.double()
    valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
    x = x.masked_fill(~valid[:, :, None], 0.0)
    channels = x.shape[2]
    centre = x.sum() / (valid.sum() * channels)
    sums, squares = x.sum(2), x.square().sum(2)
    distance = torch.where(valid, squares - 2.0 * centre * sums + channels * centre.square(), 0.0)
    directed = distance > 1e-12 * distance.amax()
    weights = _inverse_length(torch.where(directed, distance, 1.0), sums - channels * centre, channels)
    weights = torch.where(directed[:, None], weights, 0.0)
    totals = weights.sum(2, keepdim=True)
    shifted = torch.cat((torch.zeros_like(totals[:, :1]), totals[:, :-1]), dim=1)
    series = torch.bmm(weights, x) - centre * totals - shifted
    products = torch.bmm(series, series.mT)
    number = directed.sum(1)
    pairs = (number * (number - 1)).double()
    share = torch.where(pairs > 0, 1.0 / pairs.clamp_min(1.0), 0.0)
    products[:, 0, 0] -= number
    kept = (products * share[:, None, None]).sum(0).flip(1)
    found = {f"about_{power}": kept.diagonal(ORDER - power).sum() for power in range(ORDER + 1)}
    return {**found, "centre": centre, "sequences": (pairs > 0).sum()}


def _inverse_length(distance: Tensor, along: Tensor, channels: int) -> Tensor:
    """(sequences, ORDER + 1, tokens): coefficients of the powers of `e`, by the recursion of Legendre's polynomials."""
    ones = along / (distance * channels).sqrt()
    unit = (channels / distance).sqrt()
    terms = [torch.ones_like(ones), ones]
    for n in range(1, ORDER):
        terms.append(((2 * n + 1) * ones * terms[n] - n * terms[n - 1]) / (n + 1))
    return torch.stack([term * unit**n for n, term in enumerate(terms)], dim=1) * distance.rsqrt()[:, None]

"""Top boundaries: where the gradient starts."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.ops.softmax import overlap
from sigprop.theory.states import AlongSignal, Gradient, Signal, Status


def cross_entropy(
    logits: Signal,
    *,
    coincidence: Tensor | float | None = None,
    targets: Tensor | None = None,
) -> Gradient:
    """Gradient of the mean cross-entropy at the logits.

    `G[t,t'] = (1/(V N^2)) (E sum_v p_tv p_t'v - 2/V + P(y_t = y_t'))` with `p` the softmax of logits whose kernel is
    given, `V` classes and `N` tokens. Targets enter through their coincidence: given ids (dense), or the probability
    that two different tokens have the same target (exchangeable; 1/V when not given).

    Along the signal lies `s = E dp/dx = (1 - E sum_v p_tv^2) / (V N)`; it is left out of exchangeable tokens, where it
    may be `N s^2 K / G` of a gain's squared gradient, which is stated.
    """
    kernel, classes, tokens = logits.kernel, logits.width, logits.kernel.tokens
    if targets is not None:
        same_target = (targets[:, None] == targets[None, :]).double()
        if isinstance(kernel, Exchangeable):
            same_target = Dense(same_target).exchangeable().values
    else:
        between = 1.0 / classes if coincidence is None else coincidence
        same_target = _pairs(kernel, between)
    shared = shared_probability(kernel, classes)
    values = (shared.values - 2.0 / classes + same_target) / (classes * tokens**2)
    made = kernel.like(values + torch.zeros_like(kernel.values))
    out = Gradient(made, evidence=logits.evidence)
    slope = (1.0 - shared.diagonal) / (classes * tokens)
    if isinstance(kernel, Dense):
        out = replace(out, along_signal=AlongSignal(slope, torch.zeros_like(kernel.values)))
    else:
        left_out = tokens * slope**2 * kernel.diagonal / made.diagonal
        out = replace(out, evidence=out.evidence.doubted(float(left_out.max())))
    return out.note(Status.FITTED, "softmax overlap of the logits")


def white_noise(like: Signal, variance: Tensor | float = 1.0) -> Gradient:
    """Independent unit gradients at every entry: the probe of averaged partial Jacobians (apjn)."""
    kernel = like.kernel
    zero = kernel.like(torch.zeros_like(kernel.values))
    return Gradient(zero.add_diagonal(torch.ones_like(kernel.diagonal) * variance))


def _pairs(kernel: Kernel, between: Tensor | float) -> Tensor:
    base = kernel.like(torch.zeros_like(kernel.values) + kernel.spread(between))
    return base.add_diagonal(1.0 - base.diagonal).values


def shared_probability(kernel: Kernel, classes: int) -> Kernel:
    """`E sum_v p_tv p_t'v`: `e^cov / V` for two tokens, saturating for one."""
    count = torch.full_like(kernel.values, float(classes))
    level = kernel.diagonal.clamp_min(0.0)
    smaller = torch.minimum(kernel.left(level), kernel.right(level)) + torch.zeros_like(kernel.values)
    cosine = kernel.normalized().values.clamp(-1.0, 1.0)
    return kernel.like((classes * overlap(count, smaller)) ** cosine / classes)

"""Losses: where the gradient starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sigprop.theory import Dense, Gradient, Status
from sigprop.theory.ops.loss import shared_probability
from sigprop.theory.parts import AlongSignal
from sigprop.trace.broadcast import concrete_rows
from sigprop.trace.ensemble import root_of
from sigprop.trace.record import Call, Field, Loss, Weight
from sigprop.trace.replay import drawn_rows
from sigprop.trace.rules import rule
from sigprop.trace.rules.elementwise import replayed
from sigprop.trace.rules.views import viewed
from sigprop.trace.tied import Contact, contact_of, overlaps

if TYPE_CHECKING:
    from sigprop.trace.capture import Capture

LARGE = 2.0
"""Variance of the logits from which on their softmax is drawn."""
DRAWN = 1 << 25
"""Logits that are drawn: with a quarter of them the sum of the gradient's kernel is known to 20 % only (T5)."""
AT_ONCE = 1 << 20
"""Of them at once."""
ROUNDING = 1e-13
"""Square of `p - y` below which a token is certain of its label and has no gradient."""


@rule("cross_entropy")
def cross_entropy(
    trace: Capture,
    call: Call,
    input: Field,
    target: Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """`G[t,t'] = (1/(V N^2)) (E sum_v p_tv p_t'v - 2/V + [y_t = y_t'])` over the positions that count.

    Its slope along the logits is the divergence `sum_v dp_v / dl_v = 1 - E sum_v p_v^2`, divided by `V N`.
    """
    target = trace.value_of(target)
    place = 0 if len(input.shape) == 1 else 1
    if target.is_floating_point() or any(a.is_position for a in input.layout.dims[place]):
        return replayed(trace, call)
    classes = input.shape[place]
    labels = _per_position(input, target, place)
    counted = (labels != ignore_index).double()
    number = counted.sum() if reduction == "mean" else torch.ones(())
    gradient = softmax_gradient(trace, input, labels, counted, classes, float(number.clamp_min(1.0)))
    return Loss([(input, gradient)])


def _per_position(logits: Field, target: Tensor, place: int) -> Tensor:
    """The target of each row of the kernel."""
    shape = list(logits.shape)
    del shape[place]
    rows = (
        logits.layout.index().select(place, 0).flatten() if len(logits.shape) > 1 else torch.zeros(1, dtype=torch.long)
    )
    labels = torch.empty(logits.layout.positions, dtype=torch.long)
    labels[rows] = target.reshape(shape).flatten()
    return labels


def softmax_gradient(
    trace: Capture, logits: Field, labels: Tensor, counted: Tensor, classes: int, number: float
) -> Gradient:
    signal, contact = logits.node.signal, contact_of(trace, logits.node)
    if float(signal.covariance.diagonal.max()) > LARGE:
        generator = torch.Generator().manual_seed(trace.seed())
        shared, target, slope, along = _drawn(signal.covariance.values, labels, classes, contact, generator)
    else:
        shared = shared_probability(signal.covariance, classes).values
        target = torch.full_like(shared, 1.0 / classes)
        along = torch.zeros_like(shared)
        if contact is not None:
            shared, target, own = overlaps(contact, labels, shared, classes)
            along = contact.along(labels, own)
        slope = 1.0 - shared.diagonal()
    same = (labels[:, None] == labels).double()
    values = shared - target - target.T + same
    counted = counted * (values.diagonal() > ROUNDING)
    values = values * counted[:, None] * counted
    gradient = Gradient(
        Dense(values / (classes * number**2)),
        evidence=signal.evidence,
        along_signal=AlongSignal(slope * counted / (classes * number), along * counted / (classes * number)),
    )
    if contact is not None and contact.bent:
        gradient = gradient.note(Status.ASSUMED, "slope of the soft-cap at the own logit of a tied head not followed")
    return gradient.note(Status.FITTED, "softmax overlap of the logits")


def _drawn(
    kernel: Tensor, labels: Tensor, classes: int, contact: Contact | None, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Large logits, where the softmax is held by few classes: drawn `E p p^T`, `E p_t(y_t')`, slope and rest."""
    if contact is not None:
        kernel = kernel - (contact.ids[:, None] == contact.ids) * contact.logit[:, None] * contact.logit / classes
    tokens, seen = torch.arange(len(kernel)), labels.clamp_min(0)
    at_once = max(1, AT_ONCE // (classes * len(kernel)))
    rounds = math.ceil(max(4, DRAWN // (classes * len(kernel))) / at_once)
    shared, target, along = torch.zeros_like(kernel), torch.zeros_like(kernel), torch.zeros_like(kernel)
    roots = root_of(kernel).expand(at_once, -1, -1)
    for _ in range(rounds):
        logits = drawn_rows(roots, classes, generator)
        if contact is not None:
            own = logits[:, tokens, contact.ids] * (contact.spread / contact.others).sqrt() + contact.logit
            logits[:, tokens, contact.ids] = own.to(logits.dtype)
        p = logits.softmax(-1)
        shared += (p @ p.mT).mean(0).double() / rounds
        target += p[..., seen].mean(0).double() / rounds
        along += (logits @ p.mT - logits[..., seen]).mean(0).double() / rounds
    slope = 1.0 - shared.diagonal()
    return shared, target, slope, along - kernel * slope


@rule("nll_loss")
def nll_loss(trace: Capture, call: Call, input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """The negative log-likelihood of a log-softmax is the cross-entropy of its logits."""
    made = input.call if isinstance(input, Field) else None
    seen = input
    while isinstance(seen, Field) and seen.call is not None and seen.call.name != "log_softmax" and seen.inputs:
        seen = seen.inputs[0]
    if made is None or not isinstance(seen, Field) or seen.call is None or seen.call.name != "log_softmax":
        return replayed(trace, call)
    logits = seen.call.args[0]
    if logits.shape != input.shape:
        logits = viewed(logits, logits.layout.reshaped(input.shape), seen.call)
    return cross_entropy(trace, call, logits, target, *args, **kwargs)


@rule("mse_loss")
def mse_loss(
    trace: Capture,
    call: Call,
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    weight: Any = None,
) -> Any:
    """`G = (2/n)^2 (K - m y^T - y m^T + y y^T)` with `n` the number of entries."""
    if not isinstance(input, Field) or isinstance(target, (Field, Weight)):
        return replayed(trace, call)
    signal = input.node.signal
    rows = concrete_rows(target, input.layout)
    average = rows.mean(1)
    cross = signal.mean[:, None] * average
    values = signal.kernel.values - cross - cross.T + rows @ rows.T / rows.shape[1]
    count = input.layout.positions * input.layout.channels if reduction == "mean" else 1
    return Loss([(input, Gradient(Dense(values * (2.0 / count) ** 2), evidence=signal.evidence))])


def white_noise(output: Field) -> Loss:
    """Unit white noise at the output: what a model without a loss is differentiated against."""
    eye = torch.eye(output.layout.positions, dtype=torch.float64)
    return Loss([(output, Gradient(Dense(eye)))])

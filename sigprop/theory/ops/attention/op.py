"""The attention op: hyperparameters, and what the backward pass reuses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from sigprop.errors import require
from sigprop.theory.corrections.finite_width import of_one_input
from sigprop.theory.kernels import Exchangeable
from sigprop.theory.ops.attention import dense, exchangeable
from sigprop.theory.ops.base import Op, joined_evidence
from sigprop.theory.states import Carries, Evidence, Gradient, Signal, Status, ended


@dataclass(frozen=True)
class AttentionSignal(Signal):
    """Output of attention, with the statistics of its weights for the backward pass and for the reader."""

    weights: Any = None


@dataclass(frozen=True)
class Attention(Op):
    """`o_i = sum_k A_ik v_k`, `A = softmax(scale * q k^T)`, per head; inputs are the states of q, k and v.

    Forward   `K_o = E[A K_v A^T]` and, of order `1/width`, what aligns values with scores; dropout adds its own noise
    Backward  `G_v = E[A^T G_o A]`; `G_s = E[J (G_o * K_v) J]` of the scores, with `J = diag(A) - A A^T` row by row, and
              `G_q = scale^2 d_k G_s K_k`, `G_k = scale^2 d_k G_s^T K_q`

    The averages over weights in closed form, fitted where no sum is known: see the two files beside (dslm B.8,
    corrected and extended). `head_width` channels enter each score. `scale` defaults to `1/sqrt(head_width)`.
    `shared_width` is the width of the input from which keys and values were both made (infinite if they were not): it
    sets corrections of order 1/width. `groups` query heads share one key/value head. `dropout` acts on the attention
    weights.
    """

    carries = Carries(
        fluctuation=ended("closed forms give the average network"),
        common=ended("values are made by independent weights"),
        directions=ended("scores and averages over keys turn the gradient"),
        along_signal=ended("closed forms take the gradient as independent of the signal"),
        through_activation=ended("averages over keys stand between the function and its argument"),
    )

    head_width: int
    scale: Tensor | float | None = None
    shared_width: float = math.inf
    groups: int = 1
    dropout: Tensor | float = 0.0
    is_causal: bool = False

    def __post_init__(self):
        require(self.head_width >= 1, "head_width", self.head_width, "at least 1")

    @property
    def score_scale(self) -> Tensor | float:
        return self.head_width**-0.5 if self.scale is None else self.scale

    @property
    def reach(self) -> Tensor | float:
        """Variance of a score by the mean squares of a query and a key."""
        return self.score_scale**2 * self.head_width

    @property
    def noise(self) -> Tensor | float:
        """Relative variance of a weight that dropout leaves or not."""
        return self.dropout / (1.0 - self.dropout)

    @property
    def common_width(self) -> float:
        return of_one_input(self.shared_width)

    def _rule(self, query: Signal) -> Any:
        return exchangeable if isinstance(query.kernel, Exchangeable) else dense

    def forward(self, *inputs: Signal) -> AttentionSignal:
        query, key, value = inputs
        rule = self._rule(query)
        weights = rule.weights(self, query.kernel, key.kernel)
        kernel = rule.forward(self, weights, query.kernel, key.kernel, value.kernel)
        known = exchangeable.AVERAGED if rule is exchangeable and self.is_causal else rule.EVIDENCE
        evidence = joined_evidence(*inputs).join(known)
        if bool((weights.raw_variance > 4.0).any()):
            evidence = evidence.join(Evidence(Status.ASSUMED, "query/key score variance above 4"))
        mean = rule.mean(weights, value.mean)
        made = self.carries.signal(value, kernel, mean, value.width * self.groups, evidence)
        return AttentionSignal(**vars(made), weights=weights)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, Gradient, Gradient]:
        query, key, value = inputs
        assert isinstance(output, AttentionSignal)
        kernels = self._rule(query).backward(
            self, output.weights, gradient.kernel, query.kernel, key.kernel, value.kernel
        )
        evidence = gradient.evidence.join(output.evidence)
        to_query, to_key, to_value = (
            self.carries.gradient(gradient, kernel, evidence.doubted(doubt))
            for kernel, doubt in zip(kernels, output.weights.doubts(self.common_width), strict=True)
        )
        to_key, to_value = (replace(item, kernel=item.kernel.scale(self.groups)) for item in (to_key, to_value))
        return to_query, to_key, to_value

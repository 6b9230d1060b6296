"""Loss functions: recorded as they are called. What their gradient is, is asked later (see `gradient_start`)."""

from __future__ import annotations

from typing import Any

from sigprop.capture.capture import Capture
from sigprop.capture.fields.replayed import recorded
from sigprop.capture.record import Call
from sigprop.capture.registry import rule

LOSSES = (
    "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div cosine_embedding_loss triplet_margin_loss hinge_embedding_loss "
    "margin_ranking_loss soft_margin_loss multilabel_margin_loss multilabel_soft_margin_loss multi_margin_loss "
    "poisson_nll_loss gaussian_nll_loss ctc_loss triplet_margin_with_distance_loss"
)


@rule(*LOSSES.split())
def loss(capture: Capture, call: Call, *args: Any, **kwargs: Any) -> Any:
    return recorded(capture, call)

"""Watching functions that are not modules: residual additions and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sigprop.isolation import Mode
from sigprop.measurement.attention import (
    gradient_behind_output,
    multi_head_scores,
    score_gradient_square,
    score_summary,
    sdpa_scores,
)
from sigprop.measurement.recorder import Recorder
from sigprop.measurement.residuals import ADDITIONS, is_residual
from sigprop.sites import ROOT, CallCounter, inside

SOFTMAXES = {F.softmax, torch.softmax, torch.Tensor.softmax}


class FunctionWatch(Mode):
    """Records residual junctions as `module.add` and attention scores as `module.scores`."""

    def __init__(self, recorder: Recorder, junctions: bool, scores: bool):
        super().__init__()
        self.recorder = recorder
        self.junctions = junctions
        self.scores = scores
        self._calls = CallCounter()

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if self.recorder.phase != "forward":
            return func(*args, **kwargs)
        joins = self.junctions and func in ADDITIONS and is_residual(*args[:2])
        output = func(*args, **kwargs)
        if joins:
            self.recorder.record(self._name("add"), output)
        if self.scores:
            self._attention(func, args, kwargs, output)
        return output

    def _attention(self, func: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if func is F.scaled_dot_product_attention:
            self._fused(output, *args, **kwargs)
        elif func is F.multi_head_attention_forward:
            self._record(multi_head_scores(*args, **kwargs))
        elif func in SOFTMAXES and _is_attention(*args, **kwargs):
            scores = args[0]
            self._record(scores, scores, lambda gradient: gradient)

    def _fused(self, output: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> None:
        scores = sdpa_scores(query, key, value, *args, **kwargs)
        dropout = kwargs.get("dropout_p", args[1] if len(args) > 1 else 0.0)
        watched = output if dropout == 0.0 else None
        self._record(scores, watched, lambda gradient: gradient_behind_output(scores, value, gradient))

    def _record(
        self,
        scores: Tensor,
        watched: Tensor | None = None,
        to_score_gradient: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        site = self.recorder.note(self._name("scores"), score_summary(scores))
        if site is None or watched is None or to_score_gradient is None or not watched.requires_grad:
            return

        def hook(gradient: Tensor | None) -> None:
            if self.recorder.phase == "backward" and gradient is not None:
                site.values["grad_variance"] = score_gradient_square(scores, to_score_gradient(gradient))

        self.recorder.hook(watched, hook)

    def _name(self, kind: str) -> str:
        return self._calls.next(inside(self.recorder.current[-1] if self.recorder.current else ROOT, kind))


def _is_attention(scores: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> bool:
    """A softmax over the last axis of a stack of matrices."""
    return scores.is_floating_point() and scores.dim() >= 3 and dim in (-1, scores.dim() - 1)

"""Dropout: the identity in evaluation mode."""

from __future__ import annotations

from typing import Any

import torch

from sigprop.capture.capture import Capture
from sigprop.capture.fields.replayed import replayed
from sigprop.capture.layout import KEY
from sigprop.capture.record import Call, Field
from sigprop.capture.registry import rule
from sigprop.graph.graph import Node
from sigprop.theory.ops.dropout import Dropout


@rule("dropout", "feature_dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d")
def dropout(capture: Capture, call: Call, input: Any, p: float = 0.5, training: bool = True, *args: Any, **kwargs: Any):
    training = kwargs.get("train", training)
    if not training or p == 0.0:
        return input
    if not isinstance(input, Field) or any(a.role == KEY for dim in input.layout.dims for a in dim):
        return replayed(capture, Call(torch.dropout, "dropout", (input, p, True), {}, call.module))

    def make(_: Field) -> Node:
        return capture.apply(Dropout(p), input.node)

    inner = Call(torch.dropout, "dropout", (input, p, True), {}, call.module)
    return Field(input.layout, make, sources=input.sources, call=inner, inputs=(input,))

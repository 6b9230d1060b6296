"""Experts that are alike, followed as one.

Hugging Face's mixtures stack the weights of their experts and call them as `(hidden_states, top_k_index,
top_k_weights)`. All have one law, so that one of them, run on all tokens, tells what every one makes of the tokens that
choose it. The module's own code is run with every token sent to the first expert; `ExpertSum` puts them together. Two
hundred experts then cost what one does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.capture.capture import Capture
from sigprop.capture.layout import CHANNEL, Axis, Layout
from sigprop.capture.record import Call, Field, Weight
from sigprop.capture.rules.operands import how_chosen
from sigprop.graph.graph import record_of
from sigprop.theory.ops.expert_sum import ExpertSum

ARGUMENTS = ("hidden_states", "top_k_index", "top_k_weights")


@contextmanager
def followed_as_one(capture: Capture) -> Iterator[None]:
    """Inside, every stack of experts of the captured model runs one of them."""
    with ExitStack() as after:
        for module in capture.model.modules():
            experts = number_of_experts(module)
            if experts and _is_even(module):
                module.forward = partial(_forward, capture, experts, module.forward)
                after.callback(module.__dict__.pop, "forward")
        yield


def number_of_experts(module: nn.Module) -> int:
    """Experts that a module stacks along the first dimension of all its parameters; 0 where it is no such module."""
    if "forward" in vars(module) or _arguments(type(module)) != ARGUMENTS:
        return 0
    counts = {parameter.shape[0] if parameter.dim() > 1 else 0 for parameter in module.parameters()}
    return counts.pop() if len(counts) == 1 else 0


@lru_cache(maxsize=256)
def _arguments(kind: type[nn.Module]) -> tuple[str, ...]:
    """Of the forward of a class; asked of every module of a model, of few classes."""
    return tuple(inspect.signature(kind.forward).parameters)[1:]


def _forward(capture: Capture, experts: int, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(own).bind(*args, **kwargs).arguments
    hidden, index, weights = (given[name] for name in ARGUMENTS)
    tokens, shares = record_of(hidden), record_of(weights)
    if not (isinstance(tokens, Field) and isinstance(shares, Field) and _are_rows(tokens, shares)):
        return own(hidden, index, weights)
    before = len(capture.sites)
    everyone = torch.zeros_like(index[:, :1])
    first = record_of(own(hidden, everyone, torch.ones(everyone.shape)))
    assert isinstance(first, Field)
    for _, site in capture.sites[before:]:
        capture.repeats[site] = index.shape[1]
    return _sum_of_experts(capture, first, index, shares, experts)


def _is_even(module: nn.Module) -> bool:
    """Whether weights and biases have mean zero, so that outputs of different experts are uncorrelated."""
    laws = [record_of(parameter) for parameter in module.parameters()]
    return all(isinstance(weight, Weight) and weight.distribution.mean == 0.0 for weight in laws)


def _are_rows(tokens: Field, shares: Field) -> bool:
    """Rows of tokens, and of shares with a channel for each choice."""
    rows = len(tokens.shape) == len(shares.shape) == 2
    return rows and all(axis.role == CHANNEL for axis in (*tokens.layout.dims[1], *shares.layout.dims[1]))


def _sum_of_experts(capture: Capture, first: Field, index: Tensor, weights: Field, experts: int) -> Tensor:
    zeros, choice = torch.zeros(index.shape[0], experts), how_chosen(index)
    scattered = Call(torch.scatter, "scatter", (zeros, 1, choice, weights), {}, capture.module)
    given = tuple(item for item in (choice, weights) if isinstance(item, Field))
    layout = Layout((first.layout.dims[0], (Axis(experts, CHANNEL),)), first.layout.order)
    shares = capture.drawn_field(layout, scattered, given, "shares of experts sampled")
    node = capture.apply(ExpertSum(index.shape[1]), first.node, shares.node)
    call = Call(_sum, "expert_sum", (first, shares), {}, capture.module)
    return capture.tensor_for(Field(first.layout, lambda _: node, call=call, inputs=(first, shares)), call)


def _sum(expert: Tensor, shares: Tensor) -> Tensor:
    """Not replayed: what is asked for values of the sum is drawn from its state."""
    return expert * shares.sum(1, keepdim=True)

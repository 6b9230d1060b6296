"""Models that are finished by their first batch: lazy parameters, and modules made inside `forward`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy as is_uninitialized

from sigprop.batches import copied
from sigprop.compat import own_buffers, own_parameters
from sigprop.errors import SigpropError
from sigprop.isolation import undisturbed
from sigprop.measurement.batch import call


class NotBuilt(SigpropError):
    """A module appeared while the model ran, too late to be watched."""


def is_lazy(model: nn.Module) -> bool:
    """Whether a parameter or buffer waits for its first batch."""
    tables = (table for module in model.modules() for table in (own_parameters(module), own_buffers(module)))
    return any(tensor is not None and is_uninitialized(tensor) for table in tables for tensor in table.values())


def built_copy(model: nn.Module, batch: Any) -> nn.Module:
    """A copy that has seen the batch once; the model stays unfinished, as it was."""
    with undisturbed() as interrupts, torch.no_grad(), interrupts.let_through():
        made = copy.deepcopy(model)
        call(made, copied(batch))
    return made

"""Leave a model as it was: parameters, buffers, gradients, attributes, train flags, and the process around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from sigprop.compat import own_buffers, own_parameters
from sigprop.isolation import Interrupts, undisturbed
from sigprop.measurement.module_states import ModuleState
from sigprop.measurement.tensor_values import TensorValues


@contextmanager
def untouched(modules: Iterable[nn.Module], batch_tensors: Iterable[Tensor] = ()) -> Iterator[Interrupts]:
    """Whatever happens inside, also an exception or Ctrl-C, modules and process come back bit for bit.

    Signals wait; let them through, with what this gives, once everything else is set up.
    """
    modules = list(modules)
    devices = {tensor.device for module in modules for tensor in _own_tensors(module)}
    devices |= {tensor.device for tensor in batch_tensors}
    with undisturbed(devices) as interrupts:
        states = [ModuleState(module) for module in modules]
        held = {id(tensor): tensor for state in states for tensor in (*state.registered(), *state.unregistered())}
        values = TensorValues(held.values())
        gradients = [(tensor, tensor.grad) for tensor in held.values() if tensor.requires_grad and tensor.is_leaf]
        try:
            values.lend()
            for tensor, _ in gradients:
                tensor.grad = None
            yield interrupts
        finally:
            for state in states:
                state.restore()
            for tensor, gradient in gradients:
                tensor.grad = gradient
            values.restore()


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    tensors = (*own_parameters(module).values(), *own_buffers(module).values())
    return (tensor for tensor in tensors if tensor is not None)

"""The bitwise promise: everything about a model is hashed before and after, also when the model fails."""

import hashlib
import random

import numpy as np
import pytest
import torch
from torch import nn

from sigprop.errors import InputError
from sigprop.measurement import jacobian_profile, measure

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


def data(tensor):
    if tensor is None or tensor.is_sparse:
        return tensor if tensor is None else data(tensor.to_dense())
    tensor = tensor.int_repr() if tensor.is_quantized else tensor
    return tensor.detach().clone().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def fingerprint(model):
    """Identity and bits of parameters, buffers and gradients; flags; hooks; random states."""
    seen = []
    for name, module in model.named_modules(remove_duplicate=False):
        seen.append((name, id(module), module.training, {key: list(getattr(module, key)) for key in HOOKS}))
        for kind in ("_parameters", "_buffers"):
            for key, tensor in getattr(module, kind).items():
                seen.append((key, id(tensor), data(tensor)))
    for parameter in model.parameters():
        hooks = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
        seen.append((parameter.requires_grad, id(parameter.grad), data(parameter.grad), hooks))
    seen.append((random.getstate(), [str(part) for part in np.random.get_state()]))  # noqa: NPY002
    seen.append(data(torch.get_rng_state()))
    return hashlib.sha256(repr(seen).encode()).hexdigest()


OPTIONS = [{}, {"junctions": True, "scores": True, "formats": True, "spectral": True}, {"backward": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "everything", "forward"])
def test_measuring_changes_nothing(specimen, options):
    if options.get("backward") is False and type(specimen.model).__name__ == "InnerGradient":
        pytest.skip("the model itself needs gradients")
    before, batch = fingerprint(specimen.model), repr(specimen.batch)
    measure(specimen.model, specimen.batch, specimen.loss, **options)
    assert fingerprint(specimen.model) == before
    assert repr(specimen.batch) == batch


class Failure(Exception):
    pass


class Bomb(nn.Module):
    """Fails in the forward pass, or lets it through and fails in the backward pass."""

    def __init__(self, inner, when):
        super().__init__()
        self.inner = inner
        self.when = when

    def forward(self, *arguments, **named):
        output = self.inner(*arguments, **named)
        if self.when == "forward":
            raise Failure("broken on purpose")
        return output


@pytest.mark.parametrize("when", ["forward", "loss", "backward"])
def test_a_failing_model_is_put_back_too(specimen, when):
    model = Bomb(specimen.model, when)

    def loss(output):
        if when == "loss":
            raise Failure("broken on purpose")
        tensor = output if isinstance(output, torch.Tensor) else output.logits
        value = tensor.sum()
        value.register_hook(fail)
        return value

    def fail(gradient):
        raise Failure("broken on purpose")

    before = fingerprint(model)
    with pytest.raises((Failure, InputError), match="broken on purpose"):
        measure(model, specimen.batch, loss)
    assert fingerprint(model) == before


def test_the_fingerprint_sees_each_kind_of_change(make_specimen):
    """The promise would be empty if the hash were blind."""
    model = make_specimen("resnet batch norm").model
    prints = {fingerprint(model)}
    changes = [
        lambda: model.stem.weight.data.view(-1)[0].add_(1e-7),
        lambda: model.blocks[0].norm1.running_mean.add_(1e-7),
        lambda: setattr(model.head.weight, "grad", torch.zeros_like(model.head.weight)),
        lambda: model.blocks[1].eval(),
        lambda: torch.rand(1),
        random.random,
        lambda: model.head.register_forward_hook(lambda *arguments: None),
        lambda: model.head.bias.requires_grad_(False),
    ]
    for number, change in enumerate(changes, start=2):
        change()
        prints.add(fingerprint(model))
        assert len(prints) == number


def test_a_measurement_leaves_a_waiting_graph_usable(make_specimen):
    """A backward pass that was prepared before still runs: nothing it saved was written to."""
    specimen = make_specimen("decoder")
    waiting = specimen.loss(specimen.model(specimen.batch))
    measure(specimen.model, specimen.batch, specimen.loss)
    waiting.backward()
    assert specimen.model.head.weight.grad is not None


@pytest.mark.parametrize("name", ["decoder", "mlp", "resnet batch norm", "gpt2"])
def test_jacobians_change_nothing(make_specimen, name):
    specimen = make_specimen(name)
    before = fingerprint(specimen.model)
    jacobian_profile(specimen.model, specimen.batch, probes=2)
    assert fingerprint(specimen.model) == before


class OddlyLaid(nn.Module):
    """Large parameters whose memory is no row of whole words: other strides, an odd place, an odd count."""

    def __init__(self, writes):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.conv = nn.Conv2d(64, 65, 3).to(memory_format=torch.channels_last)
        self.shifted = nn.Parameter(torch.randn(130 * 130 + 1, generator=generator)[1:].view(130, 130))
        self.odd = nn.Parameter(torch.randn(20001, generator=generator))
        self.coarse = nn.Parameter(torch.randn(181, 183, generator=generator).to(torch.bfloat16))
        self.writes = writes

    def forward(self, x):
        if self.writes:
            for parameter in self.parameters():
                parameter.data.view(-1)[-1:].add_(1.0) if parameter.is_contiguous() else parameter.data.add_(1.0)
        hidden = self.conv(x).mean((2, 3)) @ self.shifted[:65]
        return hidden * self.odd[:130] * self.coarse[0, :130].float()


@pytest.mark.parametrize("writes", [False, True], ids=["read", "written"])
def test_large_parameters_of_any_layout_are_put_back_and_else_not_written(writes):
    model = OddlyLaid(writes)
    before, versions = fingerprint(model), [parameter._version for parameter in model.parameters()]
    measure(model, torch.randn(2, 64, 6, 6, generator=torch.Generator().manual_seed(1)))
    assert fingerprint(model) == before
    if not writes:
        assert [parameter._version for parameter in model.parameters()] == versions

"""Modules that do unusual things while they run: they are measured, and come back as they were."""

import copy

import pytest
import torch
from torch import nn

from sigprop.errors import InputError
from sigprop.losses import white_noise
from sigprop.measurement import measure
from tests.measurement.test_untouched import fingerprint

BATCH = torch.linspace(-1, 1, 24).reshape(4, 6)


class QuantizedTable(nn.Module):
    """Carries a quantized buffer beside its weights."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.register_buffer("table", torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.qint8))
        self.register_buffer("sparse", torch.eye(4).to_sparse())

    def forward(self, x):
        return self.layer(x)


class GrowingBuffer(nn.Module):
    """Resizes a buffer in place, after a BatchNorm has written its statistics."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.layer = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        x = self.norm(self.layer(x))
        if self.how == "resize":
            self.seen.resize_(7).fill_(1.0)
        else:
            self.seen.data = torch.ones(9)
        return x


class ReturnsParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self):
        return self.weight


class UsesReturnedParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.prompt = ReturnsParameter()

    def forward(self, x):
        return x @ self.prompt()


class KeepsState(nn.Module):
    """Keeps a tensor of the graph, a list and a mapping from one call to the next, as recurrent models do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.state = None
        self.history = []
        self.cache = {"calls": 0}

    def forward(self, x):
        self.state = self.layer(x)
        self.history.append(self.state)
        self.cache["last"] = self.state
        self.cache["calls"] += 1
        return self.state.tanh()


class BuiltOnFirstUse(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = None

    def forward(self, x):
        x = self.first(x)
        if self.second is None:
            self.second = nn.Linear(x.shape[1], 3)
        return self.second(x)


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 1.0, y * 1.0

    @staticmethod
    def backward(ctx, left, right):
        return left, None


class CutsGradient(nn.Module):
    """An autograd function that has no gradient to give for one of its inputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x):
        left, right = _NoGradient.apply(self.left(x), self.right(x))
        return left + right


ODD = {
    "quantized buffer": QuantizedTable,
    "resized buffer": lambda: GrowingBuffer("resize"),
    "buffer of new data": lambda: GrowingBuffer("data"),
    "returned parameter": UsesReturnedParameter,
    "kept state": KeepsState,
    "built on first use": BuiltOnFirstUse,
    "no gradient": CutsGradient,
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_module_is_measured_and_comes_back_as_it_was(name):
    torch.manual_seed(0)
    model = ODD[name]()
    attributes = {key: copy.copy(value) for key, value in vars(model).items()}
    before = fingerprint(model)
    profile = measure(model, BATCH)
    assert profile["(output)"].variance > 0
    assert fingerprint(model) == before
    assert {key: copy.copy(value) for key, value in vars(model).items()} == attributes
    copy.deepcopy(model)


def test_statistics_are_restored_when_another_buffer_changes_shape():
    model = GrowingBuffer("resize")
    measure(model, BATCH)
    assert model.norm.num_batches_tracked == 0
    assert model.seen.tolist() == [0.0, 0.0]


def test_a_view_of_a_buffer_still_is_one_after_its_data_was_exchanged():
    model = GrowingBuffer("data")
    alias = model.seen.view(1, 2)
    measure(model, BATCH)
    model.seen[0] = 5.0
    assert alias[0, 0] == 5.0


def test_a_module_without_gradient_has_none():
    row = measure(CutsGradient(), BATCH)["right"]
    assert row.grad_variance != row.grad_variance


def test_modules_built_on_first_use_are_rows_of_a_copy():
    model = BuiltOnFirstUse()
    assert "second" in [row.name for row in measure(model, BATCH)]
    assert model.second is None


def test_a_lazy_module_is_measured_as_torch_would_build_it_and_stays_lazy():
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    profile = measure(model, BATCH)
    assert [row.shape for row in profile.parameters] == [(8, 6), (8,), (3, 8), (3,)]
    assert isinstance(model[0], nn.LazyLinear)
    assert model[0].has_uninitialized_params()
    assert model(torch.randn(2, 9)).shape == (2, 3)


def test_a_gradient_that_was_there_before_is_the_same_object():
    model = UsesReturnedParameter()
    model(BATCH).sum().backward()
    gradient = model.prompt.weight.grad
    kept = gradient.clone()
    measure(model, BATCH)
    assert model.prompt.weight.grad is gradient
    assert torch.equal(gradient, kept)


def test_recurrent_gemma_can_be_copied_afterwards():
    transformers = pytest.importorskip("transformers")
    config = transformers.RecurrentGemmaConfig(
        num_hidden_layers=3,
        hidden_size=16,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=29,
        lru_width=16,
        attention_window_size=8,
        pad_token_id=0,
    )
    model = transformers.RecurrentGemmaForCausalLM(config)
    ids = torch.arange(12)[None] % 29
    measure(model, {"input_ids": ids, "labels": ids})
    copy.deepcopy(model)


def test_a_model_that_never_runs_on_the_batch_says_so():
    with pytest.raises(InputError, match="failed on the batch"):
        measure(nn.Sequential(nn.LazyLinear(4), nn.Linear(7, 2)), BATCH)


class Reversible(torch.autograd.Function):
    """Runs a block without a graph, returns the very tensor it made, and has a backward pass of its own."""

    @staticmethod
    def forward(ctx, x, block):
        ctx.save_for_backward(block.weight)
        return block(x)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] @ ctx.saved_tensors[0], None


def test_a_result_of_a_function_has_a_gradient_though_the_block_that_made_it_had_none():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Linear(6, 6)

        def forward(self, x):
            return Reversible.apply(x, self.block)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Stack(), nn.Linear(6, 4))
    profile = measure(model, torch.randn(5, 6))
    expected = (white_noise(torch.empty(5, 4)) @ model[2].weight.detach()).square().mean()
    assert profile["1"].grad_variance == pytest.approx(float(expected), rel=1e-5)
    assert profile["1"].variance == profile["1.block"].variance


class NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        raise AssertionError("call model.train() first")


def test_a_backward_pass_that_refuses_is_told_in_its_own_words():
    class Model(nn.Linear):
        def forward(self, x):
            return NoWayBack.apply(super().forward(x))

    with pytest.raises(InputError, match=r"backward pass of Model failed with AssertionError: call model\.train"):
        measure(Model(6, 3), BATCH)

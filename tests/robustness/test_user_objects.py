"""Predicting, measuring and checking write into nothing that belongs to the user."""

import copy
import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.capture import trace
from sigprop.errors import SigpropError

IDS = torch.arange(24).reshape(2, 12) % 29


def llama_config(**settings):
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        vocab_size=29,
        **settings,
    )


def random_states():
    state = np.random.get_state()  # noqa: NPY002
    return random.getstate(), [str(part) for part in state], torch.get_rng_state().tolist()


def test_a_config_is_not_written():
    config = llama_config(dtype="bfloat16")
    before = config.to_dict(), config.use_cache, config.dtype, config._attn_implementation
    sp.predict(config, IDS)
    assert (config.to_dict(), config.use_cache, config.dtype, config._attn_implementation) == before


def test_the_config_of_a_model_is_not_written():
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(llama_config())
    before = model.config.to_dict()
    sp.predict(model, {"input_ids": IDS, "labels": IDS})
    assert model.config.to_dict() == before


@pytest.mark.parametrize("call", [sp.predict, sp.measure], ids=["predict", "measure"])
def test_a_cache_in_the_batch_is_not_written(call):
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(llama_config())
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(IDS, past_key_values=cache, use_cache=True)
    keys = cache.layers[0].keys.clone()
    try:
        call(model, {"input_ids": IDS, "past_key_values": cache, "use_cache": True, "labels": IDS})
    except SigpropError:
        assert call is sp.predict  # a prediction may refuse a cache, and still leaves it alone
    assert cache.get_seq_length() == 12
    assert torch.equal(cache.layers[0].keys, keys)


@pytest.mark.parametrize("call", [sp.predict, sp.measure], ids=["predict", "measure"])
def test_the_batch_of_a_model_that_writes_into_it_is_not_written(call):
    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x):
            x.mul_(2.0)
            return self.layer(x)

    batch = torch.ones(3, 6)
    call(Writes(), batch)
    assert torch.equal(batch, torch.ones(3, 6))


def test_the_batch_of_a_coordinate_check_is_not_written():
    class Writes(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))

        def forward(self, x):
            return self.layers(x.mul_(2.0))

    batch = torch.ones(4, 6)
    before = random_states()
    sp.coord_check(Writes, [8, 16], batch=batch, loss=lambda output: output.square().mean(), steps=1, seeds=2)
    assert torch.equal(batch, torch.ones(4, 6))
    assert random_states() == before


def test_hooks_of_the_user_are_not_run_on_tensors_without_numbers():
    seen = []
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    model[2].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    profile = sp.predict(model, torch.randn(5, 6))
    assert not seen
    assert "0, 2" in profile.meta["hooks"]
    assert "hooks" not in sp.predict(nn.Linear(6, 3), torch.randn(5, 6)).meta


def test_hooks_that_belong_to_the_model_are_run():
    """Old-style weight norm computes the weight in a hook, a module's own method may be one."""
    layer = torch.nn.utils.weight_norm(nn.Linear(64, 64, bias=False))
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    profile = sp.predict(nn.Sequential(layer), x)
    assert profile["0"].variance == pytest.approx(float(layer(x).var()), rel=0.3)
    assert "hooks" not in profile.meta

    class Doubles(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)
            self.layer.register_forward_hook(self.double)

        def double(self, module, inputs, output):
            return output * 4.0

        def forward(self, x):
            return self.layer(x)

    model = Doubles()
    assert sp.predict(model, x)["layer"].variance == pytest.approx(float(model(x).var()), rel=0.3)


class Random(nn.Module):
    """Draws from every global source in training mode, as LayerDrop and masked modelling do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.5:
                continue
            x = self.dropout(layer(x)) * (0.5 + random.random()) * (0.5 + np.random.rand())  # noqa: NPY002
        return x


def test_a_prediction_in_training_mode_depends_on_its_seed_alone_and_leaves_the_random_states():
    model, x = Random().train(), torch.randn(5, 16)
    found = []
    for start in (1, 2):
        torch.manual_seed(start)
        random.seed(start)
        before = random_states()
        found.append(sp.predict(model, x, seed=3).to_json())
        assert random_states() == before
    assert found[0] == found[1]


def test_a_compiled_model_is_predicted_as_it_was_written():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 6)
    assert sp.predict(torch.compile(model), x).to_json() == sp.predict(model, x).to_json()


def test_a_kernel_from_afar_is_never_followed(monkeypatch):
    transformers = pytest.importorskip("transformers")
    asked = []
    monkeypatch.setattr("socket.socket.connect", lambda *arguments: asked.append(arguments))
    config = llama_config()
    config._attn_implementation_internal = "somebody/attention-kernel"
    plain = sp.predict(llama_config(), IDS)
    found = sp.predict(config, IDS)
    assert not asked
    assert found.column("variance") == plain.column("variance")
    model = transformers.LlamaForCausalLM(llama_config())
    model.config._attn_implementation_internal = "somebody/attention-kernel"
    with suppress(SigpropError):  # nor would the model run
        sp.predict(model, {"input_ids": IDS, "labels": IDS})
    assert not asked


def test_nothing_of_a_model_changes_in_a_prediction():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3)).train()
    before = copy.deepcopy(model.state_dict())
    sp.predict(model, torch.randn(5, 6))
    after = model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_a_loss_that_draws_leaves_the_random_state():
    """A seed, or after an interrupt a function mode, stayed where no `predict` was around the loss."""

    def loss(output):
        torch.manual_seed(1)
        return output.square().mean()

    traced, before = trace(nn.Linear(4, 3), torch.ones(2, 4)), torch.get_rng_state()
    traced.differentiate(loss)
    assert torch.equal(torch.get_rng_state(), before)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.head = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.part(x))


class Traced(Scripted):
    """`torch.jit.trace` in a constructor crashed the process where weights were not real."""

    def __init__(self):
        super().__init__()
        self.part = torch.jit.trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.ones(4, 8))


class OfWholeNumbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.times = nn.Parameter(torch.tensor(3), requires_grad=False)
        self.kept = nn.Parameter(torch.ones(8, dtype=torch.bool), requires_grad=False)

    def forward(self, x):
        return self.layer(x) * self.kept * self.times


class WithoutEntries(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.more = nn.Linear(8, 8), nn.Parameter(torch.zeros(0, 8))

    def forward(self, x):
        return torch.cat([self.layer(x), self.more])


class OfComplexNumbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64)), nn.Linear(8, 3)

    def forward(self, x):
        return self.head((x @ self.weight).abs())


@pytest.mark.filterwarnings("error::sigprop.errors.FaultWarning")
@pytest.mark.parametrize(("build", "dtype"), [(WithoutEntries, torch.float32), (OfComplexNumbers, torch.complex64)])
def test_parameters_and_inputs_of_odd_kinds(build, dtype):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = {row.name: row for row in sp.predict(build, x).sites}
    assert rows["(output)"].variance > 0
    if dtype == torch.float32:
        sp.check(build(), x)


@pytest.mark.filterwarnings("error::sigprop.errors.FaultWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("build", [Scripted, Traced, OfWholeNumbers])
def test_modules_and_parameters_that_torch_treats_otherwise(build):
    """TorchScript takes no hooks and hides what it computes; whole numbers have no gradient and no distribution."""
    model, x = build(), torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    sp.predict(build, x)
    sp.check(model, x)
    if build is not OfWholeNumbers:
        with pytest.raises(SigpropError, match="part is TorchScript"):
            sp.plan(model, "xavier", batch=x)
    else:
        plan = sp.plan(model, "xavier", batch=x)
        assert [row.name for row in plan.parameters] == ["layer.weight", "layer.bias"]
        plan.apply_(model)
        assert int(model.times) == 3

"""Predictions of whole models against many initializations of the real ones."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sigprop
from sigprop.capture import build, predict, trace
from sigprop.distributions import distribution
from sigprop.errors import InputError, SigpropError, UnknownNameError, UnsupportedError
from sigprop.graph.evaluate import Evaluation
from sigprop.inputs.synthetic import zipf_ids
from sigprop.models import build as reference

IDS = zipf_ids(64, (1, 24))
TARGETS = zipf_ids(64, (24,), 1)


def next_token(out):
    return F.cross_entropy(out.flatten(0, 1), TARGETS)


def transformer(**settings):
    return lambda: reference("transformer", width=96, depth=2, vocabulary=64, context=32, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": "encoder", "norm_placement": "post"},
        {"positions": "rotary", "norm": "rms_norm", "activation": "swiglu", "bias": False},
        {"fused_qkv": True, "activation": "relu", "norm_placement": "sandwich"},
        {"positions": "sinusoidal", "branch_scale": 0.5, "skip_scale": 0.8},
    ],
    ids=["decoder", "post-norm encoder", "rotary gated", "fused sandwich", "scaled sinusoidal"],
)
def test_reference_transformers(agreement, settings):
    agreement(transformer(**settings), IDS, next_token, skip=("key.bias",))


def test_dropout_in_training(agreement):
    agreement(transformer(dropout=0.2), IDS, next_token, training=True, seeds=64, skip=("key.bias",))


def test_a_batch_of_sequences(agreement):
    ids, targets = zipf_ids(64, (3, 10)), zipf_ids(64, (30,), 2)
    loss = lambda out: F.cross_entropy(out.flatten(0, 1), targets)  # noqa: E731
    agreement(transformer(), ids, loss, skip=("key.bias",))


def test_encoder_decoder(agreement):
    batch = (IDS, zipf_ids(64, (1, 24), 3))
    agreement(transformer(kind="encoder_decoder"), batch, next_token, skip=("key.bias",))


def test_a_multilayer_perceptron_on_noise(agreement):
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(0))
    make = lambda: nn.Sequential(nn.Linear(20, 128), nn.Tanh(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5))  # noqa: E731
    agreement(make, x, lambda out: F.mse_loss(out, torch.zeros(8, 5)))


def test_convolutions(agreement):
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, groups=4, padding=1), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(256, 6),
    )  # fmt: skip
    agreement(make, x, lambda out: F.cross_entropy(out, torch.tensor([1, 4])))


def test_mixer(agreement):
    x = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    make = lambda: reference("mixer", width=96, depth=2, image=16, patch=4)  # noqa: E731
    # inside the token mlp `measure` reads channels as tokens
    transposed = ("token_mlp", "token_mlp.up", "token_mlp.down", "token_mlp.activation")
    agreement(make, x, lambda out: F.cross_entropy(out, torch.tensor([3])), seeds=32, skip=transposed)


class Encoder(nn.Module):
    """torch's own layers; each initialized anew, since nn.TransformerEncoder copies one."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 96)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(96, 4, 192, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(96, 64)

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_torch_encoder_layers(agreement):
    agreement(Encoder, IDS, next_token)


class SpeltOut(nn.Module):
    """Eager attention, tanh-GELU and RMSNorm written with elementary functions."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 96)
        self.gain = nn.Parameter(torch.ones(96))
        self.qkv, self.out = nn.Linear(96, 288), nn.Linear(96, 96)
        self.up, self.down, self.head = nn.Linear(96, 192), nn.Linear(192, 96), nn.Linear(96, 64)

    def norm(self, x):
        return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(self, ids):
        x = self.embedding(ids)
        q, k, v = (t.view(1, -1, 4, 24).transpose(1, 2) for t in self.qkv(self.norm(x)).split(96, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(24) + torch.full((24, 24), -math.inf).triu(1)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(1, -1, 96))
        h = self.up(self.norm(x))
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))
        return self.head(x + self.down(h))


def test_spelt_out_functions(agreement):
    agreement(SpeltOut, IDS, next_token)


def test_a_wrong_gain_fails(agreement):
    """The oracle has teeth: a prediction for weights 20 % larger must not pass."""
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(0))
    made = []

    def make():
        model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 4))
        if len(made) < 3:  # the builder calls a small constructor three times
            with torch.no_grad():
                model[0].weight.mul_(1.2)
        made.append(model)
        return model

    with pytest.raises(AssertionError, match="Difference"):
        agreement(make, x, lambda out: F.mse_loss(out, torch.zeros(8, 4)))


def test_a_given_model_is_predicted_from_its_own_weights_and_untouched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 512, bias=False), nn.Linear(512, 8, bias=False))
    before = [p.clone() for p in model.parameters()]
    x = torch.randn(4, 16)
    row = predict(model, x, loss="noise")["0"]
    expected = distribution(model[0].weight).variance * float(x.square().sum(1).mean())
    assert row.variance == pytest.approx(expected, rel=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_predictions_are_reproducible():
    first, second = (predict(build(transformer()), IDS, loss=next_token, seed=3) for _ in range(2))
    assert first.to_json() == second.to_json()


def test_gradients_that_are_let_go_change_nothing():
    found = trace(build(transformer()), IDS)
    kept, freed = (Evaluation(found.capture.graph, found.states) for _ in range(2))
    kept.backward(found.differentiate("noise", kept)[0])
    seen: list[float] = []
    freed.backward(found.differentiate("noise", freed)[0], lambda _, gradient: seen.append(float(gradient.energy())))
    reached = [node for node in found.capture.graph.nodes if node in kept.gradients]
    assert seen == [float(kept.gradients[node].energy()) for node in reversed(reached)]
    assert freed.energy == kept.energy
    assert not freed.gradients


def test_kernels_kept_in_float32():
    exact, single = (predict(build(transformer()), IDS, loss="noise", dtype=d) for d in (torch.float64, torch.float32))
    for one, other in zip([*exact, *exact.parameters], [*single, *single.parameters], strict=True):
        for column in one.COLUMNS:
            assert getattr(other, column) == pytest.approx(getattr(one, column), rel=1e-5, abs=1e-7, nan_ok=True)
    found = trace(build(transformer()), IDS, dtype=torch.float32)
    assert {signal.kernel.values.dtype for signal in found.states._signals.values()} == {torch.float32}


def test_long_sequences_are_continued_and_it_is_said():
    profile = predict(build(transformer()), zipf_ids(64, (1, 30)), loss="noise", tokens=16)
    assert profile.meta["tokens"] == "30 tokens, continued from 8 and 16"


# -- bad input


def test_a_branch_on_shapes_that_depend_on_values_names_the_module():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            h = self.inner(x)
            return h.tensor_does_not_have_this()

    with pytest.raises(InputError, match=r"(?s)Branching could not be traced: AttributeError.*test_predict.py"):
        predict(Branching(), torch.randn(2, 4))


def test_an_op_without_a_rule_says_how_to_register_one():
    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return torch.vander(self.inner(x).flatten(), 3)

    with pytest.raises(UnsupportedError, match="vander"):
        predict(Strange(), torch.randn(3, 4))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nowhere.json", "no config at nowhere.json"),
        ("nowhere.py:make", "no file at nowhere.py"),
        ("llama", "llama is neither a folder here nor in the cache"),
        (3.0, "model is float"),
    ],
)
def test_models_that_are_none(model, message):
    with pytest.raises(InputError, match=message):
        sigprop.predict(model)


def test_bad_options():
    with pytest.raises(InputError, match="float32"):
        predict(build(transformer()), IDS, dtype=torch.float16)
    with pytest.raises(InputError, match="positions = 0 is not allowed"):
        predict(nn.Linear(2, 2), torch.randn(2, 2), positions=0)
    with pytest.raises(InputError, match="loss = 'hinge' is not allowed"):
        predict(nn.Linear(2, 2), torch.randn(2, 2), loss="hinge")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "gptx"}', r"unknown model_type in .* 'gptx'; nearest: .*gpt2"),
        ("{", "is not JSON"),
        ('{"layers": 2}', "has no model_type"),
    ],
)
def test_a_config_that_is_none(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SigpropError, match=message):
        sigprop.predict(str(path))


def test_a_factory_in_a_file(tmp_path):
    path = tmp_path / "made.py"
    path.write_text("from torch import nn\n\ndef small():\n    return nn.Linear(6, 3)\n")
    assert sigprop.predict(f"{path}:small", torch.randn(2, 6), loss="noise").parameter("weight").shape == (3, 6)
    with pytest.raises(UnknownNameError, match=r"unknown name in .*made.py 'large'; nearest: small"):
        sigprop.predict(f"{path}:large")


class Gated(nn.Module):
    """A gate whose bias keeps it nearly closed, as those of recurrent cells and state-space models."""

    def __init__(self, mean, width=128):
        super().__init__()
        self.first, self.gate, self.readout = nn.Linear(20, width), nn.Linear(width, width), nn.Linear(width, 5)
        nn.init.normal_(self.gate.bias, mean, 0.5)
        self.opened = nn.Identity()

    def forward(self, x):
        x = self.first(x)
        return self.readout(x * self.opened(self.gate(x).sigmoid()))


@pytest.mark.parametrize("mean", [-3.0, 2.0])
def test_biases_with_a_mean(agreement, mean):
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(0))
    target = torch.randint(5, (8,), generator=torch.Generator().manual_seed(1))
    loss = lambda out: F.cross_entropy(out, target)  # noqa: E731
    predicted = agreement(lambda: Gated(mean), x, loss, seeds=48, width=128, skip=("readout", "(output)"))
    opened = next(row for row in predicted.sites if row.name == "opened")
    assert opened.mean == pytest.approx(float(torch.sigmoid(torch.tensor(mean))), abs=0.05)


@dataclass
class Pair:
    hidden: torch.Tensor
    opened: torch.Tensor


class GivesPair(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x):
        hidden = self.first(x)
        return Pair(hidden, self.second(hidden).relu())


def test_tensors_in_a_dataclass_are_sites_as_they_are_of_a_measurement():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair, self.readout = GivesPair(), nn.Linear(16, 4)

        def forward(self, x):
            return self.readout(self.pair(x).opened)

    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    predicted, measured = predict(build(Reads), x, loss="noise"), sigprop.measure(Reads(), x, loss="noise")
    assert "pair[opened]" in [row.name for row in predicted.sites]
    assert {row.name for row in predicted.sites} == {row.name for row in measured.sites}

"""Equal initializations are called equal, planted differences are named, and bad input is one line."""

import itertools
import json
import sys

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.checks.diff.elsewhere import described
from sigprop.checks.diff.matching import entries_of, matched
from sigprop.checks.diff.sampling import compared, sample_of
from sigprop.errors import InputError
from sigprop.results.difference import InitDiff
from tests.checks.diff import models

SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=32, std=0.5):
        super().__init__()
        self.stem, self.head = nn.Linear(8, width), nn.Linear(width, 4)
        nn.init.normal_(self.head.weight, 0.0, std)

    def forward(self, x):
        return self.head(torch.tanh(self.stem(x)))


def batch():
    return torch.randn(4, 8)
"""


@pytest.fixture
def mixer_config(tmp_path):
    """A model of time series, for which no batch can be made up."""
    transformers = pytest.importorskip("transformers")
    config = transformers.PatchTSMixerConfig(
        context_length=64, prediction_length=16, num_input_channels=3, num_layers=2
    )
    config.architectures = ["PatchTSMixerForPrediction"]
    config.save_pretrained(tmp_path)
    return str(tmp_path / "config.json")


def test_parameters_are_compared_where_no_batch_can_be_made(mixer_config):
    found = sp.diff(mixer_config, mixer_config)
    assert found.equal
    assert len(found.parameters) > 20


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.mark.parametrize("make", [models.GPT, lambda: models.GPT(fused=True), lambda: models.renamed(models.GPT())])
def test_equal_in_disguise(make):
    found = sp.diff(models.GPT, make, models.ids())
    assert found.equal, found
    assert len(found.parameters) == 64
    assert "EQUAL" in found._repr_html_()
    assert "<table" not in found._repr_html_()


@pytest.mark.parametrize("name", models.DIFFERENT)
def test_a_planted_difference_is_named(name):
    one, other, culprit = models.DIFFERENT[name]
    found = sp.diff(one, other, models.ids())
    assert not found.equal
    assert culprit in found.culprit
    assert found.swaps[0].explained == pytest.approx(1.0)


def test_of_two_differences_the_one_that_matters_comes_first():
    def other():
        model = models.GPT()
        with torch.no_grad():
            model.embed_tokens.weight.mul_(10)
            model.layers[1].self_attn.k_proj.weight.mul_(1.3)
        return model

    found = sp.diff(models.GPT, other, models.ids())
    assert [item.group for item in found.swaps] == ["embed_tokens.weight", "layers.1.self_attn.k_proj.weight"]
    assert found.swaps[0].explained > 0.9 > 0.1 > found.swaps[1].explained


def test_the_parts_of_a_fused_parameter_are_told_apart():
    pairs = matched(*(entries_of(described(models.GPT(fused=flag))["parameters"]) for flag in (False, True))).pairs
    partners = {pair.a.name: pair.b.name for pair in pairs}
    assert partners["layers.1.self_attn.k_proj.weight"] == "layers.1.self_attn.Wqkv.weight[64:128]"
    assert partners["layers.1.self_attn.v_proj.bias"] == "layers.1.self_attn.Wqkv.bias[128:192]"
    assert partners["layers.1.mlp.up_proj.weight"] == "layers.1.mlp.gate_up_proj.weight[128:256]"


def test_models_are_left_as_they_were():
    one, other = models.GPT(), models.GPT(std=0.1)
    before = [parameter.detach().clone() for model in (one, other) for parameter in model.parameters()]
    sp.diff(one, other, models.ids())
    after = [parameter for model in (one, other) for parameter in model.parameters()]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_the_second_model_is_not_run_itself():
    """An interrupt would leave hooks on it, and what its forward writes would stay."""
    seen = []

    class Own(nn.Linear):
        def forward(self, x):
            seen.append(self)
            return super().forward(x)

        def register_forward_hook(self, *arguments, **named):
            seen.append(self)
            return super().register_forward_hook(*arguments, **named)

    model = Own(8, 4)
    sp.diff(Own(8, 4), model, torch.randn(4, 8))
    assert seen
    assert not any(module is model for module in seen)


def test_ties_and_copies_are_structure():
    found = sp.diff(models.GPT, lambda: models.GPT(tied=True), models.ids())
    assert any("one tensor in B and 2 in A" in line for line in found.structure)
    found = sp.diff(models.Encoder(True), models.Encoder(False), torch.randn(2, 4, models.WIDTH))
    assert any("identical numbers in A alone" in line for line in found.structure)


class Attention(nn.Module):
    """Query and value, and an output projection that belongs to it or to its owner."""

    def __init__(self, owns_output):
        super().__init__()
        self.query, self.value = nn.Linear(16, 16), nn.Linear(16, 16)
        if owns_output:
            self.out = nn.Linear(16, 16)

    def forward(self, x):
        weights = torch.softmax(self.query(x) @ x.mT, -1) @ self.value(x)
        return self.out(weights) if hasattr(self, "out") else weights


class Nested(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.attention = nn.Module()
        self.attention.attention, self.attention.out = Attention(False), nn.Linear(16, 16)
        self.head, self.scale = nn.Linear(16, 4), scale

    def forward(self, x):
        return self.head(self.scale * self.attention.out(self.attention.attention(x)))


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = Attention(True), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.attention(x))


def test_modules_that_hold_other_parts_are_not_compared():
    """As `ViTAttention` of transformers 4 and 5: one module's output is another's before its projection."""
    batch = torch.randn(2, 6, 16)
    assert sp.diff(Flat, Nested, batch).equal
    scaled = sp.diff(Flat, lambda: Nested(scale=0.5), batch)
    assert not scaled.equal
    assert any("with the same weights head has" in line for line in scaled.structure)


def test_code_that_differs_is_no_difference_of_weights():
    found = sp.diff(lambda: models.Scaled(1.0), lambda: models.Scaled(8.0), models.ids())
    assert not found.differing
    assert "with the same weights out has" in found.verdict


def test_meta_build(net):
    found = sp.diff(f"{net}:Net", meta=True)
    assert found.culprit == "head.weight"
    assert sp.diff(models.GPT, meta=True, batch=models.ids()).equal
    bare = sp.diff(lambda: models.Bare(False), meta=True)
    assert bare.culprit == "inv_freq"
    assert "uninitialized" in bare.verdict


def test_another_interpreter(net):
    assert sp.diff(f"{net}:Net", python=sys.executable).equal
    found = sp.diff(f"{net}:Net(std=0.1)", f"{net}:Net", python=sys.executable)
    assert found.culprit == "head.weight"
    assert found.meta["versions_b"]["torch"] == torch.__version__


def test_a_model_that_another_interpreter_cannot_run_is_told(tmp_path):
    """Its parameters are compared; that its code was not is said with the reason."""
    words = [
        "import sys",
        "from torch import nn",
        "class Net(nn.Linear):",
        "    def __init__(self):",
        "        super().__init__(8, 8)",
        "    def forward(self, x):",
        "        if 'sigprop' not in sys.modules:",
        "            raise TypeError('no kernel here')",
        "        return super().forward(x)",
    ]
    (tmp_path / "net.py").write_text("\n".join(words))
    found = sp.diff(f"{tmp_path}/net.py:Net", batch=torch.randn(4, 8), python=sys.executable)
    assert found.equal
    told = "that both compute the same was not looked at: TypeError: no kernel here"
    assert told in found.summary()


def test_json_both_ways():
    found = sp.diff(models.GPT, lambda: models.GPT(std=0.1), models.ids())
    again = InitDiff.from_json(found.to_json())
    assert again.verdict == found.verdict
    assert json.loads(found.to_json())["equal"] is False


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sp.diff(models.GPT), "needs a second model"),
        (lambda: sp.diff(models.GPT, lambda: nn.Linear(7, 3)), "share 2 of 64 and 2 parameters"),
        (lambda: sp.diff(models.GPT(), meta=True), "needs a function"),
        (lambda: sp.diff("net.py:Net", python="/no/such/python"), "no file at net.py"),
        (lambda: sp.diff(models.GPT, python=sys.executable), "as text"),
    ],
)
def test_bad_input_is_one_line(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sample", [torch.randn, torch.rand])
@pytest.mark.parametrize("size", [(3,), (40,), (700,), (64, 64)])
def test_no_false_alarm_at_any_size(sample, size):
    generator = torch.Generator().manual_seed(0)
    drawn = [sample_of(sample(*size, generator=generator)) for _ in range(120)]
    chances = [compared(one, other).smallest[1] for one, other in itertools.pairwise(drawn)]
    assert min(chances) > 1e-6
    doubled = sample_of(3.0 * sample(64, 64, generator=generator))
    assert compared(sample_of(sample(64, 64, generator=generator)), doubled).smallest[1] < 1e-12

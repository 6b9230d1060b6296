"""Partial Jacobians against the full matrix, computed by autograd."""

import math
import sys

import pytest
import torch
from torch import nn

from sigprop.errors import InputError, UnknownNameError, UnsupportedError
from sigprop.measurement import jacobian, jacobian_profile
from sigprop.measurement.jacobian import signs
from sigprop.models import build


def perceptron(**settings):
    torch.manual_seed(0)
    return build("mlp", **{"inputs": 6, "width": 12, "depth": 4, "outputs": 3, "activation": "tanh", **settings})


def full(function, x):
    """|J|_F^2 / outputs from the whole matrix."""
    matrix = torch.autograd.functional.jacobian(function, x)
    outputs = math.prod(function(x).shape)
    return float(matrix.double().square().sum()) / outputs


def test_profile_is_exact_when_small():
    model, x = perceptron(mu=0.5), torch.randn(3, 6)
    found = jacobian_profile(model, x)
    h = model.blocks[0](model.input(x)).detach()
    for row, block in zip(found, model.blocks[1:], strict=True):
        assert row.exact
        assert row.standard_error == 0
        assert row.value == pytest.approx(full(block, h), rel=1e-5)
        h = block(h).detach()
    assert [row.target for row in found] == ["blocks.1", "blocks.2", "blocks.3"]


def test_probes_meet_the_exact_value():
    model, x = perceptron(), torch.randn(5, 6)
    exact = {row.target: row.value for row in jacobian_profile(model, x)}
    for row in jacobian_profile(model, x, probes=200):
        assert not row.exact
        assert 0 < row.standard_error < 0.1 * row.value
        assert abs(row.value - exact[row.target]) < 5 * row.standard_error


def test_between_two_sites_takes_every_path():
    torch.manual_seed(0)
    model = build("transformer", vocabulary=11, context=4, width=8, depth=3, heads=2).double()
    tokens = torch.arange(4)[None]
    found = jacobian(model, tokens, ("blocks.0", "blocks.2"))
    h = model.blocks[0](model.embed(tokens)).detach()
    exact = full(lambda x: model.blocks[2](model.blocks[1](x)), h)
    assert found.exact
    assert found.value == pytest.approx(exact, rel=1e-9)
    inner = jacobian(model, tokens, ("blocks.1.attention_norm", "blocks.1.attention.value"))
    matrix = model.blocks[1].attention.value.weight.detach()
    assert inner.value == pytest.approx(float(matrix.square().sum()) / 8, rel=1e-9)


def test_from_one_layer_to_all_later_ones():
    model, x = perceptron(), torch.randn(4, 6)
    found = jacobian_profile(model, x, start="blocks.0", probes=300)
    assert [row.target for row in found] == ["blocks.1", "blocks.2", "blocks.3"]
    for row in found:
        exact = jacobian(model, x, ("blocks.0", row.target))
        assert abs(row.value - exact.value) < 5 * row.standard_error


def test_attention_in_forward_mode():
    torch.manual_seed(0)
    model = build("transformer", vocabulary=11, context=8, width=8, depth=3, heads=2)
    tokens = torch.arange(8)[None]
    rows = jacobian_profile(model, tokens, start="blocks.0", probes=300)
    exact = jacobian(model, tokens, ("blocks.0", "blocks.2"))
    assert abs(rows[-1].value - exact.value) < 5 * rows[-1].standard_error


def test_a_wrong_gain_shows():
    """At twice the critical weight scale a deep linear net grows by four per layer."""
    x = torch.randn(8, 6)
    values = [row.value for row in jacobian_profile(perceptron(activation="linear", sigma_w=2.0), x)]
    width = 12
    assert abs(sum(values) / len(values) / 4 - 1) < 5 * math.sqrt(2 / (len(values) * width**2))


def test_blocks_are_found_and_may_be_named():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=3, n_embd=8, n_head=2, vocab_size=11, n_positions=8)
    model = transformers.GPT2LMHeadModel(config).eval()
    tokens = {"input_ids": torch.arange(8)[None]}
    assert [row.source for row in jacobian_profile(model, tokens, probes=2)] == ["transformer.h.0", "transformer.h.1"]
    named = jacobian_profile(model, tokens, blocks=["transformer.h.*.mlp"], probes=2)
    assert [row.target for row in named] == ["transformer.h.1.mlp", "transformer.h.2.mlp"]


def test_seeds_repeat():
    model, x = perceptron(), torch.randn(40, 6)
    assert jacobian_profile(model, x, probes=3) == jacobian_profile(model, x, probes=3)
    assert jacobian_profile(model, x, probes=3) != jacobian_profile(model, x, probes=3, seed=1)


@pytest.mark.parametrize("probes", [None, 3])
def test_an_overflowing_signal_is_reported_not_raised(probes):
    """Attention without norms overflows: the blocks before it keep their numbers, the others say inf or nan."""
    torch.manual_seed(0)
    model = build("transformer", vocabulary=11, context=4, width=8, depth=4, heads=2, norm_placement="none")
    tokens = torch.arange(4)[None]
    clean = jacobian_profile(model, tokens, probes=probes)
    with torch.no_grad():
        model.blocks[2].mlp.down.weight.fill_(1e30)
        model.blocks[3].mlp.up.weight.fill_(1e30)
    found = jacobian_profile(model, tokens, probes=probes)
    assert found[0] == clean[0]
    assert [math.isfinite(row.value) for row in found] == [True, True, False]
    assert math.isnan(found[2].standard_error)
    later = jacobian_profile(model, tokens, start="blocks.0", probes=2)
    assert [math.isfinite(row.value) for row in later] == [True, True, False]


class ThroughNumpy(torch.autograd.Function):
    """A backward pass that takes one vector at a time, as hand-written kernels do."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return torch.from_numpy(2 * gradient.numpy())


@pytest.mark.parametrize("probes", [None, 3])
def test_a_backward_pass_that_cannot_be_batched(probes):
    class Doubled(nn.Module):
        def forward(self, x):
            return ThroughNumpy.apply(x)

    model = nn.Sequential(*[Doubled() for _ in range(3)])
    found = jacobian_profile(model, torch.randn(2, 6), probes=probes)
    assert [row.value for row in found] == pytest.approx([4.0, 4.0], rel=1e-12)


def test_a_block_that_ignores_its_input():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.ones(6))

        def forward(self, x):
            return self.value.expand(len(x), -1)

    model = nn.Sequential(*[Constant() for _ in range(3)])
    assert [row.value for row in jacobian_profile(model, torch.randn(2, 6), probes=3)] == [0.0, 0.0]


def test_chunks_of_probes_do_not_show(monkeypatch):
    model, x = perceptron(), torch.randn(5, 6)
    exact, sampled = jacobian_profile(model, x), jacobian_profile(model, x, probes=7)
    monkeypatch.setattr(sys.modules[signs.__module__], "CHUNK_ENTRIES", 400)
    for cut, whole in zip(jacobian_profile(model, x), exact, strict=True):
        assert cut.value == pytest.approx(whole.value, rel=1e-6)
    for cut, whole in zip(jacobian_profile(model, x, probes=7), sampled, strict=True):
        assert abs(cut.value - whole.value) < 5 * math.hypot(cut.standard_error, whole.standard_error)


def test_errors():
    model, x = perceptron(), torch.randn(2, 6)
    with pytest.raises(UnknownNameError, match=r"blocks\.0"):
        jacobian(model, x, ("block.0", "blocks.1"))
    with pytest.raises(InputError, match="probes"):
        jacobian(model, x, ("blocks.0", "blocks.1"), probes=0)
    with pytest.raises(InputError, match="no list of like blocks"):
        jacobian_profile(nn.Linear(6, 6), x)
    with pytest.raises(InputError, match="no block runs after"):
        jacobian_profile(model, x, start="head", probes=1)
    shared = nn.Linear(6, 6)
    with pytest.raises(UnsupportedError, match="more than once"):
        jacobian(nn.Sequential(shared, nn.Tanh(), shared), x, ("0", "1"))

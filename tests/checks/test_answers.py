"""What is said of models with one known fault: the right finding, the cause that was shown, and a fix that works."""

import math

import pytest
import torch
from torch import nn

from sigprop.checks import checks
from sigprop.checks.evaluation import Experiment
from sigprop.checks.prescribing import prescribe
from sigprop.checks.subject import Subject
from tests.checks import planted


def examined(model, batch):
    experiment = Experiment(model, batch)
    return Subject(model, batch, measured=experiment.measured(), evaluation=experiment)


def code_of(finding):
    return "" if finding.prescription is None else finding.prescription.code


def answered(model, batch):
    """Findings with what was tried, from the measurement alone."""
    subject = examined(model, batch)
    found = [item for kind in checks().values() for item in kind(subject)]
    return {item.name: item for item in reversed(prescribe(subject, found).findings) if item.severity != "note"}


PLANTED = {
    "inverted_mask": ("non_finite_signal", "queries see no key", ""),
    "adapters_of_zeros": ("no_gradient", "h.{0..3}.qkv.A are zero", "model.h[i].qkv.A"),
    "contrastive_scale": ("initial_loss", "logit_scale starts at 10", "nn.init.constant_(model.logit_scale, 2.659)"),
    "weight_norm_gain_of_zero": ("ignores_input", "layers.12.parametrizations.weight.original0 is", "original0, 1)"),
    "forget_gates_shut": ("gates_shut", "keeps that share of the memory", "model.lstm.bias_ih_l0.data[32:64], 1)"),
    "dropout_of_nearly_all": ("dropout", "Dropout leaves 0.01", "model.layers[i][3].p = 0.01"),
    "epsilon_of_100": ("norm_epsilon", "divide by their epsilon, 100", "model.layers[i][1].eps = 1e-05"),
    "two_experts_take_all": ("router_collapse", "router.bias", "nn.init.constant_(model.router.bias, 0)"),
    "adapters_of_noise": ("adapters", "neither factor is zero", "nn.init.constant_(model.h[i].qkv.B, 0)"),
    "norm_without_root": ("norm_output", "divides by the mean square of what it reads, not by its root", ""),
    "gains_around_zero": ("norm_output", "start around 0, with std", "nn.init.constant_(model.h[i].ln_1.weight, 1)"),
    "chaotic_chain": ("rounding", "Differences grow", ""),
    "fixed_positions": ("embedding_scale", "times the scale of their positions", "nn.init.normal_(model.wte.weight"),
    "summed_loss": ("initial_loss", "Nothing divides it", ""),
    "inverted_padding": ("attention_masks", "it is inverted", ""),
    "norm_of_one_number": ("ignores_input", "`group_norm` in norm makes the same", ""),
    "softmax_of_a_softmax": ("loss_inputs", "nearly uniform", ""),
    "far_targets": ("initial_loss", "to grow by that factor first", ""),
    "magnitudes_of_forty": ("large_gain", "of which 0.magnitude starts at 40", "model[0].magnitude.data.mul_(0.025)"),
    "turned_temperature": ("initial_loss", "products of image.2", ""),
    "gain_of_zero_before_a_square": ("no_gradient", "{0..2}.gain are zero", "model[i].gain, 1)"),
}  # fmt: skip


def test_an_output_that_is_the_rounding_of_a_norm_over_one_number_is_no_chaos():
    torch.manual_seed(0)
    model, batch = planted.norm_of_one_number()
    nn.init.zeros_(model.fc.bias)
    found = answered(model, batch)
    assert "`group_norm` in norm" in found["ignores_input"].cause
    assert "rounding" not in found


@pytest.mark.parametrize("name", PLANTED)
def test_the_fault_its_cause_and_its_line_are_named(name):
    torch.manual_seed(0)
    finding, cause, code = PLANTED[name]
    model, batch = getattr(planted, name)()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = answered(model, batch)
    assert finding in found, list(found)
    assert cause in found[finding].cause
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if value.isfinite().all())
    if code:
        assert code in code_of(found[finding])
        exec(code_of(found[finding]), {"model": model, "nn": nn, "range": range})
        assert not answered(model, batch)


def test_what_is_right_of_the_same_kind_is_not_accused():
    torch.manual_seed(0)
    assert "norm_output" not in answered(*planted.norm_without_root(power=0.5))
    assert "norm_output" not in answered(*planted.gains_around_zero(mean=1.0))
    assert "norm_output" not in answered(*planted.gains_around_zero(mean=0.0, plus=1.0))
    assert "rounding" not in answered(*planted.chaotic_chain(std=1.0))
    assert "embedding_scale" not in answered(*planted.fixed_positions(factor=30.0))
    assert "attention_masks" not in answered(*planted.inverted_padding(shown=True))
    assert "norm_output" not in answered(*planted.norm_of_one_number(groups=4))
    assert "initial_loss" not in answered(*planted.far_targets(size=1.0))
    assert "large_gain" not in answered(*planted.magnitudes_of_forty(magnitude=1.0))
    assert "initial_loss" not in answered(*planted.turned_temperature(turned=False))
    adapted, batch = planted.adapters_of_noise()
    torch.nn.init.zeros_(adapted.h[0].qkv.B)
    for block in adapted.h:
        nn.init.zeros_(block.qkv.B)
    assert "adapters" not in answered(adapted, batch)


def test_visits_of_one_block_are_told_to_add_coherently():
    """One block, twelve times: its branch is the same matrix at every visit."""

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.block = nn.Embedding(64, 32), planted.Block(32, 4)

        def forward(self, x):
            x = self.table(x)
            for _ in range(20):
                x = self.block(x)
            return x

    torch.manual_seed(0)
    found = list(checks()["stream_growth"](examined(Loop(), planted.ids())))
    assert any("visits of" in item.title and item.severity == "note" for item in found)


def test_one_std_for_all_matrices_is_a_rule_by_one_of_their_sizes():
    """0.125 is 1/sqrt(64) for those that read 64 numbers, and twice that for the one that reads 256."""
    torch.manual_seed(0)
    for std, accused in ((0.125, True), (0.02, False)):
        model = planted.GPT(width=64, causal=planted.upper)
        for item in model.parameters():
            if item.dim() == 2:
                nn.init.normal_(item, 0.0, std)
        found = list(checks()["fans_swapped"](Subject(model, (planted.ids(), planted.ids(seed=1)))))
        assert bool(found) == accused
        assert all("out.weight" in name and name.startswith("h.") for item in found for name in item.parameters)
        assert all(item.severity == "note" for item in found)


def test_layers_of_one_recurrent_module_show_their_gradients():
    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.RNN(32, 32, 10, batch_first=True), nn.Linear(32, 8)
            for name, item in self.rnn.named_parameters():
                if "weight_ih" in name:
                    nn.init.normal_(item, 0.0, 0.02)

        def forward(self, x):
            return self.out(self.rnn(x)[0])

    torch.manual_seed(0)
    found = answered(Stack(), torch.randn(4, 6, 32))["gradient_vanishes"]
    assert "rnn.weight_ih_l*" in found.title
    assert "nn.init.normal_(model.rnn.weight_ih_l1" in code_of(found)


def test_every_other_finding_of_one_cause_names_that_cause():
    """An epsilon of 100 also makes gradients vanish and the output constant: no layer's std is accused of it."""
    torch.manual_seed(0)
    found = answered(*planted.epsilon_of_100())
    assert {"gradient_vanishes", "ignores_input"} <= set(found)
    assert len({code_of(item) for item in found.values()}) == 1


def test_attention_without_skips_makes_all_positions_equal():
    torch.manual_seed(0)
    assert "equal_positions" in answered(*planted.attention_without_skips())


def test_the_missing_score_scale_is_the_fix_and_no_recipe():
    torch.manual_seed(0)
    found = answered(*planted.missing_score_scale())["attention_saturated"]
    assert "1/sqrt(64) is missing" in found.cause
    assert "model.h[i].scale = 0.125" in code_of(found)
    assert found.prescription is not None
    assert found.prescription.after < found.prescription.before / 30


@pytest.mark.parametrize("count", [1, 3, 4, 6, 9, 11])
def test_two_groups_are_both_named_with_their_rules(count):
    torch.manual_seed(0)
    model, batch = planted.depth_scaling_forgotten(count)
    subject = Subject(model, batch)
    (found,) = checks()["odd_sibling"](subject)
    first, last = 12 - count, 11
    odd = f"h.{first}." if count == 1 else f"h.{{{first}..{last}}}."
    usual = "h.0." if count == 11 else f"h.{{0..{first - 1}}}."
    assert odd in found.title
    assert usual in found.title
    assert "0.02 / sqrt(2 L), the depth scaling" in found.title
    assert all(int(name.split(".")[1]) >= first for name in found.parameters)
    assert all(int(name.split(".")[1]) >= first for name in found.edits[0].inits)


def test_two_halves_without_a_rule_are_named_and_neither_is_changed():
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64) for _ in range(6)]
    for place, layer in enumerate(layers):
        nn.init.normal_(layer.weight, 0.0, 0.1 if place < 3 else 0.3)
    model = nn.Sequential(*layers)
    (found,) = checks()["odd_sibling"](Subject(model, torch.randn(4, 64)))
    assert "Neither follows a known rule" in found.cause
    assert not found.edits


def test_a_constant_bias_is_no_excess_of_the_loss():
    """RetinaNet's focal head: every class starts at probability 0.01, and the loss at 0.0099."""
    assert "initial_loss" not in answered(*planted.focal_head())


def test_labels_that_equal_the_inputs_do_not_hide_large_logits():
    """A tied table of std 1: the loss of tokens that are in the input is small, that of all others is not."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(64, 256), nn.LayerNorm(256)

        def forward(self, x, labels):
            logits = self.norm(self.table(x)) @ self.table.weight.T
            return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    torch.manual_seed(0)
    ids = planted.ids()
    found = answered(Tied(), (ids, ids))
    assert found.keys() & {"initial_loss", "tied_readout"}
    assert "nn.init.normal_(model.table.weight, std=0.02)" in [code_of(item) for item in found.values()]


def test_what_was_tried_in_vain_is_said():
    """A frozen detach: nothing among the weights explains it."""

    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.gain = nn.Linear(16, 16), nn.Parameter(torch.zeros(16))
            self.last = nn.Linear(16, 16)

        def forward(self, x):
            return self.last(self.first(x) * 0.0 + x) + 0.0 * self.gain

    torch.manual_seed(0)
    found = answered(Detached(), torch.randn(32, 16))["no_gradient"]
    assert "Ruled out" in found.cause
    assert "gain" in found.cause
    assert not code_of(found)


def test_gates_that_change_nothing_are_a_note():
    """nanochat starts a gate at a positive mean on purpose: without it the output moves by a thousandth."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.gate = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)
            nn.init.uniform_(self.gate.weight, 0.0, 0.02)

        def forward(self, x):
            return self.main(x) * (1 + 0.05 * torch.sigmoid(self.gate(x)))

    torch.manual_seed(0)
    model, batch = Gated(), torch.randn(32, 64)
    subject = examined(model, batch)
    (found,) = checks()["nonzero_mean"](subject)
    assert found.severity == "note"
    assert math.isfinite(found.evidence[0].value)


def test_branches_that_add_nothing_are_a_finding():
    """DyT with an embedding of std 0.02: every branch adds less than bf16 can hold, and a larger table mends it."""
    torch.manual_seed(0)
    found = answered(*planted.branches_that_add_nothing())["branch_share"]
    assert "of 5 branches add next to nothing" in found.title or "of 6 branches" in found.title
    assert "nn.init.normal_(model.embedding.weight, std=1)" in code_of(found)


def test_a_scale_that_starts_small_on_purpose_is_none():
    class LayerScale(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
            self.scales = nn.ParameterList(nn.Parameter(torch.full((32,), 1e-5)) for _ in range(4))

        def forward(self, x):
            for layer, scale in zip(self.layers, self.scales, strict=True):
                x = x + scale * layer(x)
            return x

    torch.manual_seed(0)
    assert "branch_share" not in answered(LayerScale(), torch.randn(32, 32))

"""What is seen in the functions of one pass, and where gradients end: one small model for each."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.checks.ends import BROKEN, gradient_ends
from sigprop.checks.influence import influence
from sigprop.checks.observation import observe
from tests.checks.test_answers import answered, code_of

X = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))
IDS = torch.randint(32, (2, 12), generator=torch.Generator().manual_seed(0))


class Made(nn.Module):
    """A matrix, and what is done with its output and the parameter `extra`."""

    def __init__(self, act: Any, extra: float = 0.0, size: int = 1):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.act: Any = act
        self.extra = nn.Parameter(torch.full((size,), extra))

    def forward(self, x):
        return self.act(self.first(x), self.extra)


class Masked(nn.Module):
    """One attention over ids, with a loss of the next token."""

    def __init__(self, see: Any):
        super().__init__()
        self.wte, self.qkv, self.head = nn.Embedding(32, 16), nn.Linear(16, 48), nn.Linear(16, 32)
        self.see: Any = see

    def forward(self, ids, targets):
        query, key, value = self.qkv(self.wte(ids)).chunk(3, -1)
        mask = self.see(torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool))
        logits = self.head(self.wte(ids) + F.scaled_dot_product_attention(query, key, value, mask))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def influenced(model, batch):
    return influence(model, batch, observe(model, batch), None)


TEXT = {"ids": IDS[:, :-1], "targets": IDS[:, 1:]}


def wide(factor):
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    with torch.no_grad():
        model[2].weight.mul_(factor)
    return model


OPERATIONS = {
    "attention_masks": (lambda: Masked(torch.triu), TEXT, "attends to itself and to the future", "transposed", ""),
    "large_gain": (lambda: wide(100.0), X, "2.weight", "multiplies the variance", "model[2].weight"),
    "input_scale": (lambda: wide(1.0), 250 * X, "root mean square", "enters as it is", "model[0].weight"),
    "exponent": (lambda: Made(lambda h, s: h * s.exp(), -12.0), X, "reads -12", "extra", "model.extra"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_a_function_is_given_is_found_with_its_cause_and_line(name):
    torch.manual_seed(0)
    make, batch, title, cause, code = OPERATIONS[name]
    found = answered(make(), batch)
    assert name in found, list(found)
    assert title in found[name].title
    assert cause in found[name].cause
    assert code in code_of(found[name])


ENDS = {
    "a number of zero": (lambda h, e: h + 0.0 * (h * e), "extra", "multiplies by the number 0"),
    "a parameter of zeros": (lambda h, e: h.detach() * e, "first.weight", "`detach` in the model"),
    "one class": (lambda h, e: (h[:, :1] * e).softmax(-1), "first.weight", "single class"),
    "dead units": (lambda h, e: F.relu(h - 1e3) + e, "first.weight", "no slope"),
    "a choice, beside a detached loss": (
        lambda h, e: e * h.argmax(-1) + h.detach().sum(-1),
        "first.weight",
        "`argmax`",
    ),
    "data": (lambda h, e: h + e.data, "extra", ".data"),
    "an exponential that underflows": (lambda h, e: h + (-200 * e).exp(), "extra", "`exp` in the model has no slope"),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_function_at_which_gradients_end_is_named(name):
    torch.manual_seed(0)
    act, parameter, why = ENDS[name]
    states, ends = gradient_ends(Made(act, 1.0), X, None)
    assert states[parameter] != "alive"
    assert why in ends[parameter].why


def test_a_gradient_that_is_not_finite_is_not_called_absent():
    torch.manual_seed(0)
    model = Made(lambda h, e: (h - h).square().sum(-1).sqrt().sum() * e.sum())
    assert gradient_ends(model, X, None)[0]["first.weight"] == BROKEN
    found = answered(model, X)
    assert "no_gradient" not in found
    assert "`sqrt` in the model" in found["non_finite_signal"].cause


def test_the_fill_of_a_mask_does_not_hide_that_the_output_depends_on_the_input():
    class Pairs(Made):
        def forward(self, x):
            h = F.normalize(self.first(x), dim=-1)
            logits = (h @ h.T).masked_fill(torch.eye(len(h), dtype=torch.bool), -1e9)
            return F.cross_entropy(logits, torch.arange(len(h)).roll(1))

    torch.manual_seed(0)
    assert observe(Pairs(None), X).answer > 0.1


def test_losses_are_compared_with_those_of_zeros_and_probabilities_are_no_logits():
    torch.manual_seed(0)
    loud = answered(Made(lambda h, e: F.binary_cross_entropy_with_logits(100 * h, (h > 0).float().flip(0))), X)
    assert "an output of zeros gets 0.693" in loud["initial_loss"].title
    labels = torch.arange(32) % 16
    twice = answered(Made(lambda h, e: F.cross_entropy(h.softmax(-1), labels)), X)
    assert "given what a softmax has made" in twice["loss_inputs"].title
    squashed = answered(Made(lambda h, e: F.binary_cross_entropy_with_logits(h.sigmoid().view(-1), torch.ones(512))), X)
    assert "`binary_cross_entropy_with_logits` in (model)" in squashed["loss_inputs"].title
    for axis, total in ((1, None), (0, "sum to")):
        columns = Made(lambda h, e, axis=axis: F.nll_loss(h.log_softmax(axis), labels))
        assert ("loss_inputs" in answered(columns, X)) == (total is not None)
    spread = answered(Made(lambda h, e: F.mse_loss(h[:, :1], h[:, 1].detach())), X)
    assert "shape (32, 1) with targets of shape (32,)" in spread["loss_inputs"].title
    ignored = answered(Made(lambda h, e: F.cross_entropy(h, torch.full((32,), -100))), X)
    assert "Every label" in ignored["non_finite_signal"].cause


def test_a_leak_is_seen_only_where_targets_are_the_next_tokens():
    torch.manual_seed(0)
    assert "see the token" in answered(Masked(lambda mask: mask), TEXT)["wrong_influence"].title
    assert influenced(Masked(torch.tril), TEXT).seen == 0.0
    assert influenced(Masked(lambda mask: mask), {"ids": IDS, "targets": IDS.roll(3, 1)}).seen == 0.0


class Read(nn.Module):
    """What is made of a batch of sequences (and of a step) before the output."""

    def __init__(self, made: Any):
        super().__init__()
        self.enter, self.leave, self.made = nn.Linear(8, 16), nn.Linear(16, 5), made

    def forward(self, x, t):
        return self.leave(self.made(self.enter(x), t.float()))


STEPS = {"x": torch.randn(4, 24, 8, generator=torch.Generator().manual_seed(1)), "t": torch.arange(4) * 200}
ZERO = nn.Parameter(torch.zeros(()))
INFLUENCES = {
    "an input that is rounded away": (lambda h, t: h + (t // 1000)[:, None, None], "no_influence", "floordiv"),
    "an input that nothing reads": (lambda h, t: h, "no_influence", "Nothing that is computed reads"),
    "places that come after the one that is read": (lambda h, t: h[:, 0] + t[:, None], "no_influence", "has not seen"),
    "a softmax over the batch": (lambda h, t: h.softmax(0) * t[:, None, None], "wrong_influence", "`softmax` in the"),
    "nothing that is wrong": (lambda h, t: h.softmax(1) + (t / 1000)[:, None, None], "", ""),
    "examples that are averaged": (lambda h, t: h - h.mean(0) + (t > 0)[:, None, None], "", ""),
    "a step that a zero hides until it has moved": (lambda h, t: h + ZERO * t[:, None, None], "", ""),
}


@pytest.mark.parametrize("name", INFLUENCES)
def test_inputs_places_and_examples_that_change_nothing_or_one_another_are_found(name):
    made, kind, cause = INFLUENCES[name]
    torch.manual_seed(0)
    found = answered(Read(made), STEPS)
    assert {"no_influence", "wrong_influence"} & set(found) == ({kind} if kind else set())
    if kind:
        assert cause in found[kind].cause


def test_rows_that_nothing_is_sent_to_are_counted():
    class Graph(Made):
        def forward(self, x):
            h = self.first(x)
            return torch.zeros_like(h).index_add(0, torch.arange(32) % 8, h) + 1.0

    torch.manual_seed(0)
    assert "24 of 32 rows" in answered(Graph(None), X)["no_influence"].title


def test_labels_that_are_the_input_are_told_of_a_model_that_sees_no_later_token_and_of_no_other():
    torch.manual_seed(0)
    copied = {"ids": IDS, "targets": IDS}
    assert "each at its own place" in answered(Masked(torch.tril), copied)["wrong_influence"].title
    assert "wrong_influence" not in answered(Masked(lambda mask: mask), copied)
    assert "wrong_influence" not in answered(Masked(torch.tril), TEXT)


def test_frozen_weights_that_a_factor_of_zero_silences_are_named_with_it():
    class Scaled(nn.Module):
        def __init__(self, start, called=True):
            super().__init__()
            self.base, self.factor, self.called = nn.Linear(16, 16), nn.Parameter(torch.full((16,), start)), called

        def forward(self, x):
            return x + (self.base(x) if self.called else x) * self.factor

    def adapted(*settings):
        torch.manual_seed(0)
        model = nn.Sequential(Scaled(*settings), Scaled(*settings), nn.Linear(16, 4))
        for name, item in model.named_parameters():
            item.requires_grad_("factor" in name)
        return answered(model, X)

    assert "model[i].factor, 1)" in code_of(adapted(0.0)["frozen_silenced"])
    assert "Nothing reads them" in adapted(1.0, False)["frozen_silenced"].cause
    assert "frozen_silenced" not in adapted(1.0)


def test_noise_of_training_is_told_from_noise_of_sampling():
    class Dropped(Made):
        def forward(self, x):
            keep = torch.rand(len(x), 1) < 0.03 if self.training else torch.ones(len(x), 1)
            return self.first(x) * keep / 0.03

    torch.manual_seed(0)
    assert observe(Dropped(None), X).noise > 0.8
    sampled = Made(lambda h, e: h + 30 * torch.randn_like(h))
    assert observe(sampled, X).noise == 0.0
    assert observe(Dropped(None).eval(), X).noise == 0.0


@pytest.mark.parametrize(("kind", "place", "gate"), [(nn.LSTM, 0, "input gate"), (nn.GRU, 1, "update gate")])
def test_gates_of_recurrent_layers_are_seen(kind, place, gate):
    torch.manual_seed(0)
    model, x = kind(16, 16, batch_first=True), torch.randn(4, 6, 16)
    assert "gates_shut" not in answered(model, x)
    with torch.no_grad():
        model.bias_ih_l0[place * 16 : place * 16 + 16] = 25.0 if kind is nn.GRU else -25.0
    found = answered(model, x)["gates_shut"]
    assert gate in found.title
    assert f"[{place * 16}:{place * 16 + 16}], 0)" in code_of(found)


def test_scores_that_a_bias_sets_are_told_from_saturated_ones():
    class Biased(Masked):
        def forward(self, ids, targets):
            x = self.wte(ids)
            query, key, _ = self.qkv(x).chunk(3, -1)
            ramp = torch.arange(ids.shape[1], dtype=torch.float32)
            weights = (query @ key.mT + 3.0 * ramp).softmax(-1)
            return F.cross_entropy(self.head(weights @ x).flatten(0, 1), targets.flatten())

    torch.manual_seed(0)
    (share,) = observe(Biased(None), TEXT).fixed.values()
    assert share > 0.9


def test_vectors_of_zeros_cannot_be_normalized():
    torch.manual_seed(0)
    model = Made(lambda h, e: F.normalize(h, dim=-1))
    with torch.no_grad():
        for weight in model.first.parameters():
            weight.zero_()
    found = answered(model, X)["norm_epsilon"]
    assert "normalizes vectors that are zero" in found.title
    assert math.isfinite(found.evidence[0].value)


def test_choices_that_are_padded_with_a_large_negative_number_are_not_saturated():
    """Block choices of native sparse attention: most are closed with -1e3."""
    closed = torch.zeros(16).index_fill_(0, torch.arange(8, 16), -1e3)
    torch.manual_seed(0)
    model = Made(lambda h, e: (h + closed).softmax(-1) @ torch.eye(16))
    (choice,) = observe(model, X).softmaxes.values()
    assert choice.options == 8
    assert choice.variance < 2
    assert "attention_saturated" not in answered(model, X)

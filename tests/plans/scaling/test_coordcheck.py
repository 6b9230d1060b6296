"""The coordinate check passes muP, fails the standard parametrization, and names each planted mistake."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.errors import InputError
from sigprop.models import build
from sigprop.plans.scaling import coord_check, coordcheck
from sigprop.plans.scaling import plan as prescribe
from sigprop.plans.scaling.dimensions import compare
from sigprop.plans.scaling.expectations import error_of_two_parts, fit_exponent
from sigprop.plans.scaling.model_and_base import ModelAndBase, read_model_and_base
from sigprop.results import Init

WIDTHS = [32, 64, 128, 256]


def gpt(tied=False):
    def make(width, depth=2):
        model = build("transformer", vocabulary=64, context=32, width=width, depth=depth, heads=4, tied_head=tied)
        if tied:
            nn.init.normal_(model.token_embedding.weight, 0.0, 0.1)
        return model

    return make


def tokens():
    return torch.randint(0, 64, (4, 32), generator=torch.Generator().manual_seed(0))


def check(plan, make=None, widths=WIDTHS, **options):
    options = {"batch": tokens(), "seeds": 2, "steps": 2, "lr": 1e-2} | options
    return coord_check(make or gpt(), widths, plan=plan, **options)


def test_mup_passes_and_standard_fails():
    good, bad = check("mup"), check(None)
    assert good.passed
    assert good.culprits == []
    assert not bad.passed
    change = bad.find("output", "change", 1)
    assert change.low > 0.3
    assert {item.cause for item in bad.culprits} >= {"learning rate"}


@pytest.mark.parametrize(
    "optimizer", ["sgd", "momentum", "adam", "adafactor", "lion", "muon:shape", "muon:unit", "muon:none"]
)
def test_other_optimizers_pass(optimizer):
    lr = {"sgd": 0.05, "lion": 3e-3}.get(optimizer, 0.02 if optimizer[:4] in ("mome", "muon") else 1e-2)
    report = check("mup", optimizer=optimizer, lr=lr)
    assert report.passed, [str(item) for item in report.culprits]


def test_the_rates_of_one_muon_scale_fail_with_another():
    """`muon:rms` updates grow like the root of the width; the rates of `muon:shape` do not take that back."""

    def shape(model, base):
        return prescribe(model, "mup", base=base, optimizer="muon:shape", roles=roles(model))

    wrong, right = (check(plan, optimizer="muon:rms", lr=0.1, seeds=4) for plan in (shape, "mup"))
    assert right.passed, [str(item) for item in right.culprits]
    assert not wrong.passed
    sites = [(report.find("blocks.1.mlp.up", "change", 1)) for report in (wrong, right)]
    assert sites[0].low > sites[1].high


@pytest.mark.parametrize(("recipe", "optimizer", "tied"), [("orthogonal", "lion", False), ("gpt2", "muon:rms", True)])
def test_the_standard_rule_does_not_say_whether_the_readout_aligns(recipe, optimizer, tied):
    """Its logits change by order one if the readout does not align with the features, and by more if it does."""

    def plan(wrong):
        def made(model, base):
            found = sp.plan(model, recipe, width="sp", optimizer=optimizer, base=base, batch=tokens())
            changed = [rate(1.0)(row, model.config.width / 32) if row.name == wrong else row for row in found]
            return replace(found, parameters=changed)

        return made

    options = {"expect": "sp", "optimizer": optimizer, "lr": {"lion": 3e-3}.get(optimizer, 0.02), "seeds": 4}
    right, wrong = (
        check(plan(name), lambda width: gpt(tied)(width, 1), **options) for name in ("", "final_norm.weight")
    )
    assert right.passed, [str(item) for item in right.culprits]
    assert right.find("output", "change", 1).low > 0.15
    assert [(item.name, item.cause) for item in wrong.culprits] == [("final_norm.weight", "learning rate")]


def test_what_follows_an_attention_may_move_as_much_as_its_scores():
    """With a fixed number of heads the scores of the standard rule move by up to width^1/2, and so does what they mix;
    with heads of one size neither grows, and what comes before an attention is held to the rule either way."""

    def plan(wrong):
        def made(model, base):
            found = sp.plan(model, "kaiming", width="sp", base=base, batch=tokens())
            name, growth = "token_embedding.weight", model.config.width / 64
            rows = [replace(row, lr=row.lr * growth) if wrong and row.name == name else row for row in found]
            return replace(found, parameters=rows)

        return made

    def make(fixed):
        return lambda width: build(
            "transformer", vocabulary=64, context=32, width=width, depth=1, heads=2 if fixed else width // 16
        )

    widths, options = [64, 128, 256], {"expect": "sp", "lr": 1e-3, "seeds": 4}
    moved, still = (check(plan(False), make(fixed), widths, **options) for fixed in (True, False))
    assert moved.passed, [str(item) for item in moved.culprits]
    assert still.passed, [str(item) for item in still.culprits]
    site = ("blocks.0.attention.output", "change", 1)
    assert moved.find(*site).low > 0.2 > still.find(*site).high
    assert (moved.find(*site).at_most, still.find(*site).expected) == (pytest.approx(0.5), pytest.approx(0.0))
    wrong = check(plan(True), make(True), widths, **options)
    assert [(item.name, item.cause) for item in wrong.culprits] == [("token_embedding.weight", "learning rate")]
    assert wrong.find("token_embedding", "change", 1).expected == pytest.approx(0.0)


def roles(model):
    known = {item.name: item.role for item in compare(gpt()(64), gpt()(32))}
    return known if model.config.width == WIDTHS[0] else None


def init(power):
    return lambda row, m: replace(row, init=replace(row.init, value=row.init.value * m**power))


def rate(power):
    return lambda row, m: replace(row, lr=row.lr * m**power)


MISTAKES = {
    "readout init": ("head.weight", init(0.5), "init", 0.5),
    "readout rate": ("head.weight", rate(1.0), "learning rate", 1.0),
    "embedding rate": ("token_embedding.weight", rate(-1.0), "learning rate", -1.0),
    "embedding init": ("token_embedding.weight", init(-0.5), "init", -0.5),
    "hidden rate": ("blocks.1.mlp.up.weight", rate(1.0), "learning rate", 1.0),
    "hidden rate too small": ("blocks.1.mlp.down.weight", rate(-1.0), "learning rate", -1.0),
    "hidden init": ("blocks.0.mlp.down.weight", init(0.5), "init", 0.5),
    "value init": ("blocks.0.attention.value.weight", init(-0.5), "init", -0.5),
    "norm rate": ("final_norm.weight", rate(1.0), "learning rate", 1.0),
    "bias rate": ("blocks.0.mlp.up.bias", rate(0.5), "learning rate", 0.5),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_planted_mistake_is_named(mistake):
    name, change, cause, exponent = MISTAKES[mistake]

    def plan(model, base):
        found = prescribe(model, "mup", base=base)
        ratio = model.config.width / base.config.width
        found.parameters = [change(row, ratio) if row.name == name else row for row in found.parameters]
        return found

    report = check(plan)
    assert not report.passed
    assert [(item.name, item.cause) for item in report.culprits] == [(name, cause)]
    assert report.culprits[0].exponent == pytest.approx(exponent, abs=0.05)


def test_a_missing_attention_scale_is_named():
    """By the attention it belongs to, though it is folded into the query's draw and rate."""
    report = check(lambda model, base: prescribe(model, "mup", base=base, attention="keep"))
    assert not report.passed
    assert {(item.name, item.cause) for item in report.culprits} == {
        ("blocks.0.attention", "attention scale"),
        ("blocks.1.attention", "attention scale"),
    }


@pytest.mark.parametrize("fused", [False, True])
def test_a_missing_attention_scale_is_named_where_biases_start_at_zero(fused):
    """Hugging Face's biases: no draw of theirs can be off, only the rate; a fused matrix carries half of the scale."""

    def make(width):
        model = build("transformer", vocabulary=64, context=32, width=width, depth=1, heads=4, fused_qkv=fused)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        return model

    report = check(with_unscaled_attention, make, widths=[32, 64, 128])
    assert [(item.name, item.cause) for item in report.culprits] == [("blocks.0.attention", "attention scale")]
    assert report.culprits[0].exponent == pytest.approx(0.5, abs=0.05)


class Scaled(nn.Module):
    """Attention with a scale number of its own, between an embedding and a readout."""

    def __init__(self, width, heads=2, order=("q", "k", "v")):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(64, width)
        self.attention = ScaledAttention(width, heads, order)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 64, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.norm(x + self.attention(x)))


class ScaledAttention(nn.Module):
    def __init__(self, width, heads, order):
        super().__init__()
        self.head_dim, self.order = width // heads, order
        self.scaling = self.head_dim**-0.5
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        made = {key: getattr(self, f"{key}_proj")(x).unflatten(-1, (-1, self.head_dim)) for key in self.order}
        q, k, v = (made[key].transpose(1, 2) for key in "qkv")
        return ((q @ k.transpose(-1, -2) * self.scaling).softmax(-1) @ v).transpose(1, 2).flatten(2)


def with_unscaled_attention(model, base):
    return prescribe(model, "mup", base=base, attention="keep")


def without_tied_factor(model, base):
    plan = prescribe(model, "mup", base=base, batch=tokens())
    rows = [replace(row, init=Init("keep"), lr=1.0) if row.name == "final_norm.weight" else row for row in plan]
    return replace(plan, parameters=rows)


def with_fixed_decay(model, base):
    plan = prescribe(model, "mup", base=base, batch=tokens())
    return replace(plan, parameters=[replace(row, weight_decay=1.0) for row in plan])


def test_a_missing_attention_scale_is_named_though_the_module_has_a_number_for_it():
    good = check("mup", Scaled, lr=3e-2)
    assert good.passed, [str(item) for item in good.culprits]
    bad = check(with_unscaled_attention, Scaled, lr=3e-2)
    assert [(item.name, item.cause) for item in bad.culprits] == [("attention", "attention scale")]


def test_an_attention_that_makes_its_queries_last_puts_out_the_size_of_its_values():
    """DINOv2 as transformers wrote it up to 5.17: the queries carry the 1/d, and are not what the module hands on."""
    report = check("mup", lambda width: Scaled(width, order=("k", "v", "q")), lr=3e-2)
    assert report.passed, [str(item) for item in report.culprits]


class Amplified(nn.Module):
    """A module whose own forward multiplies what the module inside puts out."""

    def __init__(self, inner, factor):
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, x):
        return self.factor * self.inner(x)


@pytest.mark.parametrize("where", ["mlp", "attention_norm"])
def test_a_multiplier_in_the_forward_of_a_module_without_parameters_is_named(where):
    """An mlp's output times the root of the width: every weight, update and linear layer inside is right."""

    def make(width, depth=2):
        model = gpt()(width, depth)
        for block in model.blocks:
            setattr(block, where, Amplified(getattr(block, where), (width / 32) ** 0.5))
        return model

    report = check("mup", make, widths=[32, 64, 128])
    assert not report.passed
    assert (report.culprits[0].name, report.culprits[0].cause) == (f"blocks.0.{where}", "forward multiplier")
    assert report.culprits[0].exponent == pytest.approx(0.5, abs=0.05)


def test_a_missing_tied_factor_is_named():
    assert check("mup", gpt(tied=True), lr=2e-2).passed
    bad = check(without_tied_factor, gpt(tied=True), lr=2e-2)
    assert {item.name for item in bad.culprits} == {"final_norm.weight"}


def test_a_wrong_weight_decay_is_named():
    assert check("mup", gpt(), weight_decay=0.1).passed
    bad = check(with_fixed_decay, gpt(), weight_decay=0.1)
    assert {item.cause for item in bad.culprits} == {"weight decay"}
    assert {round(item.exponent, 2) for item in bad.culprits} == {-1.0, -1.5}


def test_a_readout_of_zeros_has_no_exponent_to_judge():
    def zeroed(width):
        model = gpt()(width)
        nn.init.zeros_(model.head.weight)
        return model

    report = check("mup", zeroed)
    assert report.passed, [str(item) for item in report.culprits]


def own_mup(power):
    """A user's own muP: weights drawn in the build, rates in the optimizer."""

    def make(width):
        model = gpt()(width)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            if parameter.ndim > 1 and "embedding" not in name:
                nn.init.normal_(
                    parameter, 0.0, parameter.shape[1] ** -0.5 * (32 / width) ** (0.5 * (name[:4] == "head"))
                )
            if "attention.query" in name:
                parameter.data *= (32 / width) ** 0.5
        return model

    def optimizer(model):
        def rate(name, parameter):
            if parameter.ndim < 2 or "embedding" in name:
                return 1e-2 * (32 / model.config.width) ** (0.5 * ("attention.query" in name))
            return 1e-2 * (32 / model.config.width) ** (power + 0.5 * ("attention.query" in name))

        groups = [{"params": [p], "lr": rate(name, p)} for name, p in model.named_parameters()]
        return torch.optim.AdamW(groups, weight_decay=0.0)

    return make, optimizer


def test_an_optimizer_of_ones_own_is_checked():
    for power, causes in ((1.0, set()), (0.0, {"learning rate"})):
        make, optimizer = own_mup(power)
        report = check(None, make, widths=[32, 64, 128], own_optimizer=optimizer)
        assert {item.cause for item in report.culprits} == causes, [str(item) for item in report.culprits]


def test_depth_rules():
    linear = check("mup", widths=[64], depths=[2, 4, 8, 16], depth_rule="linear")
    assert linear.passed, [str(item) for item in linear.culprits]
    muon = check("mup", widths=[64], depths=[2, 4, 8], depth_rule="linear", optimizer="muon")
    assert muon.passed, [str(item) for item in muon.culprits]
    none = check("mup", widths=[64], depths=[2, 4, 8, 16], depth_rule="none")
    assert not none.passed
    assert {item.axis for item in none.failures} == {"depth"}


def test_report_prints_and_saves(tmp_path):
    report = check("mup", widths=[32, 64], seeds=1, steps=1)
    data = json.loads(report.to_json(tmp_path / "report.json"))
    assert data["passed"] is report.passed
    assert len(data["exponents"]) == len(report.exponents)
    assert 0 < len(report.table().rows) <= 6
    assert len(report.table(all=True).rows) > 6


def test_the_check_leaves_the_global_seed_alone():
    state = torch.get_rng_state()
    check("mup", widths=[32, 64], seeds=1, steps=1)
    assert torch.equal(state, torch.get_rng_state())


def test_clear_errors():
    with pytest.raises(InputError, match="two or more"):
        check("mup", widths=[64])
    with pytest.raises(InputError, match="ignores its argument"):
        check("mup", lambda width: gpt()(32), widths=[32, 64])
    with pytest.raises(InputError, match="pass loss="):
        coord_check(lambda width: nn.Linear(3, width), [4, 8], batch=torch.ones(2, 3))


def test_fitted_interval_covers_the_true_slope():
    """Coverage of the 95 percent interval on synthetic noise: within five standard errors of 0.95."""
    generator = np.random.default_rng(0)
    widths, hits, trials = [64, 128, 256, 512], 0, 400
    for _ in range(trials):
        noise = generator.normal(0.0, 0.1, (3, 4))
        _, low, high = fit_exponent(widths, np.exp(noise) * np.array(widths) ** -0.5)
        hits += low <= -0.5 <= high
    assert abs(hits / trials - 0.95) < 5 * (0.95 * 0.05 / trials) ** 0.5
    assert np.isnan(fit_exponent(widths, np.zeros((1, 4)))[0])


def test_the_law_of_two_parts_explains_half_aligned_changes_and_nothing_else():
    widths = np.array([64, 128, 256, 512])
    for exponent in (0.0, -0.5):
        for aligned, random in ((1.0, 300.0), (1.0, 0.0), (0.0, 1.0)):
            sizes = np.sqrt(aligned + random / widths) * widths**exponent
            assert error_of_two_parts(widths.tolist(), sizes, exponent) < 1e-9
        for wrong in (0.25, -0.75):
            assert error_of_two_parts(widths.tolist(), widths ** (exponent + wrong), exponent) > 0.1


def test_many_tokens_and_few_channels_do_not_raise_an_alarm():
    """512 random tokens at widths 32 to 128: keys move like d^-0.4, by the law of two parts; growth still fails."""
    ids = torch.randint(0, 64, (16, 32), generator=torch.Generator().manual_seed(1))
    good = check("mup", widths=[32, 64, 128], batch=ids, lr=1e-3)
    assert good.passed, [str(item) for item in good.culprits]
    key = good.find("blocks.0.attention.key", "change", 1)
    assert key.high < -0.2
    assert (key.expected, key.at_most) == (None, 0.0)
    assert not check(None, widths=[32, 64, 128], batch=ids, lr=1e-3).passed


class Multiplied(nn.Module):
    """muP as its authors write it: a readout of entries of one size, its output or its input times 1 / width."""

    def __init__(self, width, place, right=True):
        super().__init__()
        self.embed, self.norm, self.final = nn.Embedding(64, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.hidden, self.head = nn.Linear(width, width, bias=False), nn.Linear(width, 64, bias=False)
        self.place, self.number = place, 32 / width if right else 1.0
        nn.init.normal_(self.hidden.weight, 0.0, width**-0.5)
        nn.init.normal_(self.head.weight, 0.0, 0.2)

    def forward(self, ids):
        x = self.embed(ids)
        x = self.final(x + torch.relu(self.hidden(self.norm(x))))
        return self.head(x) * self.number if self.place == "output" else self.head(x * self.number)


def mup_adam(model):
    width = model.hidden.in_features
    groups = [{"params": [model.hidden.weight], "lr": 0.32 / width}]
    rest = [item for item in model.parameters() if item is not model.hidden.weight]
    return torch.optim.Adam([*groups, {"params": rest, "lr": 0.01}])


@pytest.mark.parametrize("place", ["output", "input"])
def test_a_multiplier_of_the_readout_counts_as_part_of_its_weight(place):
    options = {"optimizer": "adam", "widths": [32, 64, 128], "own_optimizer": mup_adam}
    right = check(None, lambda width: Multiplied(width, place), **options)
    assert right.passed, [str(item) for item in right.culprits]
    wrong = check(None, lambda width: Multiplied(width, place, right=False), **options)
    assert not wrong.passed
    assert "head" in wrong.culprits[0].name
    planned = check("mup", lambda width: Multiplied(width, place), widths=[32, 64, 128])
    assert planned.passed, [str(item) for item in planned.culprits]


@pytest.mark.parametrize("place", ["output", "input"])
def test_a_multiplier_of_a_tied_readout_counts_as_part_of_the_factor_before_it(place):
    def make(width):
        model = Multiplied(width, place)
        nn.init.normal_(model.embed.weight, 0.0, 0.2)
        model.head.weight = model.embed.weight
        return model

    planned = prescribe(make(128), "mup", base=make(32), batch=tokens())
    assert planned["final.weight"].init.value == pytest.approx(1.0)  # the model itself has the 1 / width
    report = check("mup", make, widths=[32, 64, 128])
    assert report.passed, [str(item) for item in report.culprits]


def test_structures_are_read_from_two_examples(monkeypatch):
    """16 images of a Mixer are 1,024 positions, whose pairs took minutes; a batch that cannot be cut is taken whole."""
    seen = []

    def spied(model, base, batch):
        seen.append(len(batch))
        return ModelAndBase() if len(batch) == 2 else read_model_and_base(model, base, batch)

    monkeypatch.setattr(coordcheck, "read_model_and_base", spied)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    coord_check(
        lambda width: build("mlp", inputs=6, outputs=3, depth=2, width=width), [16, 32], batch=x, steps=1, seeds=1,
        loss=lambda output, batch: output.square().mean(),
    )  # fmt: skip
    assert seen == [2, 8, 2, 8]
    mask = torch.ones(5)
    assert [len(item) for item in coordcheck.few_examples((x, mask, x))] == [2, 5, 2]

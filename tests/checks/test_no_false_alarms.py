"""What published models do on purpose is not called ill: each case is a false alarm that was raised once."""

import copy

import pytest
import torch
from torch import nn

from sigprop.checks import checks
from sigprop.checks.evaluation import Experiment
from sigprop.checks.subject import Subject
from sigprop.score_masks import allowed_scores, score_summary


def found(name, model, batch):
    experiment = Experiment(model, batch)
    subject = Subject(model, batch, measured=experiment.measured(), evaluation=experiment)
    return [item for item in checks()[name](subject) if item.severity != "note"]


class FilledByFormula(nn.Module):
    """Decay rates log(1..n) in every channel of every layer, as state space models start."""

    def __init__(self, copies: bool):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        for layer in self.layers:
            rates = torch.arange(1, 17, dtype=torch.float32).log().repeat(32, 1)
            layer.A_log = nn.Parameter(torch.randn(32, 16) if copies else rates)
        if copies:
            self.layers[1].A_log = nn.Parameter(self.layers[0].A_log.detach().clone())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * layer.A_log.exp().mean()
        return x


def test_a_formula_in_every_layer_is_no_copy():
    assert not found("equal_layers", FilledByFormula(copies=False), torch.randn(8, 32))
    assert found("equal_layers", FilledByFormula(copies=True), torch.randn(8, 32))


class Referenced(nn.Module):
    """A policy beside the copy of it that it is compared with."""

    def __init__(self, frozen):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
        self.old = copy.deepcopy(self.policy).requires_grad_(not frozen)

    def forward(self, x):
        return self.policy(x) - self.old(x + 1)


def test_a_frozen_copy_is_meant():
    assert not found("equal_layers", Referenced(frozen=True), torch.randn(8, 32))
    assert found("equal_layers", Referenced(frozen=False), torch.randn(8, 32))


class Gated(nn.Module):
    """A projection that acts through a factor which starts at zero, as Doge's dynamic mask."""

    def __init__(self, factor: float):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.dt_proj = nn.Linear(16, 16, bias=False)
        self.A = nn.Parameter(torch.full((16,), factor))
        if factor:
            self.A.requires_grad_(False)

    def forward(self, x):
        return self.first(x) * (self.A * self.dt_proj(x)).exp()


def test_what_waits_for_a_factor_of_zero_is_no_problem():
    torch.manual_seed(0)
    assert not found("no_gradient", Gated(0.0), torch.randn(32, 16))


def test_what_dead_units_cut_off_is_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
        model[2].bias.zero_()
    assert found("no_gradient", model, torch.randn(32, 16))


@pytest.mark.parametrize("hidden", [-1e4, -1e9, torch.finfo(torch.float32).min, torch.finfo(torch.float32).min / 11.3])
def test_masks_of_any_size_hide_scores(hidden):
    """CodeGen divides scores after it has masked them; older models mask with -1e4."""
    scores = torch.randn(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(20, 20, dtype=torch.bool).triu(1)
    masked = scores.masked_fill(mask, hidden)
    assert torch.equal(allowed_scores(masked)[0, 0], ~mask)
    exact = score_summary(scores.masked_fill(mask, -torch.inf))
    assert {key: float(value) for key, value in score_summary(masked).items()} == pytest.approx(
        {key: float(value) for key, value in exact.items()}
    )


def test_a_query_that_may_look_nowhere_has_no_scores():
    """LongT5 pads its last block with queries that see only -1e10."""
    scores = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    padded = scores.clone()
    padded[..., 4:, :] = -1e10
    assert float(score_summary(padded)["variance"]) == pytest.approx(float(scores[..., :4, :].var(correction=0)))


def test_large_scores_are_not_hidden():
    scores = 300.0 * torch.randn(1, 2, 8, 64, generator=torch.Generator().manual_seed(0))
    assert bool(allowed_scores(scores).all())


def drawn(rule, shapes, seed=0):
    """Linear layers whose standard deviations go by a rule of (fan in, fan out)."""
    generator = torch.Generator().manual_seed(seed)
    layers = [nn.Linear(fan_in, fan_out, bias=False) for fan_in, fan_out in shapes]
    with torch.no_grad():
        for layer in layers:
            layer.weight.normal_(0.0, rule(layer.in_features, layer.out_features), generator=generator)
    return nn.ModuleList(layers)


SHAPES = [(256, 256)] * 8 + [(256, 1024), (1024, 256)] * 2 + [(240, 768), (256, 512)]


@pytest.mark.parametrize(
    "rule",
    [
        lambda fan_in, fan_out: 0.02,
        lambda fan_in, fan_out: max(fan_in, fan_out) ** -0.5,
        lambda fan_in, fan_out: (2 / (fan_in + fan_out)) ** 0.5,
        lambda fan_in, fan_out: fan_in**-0.5,
    ],
    ids=["one std, fans 240 and 256", "orthogonal", "Xavier", "fan-in"],
)
def test_one_rule_for_all_matrices_swaps_no_fans(rule):
    """A speech model with std 0.02 has fans 240 and 256; RWKV draws orthogonal matrices."""
    assert not list(checks()["fans_swapped"](Subject(drawn(rule, SHAPES), None)))


def test_swapped_fans_among_a_rule_are_found():
    shapes = [(64, 256), (256, 64), (128, 512), (512, 128), (256, 256)] * 2
    model = drawn(lambda fan_in, fan_out: fan_in**-0.5, shapes)
    with torch.no_grad():
        model[6].weight.mul_(2.0)  # 256 in, 64 out, drawn by its fan-out
    (item,) = checks()["fans_swapped"](Subject(model, None))
    assert item.parameters == ("6.weight",)


@pytest.mark.parametrize(
    ("name", "finding", "settings"),
    [
        ("RoFormerForMaskedLM", "embedding_scale", {"embedding_size": 64, "intermediate_size": 128}),
        ("RwkvForCausalLM", "embedding_scale", {"attention_hidden_size": 64, "intermediate_size": 256}),
    ],
)
def test_tables_that_are_not_added_and_norms_inside_the_first_block(name, finding, settings):
    """RoFormer's positions turn queries; RWKV draws tiny embeddings and normalizes them inside its first block."""
    transformers = pytest.importorskip("transformers")
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 128}
    model = kind(kind.config_class(**shape, **settings, use_cache=False)).eval()
    ids = torch.randint(3, 128, (1, 6), generator=torch.Generator().manual_seed(0))
    assert not found(finding, model, {"input_ids": ids, "labels": ids})


def test_stages_of_different_shapes_are_no_stream():
    """ConvNeXt halves its image three times: the gradient of an entry falls with their number, not with depth."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ConvNextConfig(
        hidden_sizes=[16, 32, 32, 64], depths=[1, 1, 2, 1], image_size=32, num_labels=10
    )
    model, images = transformers.ConvNextForImageClassification(config).eval(), torch.randn(2, 3, 32, 32)
    batch = {"pixel_values": images, "labels": torch.tensor([1, 2])}
    assert not found("gradient_vanishes", model, batch)
    assert not found("gradient_explodes", model, batch)


def test_a_head_of_another_kind_may_keep_torchs_draw():
    """ResNets of torchvision and of transformers draw their convolutions and leave the one linear layer as it is."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(32, 32, 3, padding=1) for _ in range(6)]
    for layer in layers:
        torch.nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 100)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())), *head)
    assert not found("default_draw_left", model, torch.randn(2, 32, 8, 8))


def test_a_chain_ends_where_an_image_gets_smaller():
    """Each stride of two leaves a quarter of the entries, whose gradients are four times as large."""
    torch.manual_seed(0)
    layers = []
    for place in range(9):
        layer = torch.nn.Conv2d(16, 16, 3, padding=1, stride=2 if place % 3 == 2 else 1)
        torch.nn.init.kaiming_normal_(layer.weight)
        layers += [layer, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(16 * 4, 10))
    subject = Subject(model, torch.randn(2, 16, 16, 16))
    subject.measured = Experiment(model, subject.batch).measured()
    assert [len(stream.names) for stream in subject.streams] == [3]
    assert not found("gradient_vanishes", model, torch.randn(2, 16, 16, 16))


def test_a_model_whose_structure_is_not_known_has_no_chain(monkeypatch):
    """Its matrices may be branches of a stream, as in MobileViTV2 at its own image size."""
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(12)))
    subject = Subject(model, torch.randn(4, 32))
    subject.measured = Experiment(model, subject.batch).measured()
    assert subject.streams
    unknown = Subject(model, subject.batch, measured=subject.measured)
    monkeypatch.setattr(Subject, "structure", None)
    assert not unknown.streams


class Routed(nn.Module):
    """A residual branch whose experts are chosen by a softmax over what a wide matrix makes of each token."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.router, self.experts = nn.Linear(32, 20, bias=False), nn.Parameter(torch.randn(20, 32, 32) / 32)
        self.router.weight.data.mul_(20.0)

    def forward(self, ids):
        x = self.embed(ids)
        shares = torch.softmax(self.router(x).float(), -1)
        return self.head(x + torch.einsum("bte,bti,eij->btj", shares, x, self.experts))


def test_a_router_is_not_an_attention():
    torch.manual_seed(0)
    assert not found("attention_saturated", Routed(), torch.randint(64, (2, 24)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(16, 16, batch_first=True) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x, _ = layer(x)
        return x


def test_looking_at_gates_detaches_nothing_of_the_model():
    """Three LSTMs have nine gates that are looked at, each by a `detach` of our own."""
    assert not found("no_gradient", Recurrent(), torch.randn(2, 6, 16))


class Decaying(nn.Module):
    """A diagonal state space whose rates all start at one number, as S4D's real parts do."""

    def __init__(self):
        super().__init__()
        self.first, self.rate = nn.Linear(16, 16), nn.Parameter(torch.full((16, 8), -0.69))

    def forward(self, x):
        return self.first(x) * self.rate.exp().sum(1)


def test_rates_of_one_number_are_no_identical_units():
    assert not found("zeros_among_siblings", Decaying(), torch.randn(4, 16))
    model = Decaying()
    nn.init.constant_(model.first.weight, 0.1)
    assert found("zeros_among_siblings", model, torch.randn(4, 16))


class StochasticDepth(nn.Module):
    """Training drops four of ten branches: multiplied by zero, or not run at all."""

    def __init__(self, runs):
        super().__init__()
        self.stem, self.branch, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.runs = runs

    def forward(self, x):
        x, kept = self.stem(x), torch.rand(()) < 0.6
        if self.runs or kept:
            x = x + kept * torch.tanh(self.branch(x))
        return self.head(x)


@pytest.mark.parametrize("runs", [True, False])
def test_a_branch_that_chance_has_dropped_is_not_dead(runs):
    """A gradient of zero in this pass, but not in one with other random numbers."""
    x, reached = torch.randn(1, 8, generator=torch.Generator().manual_seed(0)), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = StochasticDepth(runs)
        for seed in range(6):
            torch.manual_seed(seed)
            rows = Experiment(model, x).measured().parameters
            reached += [row.grad_second_moment > 0 for row in rows if row.name == "branch.weight"]
            assert found("no_gradient", model, x) == []
    assert set(reached) == {True, False}

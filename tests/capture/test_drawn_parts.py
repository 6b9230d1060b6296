"""What a drawn function hands on beside kernels: what gradients have in common with signals, and channels with each
other."""

from functools import partial

import pytest
import torch
from torch import nn

from sigprop.capture import build, predict, replayed_heads
from sigprop.measurement import measure

IMAGE = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(2, 12, 24, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(2))


def errors(make, batch, seeds, column, *names):
    """Predicted less measured, in standard errors of the measurement and a twentieth."""
    measured = measure(None, batch, "noise", build=make, seeds=seeds)
    predicted = predict(build(make), batch, loss="noise")
    seen, told = ({row.name: row for row in (*made.sites, *made.parameters)} for made in (measured, predicted))
    for name in names:
        item, found = seen[name], getattr(told[name], column)
        expected = getattr(item, column)
        yield abs(found - expected) / (item.errors[column] + 0.05 * expected)


class Branches(nn.Module):
    """Two convolutions and the stream, each under a BatchNorm, and one ReLU over their sum, as in RepVGG."""

    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.one = nn.Sequential(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width))
        self.three = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
        self.same, self.head = nn.BatchNorm2d(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        return self.head(torch.relu(self.one(x) + self.three(x) + self.same(x)).mean((2, 3)))


def test_gains_under_one_function_of_a_sum_that_is_drawn():
    """Their gradients were 0.05 of what they are: positions add up where the ReLU is open."""
    assert max(errors(Branches, IMAGE, 60, "grad_second_moment", "one.1.weight", "three.1.weight")) < 4.0


class Streams(nn.Module):
    """Three equal streams mixed by a matrix, twice, and their average normalized, as in hyper-connections."""

    def __init__(self, width=24):
        super().__init__()
        self.first, self.last = nn.Linear(24, width), nn.LayerNorm(width)
        self.one, self.two = (nn.Parameter(torch.eye(3) * 0.8 + 0.2 / 3) for _ in range(2))
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x)[..., None, :].expand(-1, -1, 3, -1)
        x = torch.einsum("ij,btjd->btid", self.one, x)
        x = x + 0.3 * self.feed(x.mean(-2))[..., None, :]
        return self.head(self.last(torch.einsum("ij,btjd->btid", self.two, x).mean(-2)))


def test_a_gradient_across_streams_stays_so_behind_a_drawn_function():
    """The first matrix got ten times the gradient it gets. What nine numbers get is little that is left: a guess."""
    assert max(errors(Streams, TOKENS, 100, "grad_second_moment", "one")) < 4.0
    assert predict(build(Streams), TOKENS, loss="noise").parameter("one").status == "assumed"


class Read(nn.Module):
    """Equal streams read by two numbers below a norm, as static hyper-connections begin."""

    def __init__(self, width=24):
        super().__init__()
        self.first, self.last, self.read = (
            nn.Linear(24, width),
            nn.LayerNorm(width),
            nn.Parameter(torch.tensor([1.0, 0.0])),
        )

    def forward(self, x):
        streams = self.first(x).tanh().expand(2, -1, -1, -1)
        return self.last(torch.einsum("s,sbtd->btd", self.read, streams))


def test_what_a_norm_leaves_of_the_gradient_of_few_numbers_is_a_guess():
    """It is rounding and epsilon: 600 to 3,000 times too large in a network, and stated within 16 %."""
    assert predict(build(Read), TOKENS, loss="noise").parameter("read").status == "assumed"


class Pairs(nn.Module):
    """One number for each sequence."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(50, 8), nn.Identity()

    def forward(self, ids):
        rows = self.table(ids)
        return self.out((rows.sum(1).square() - rows.square().sum(1)).sum(-1, keepdim=True))


def test_the_variance_of_one_drawn_channel_is_about_its_average():
    """It was that over networks, twice as much."""
    assert max(errors(Pairs, IDS, 400, "variance", "out")) < 4.0


class Steps(nn.Module):
    """Steps of a scan: `softplus(W x + b)` with steps at the start between 0.001 and 0.1, as Mamba has them."""

    def __init__(self, inside, width=64):
        super().__init__()
        self.first, self.step, self.out = nn.Linear(24, width), nn.Linear(width, width), nn.Linear(width, 10)
        nn.init.uniform_(self.step.bias, -6.9, -2.25)
        self.inside, self.seen = inside, nn.Identity()

    def forward(self, x):
        x = self.first(x)
        made = self.step(0.1 * x) if self.inside else 0.1 * x @ self.step.weight.mT + self.step.bias
        return self.out(self.seen(nn.functional.softplus(made)) * x)


@pytest.mark.parametrize("inside", [True, False])
def test_a_wide_bias_that_is_not_normal_under_a_function(inside):
    """Taken as normal, steps were 2.7 times as large in mean square, and so were gradients of what made them."""
    make = partial(Steps, inside)
    assert max(errors(make, TOKENS, 60, "variance", "seen", "(output)")) < 4.0
    assert max(errors(make, TOKENS, 60, "grad_second_moment", "step.weight", "step.bias")) < 4.0


class GroupedHeads(nn.Module):
    """Heads whose queries, keys and values read channels of their own, as SqueezeBERT's convolutions make them."""

    def __init__(self, width=48, heads=4):
        super().__init__()
        self.first, self.norm, self.heads = nn.Linear(24, width), nn.LayerNorm(width), heads
        self.query, self.key, self.value = (nn.Conv1d(width, width, 1, groups=heads) for _ in range(3))

    def forward(self, x):
        x = self.norm(self.first(x)).mT
        query, key, value = (part(x).unflatten(1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        shares = (query.mT @ key / query.shape[2] ** 0.5).softmax(-1)
        return (value @ shares.mT).flatten(1, 2)


def test_heads_that_read_few_channels_share_what_these_fluctuate_by():
    """Half the gradient of the queries was missing."""
    names = ("query.weight", "key.weight", "value.weight")
    assert max(errors(GroupedHeads, TOKENS, 60, "grad_second_moment", *names)) < 4.0


class SlicedFunction(nn.Module):
    """Queries, keys and values are slices of an activation, as in gated attention units and MiniMax."""

    def __init__(self, width=48):
        super().__init__()
        self.first, self.maps, self.out = nn.Linear(24, width), nn.Linear(width, 3 * width), nn.Linear(width, 10)
        self.act = nn.SiLU()

    def forward(self, x):
        query, key, value = self.act(self.maps(self.first(x))).chunk(3, -1)
        return self.out((query @ key.mT / 7.0).relu() @ value)


def test_slices_of_a_function_are_no_slices_of_its_argument():
    """They were drawn without the function: gradients of one gated unit were 100 times too large."""
    assert max(errors(SlicedFunction, TOKENS, 100, "variance", "(output)")) < 4.0
    assert max(errors(SlicedFunction, TOKENS, 100, "grad_second_moment", "maps.weight", "out.weight")) < 4.0
    assert max(errors(SlicedFunction, TOKENS, 100, "grad_variance", "act", "maps")) < 4.0  # queries and keys pass it by


class EachChannel(nn.Module):
    """A convolution of each channel by itself, GELU and BatchNorm, as in ConvMixer."""

    def __init__(self, groups=32):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 2, stride=2), nn.GELU(), nn.BatchNorm2d(32))
        self.each = nn.Sequential(nn.Conv2d(32, 32, 5, padding=2, groups=groups), nn.GELU(), nn.BatchNorm2d(32))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.each(self.first(x)).mean((2, 3)))


def test_batchnorm_of_a_function_of_sums_of_few_products_is_drawn():
    """Pooled, it had half the variance that it has, and said `asymptotic`. Sums of many products keep their status."""
    assert max(errors(EachChannel, IMAGE, 100, "variance", "head")) < 4.0
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert predict(build(EachChannel), images, loss="noise")["head"].status == "sampled"
    assert predict(build(lambda: EachChannel(groups=1)), images, loss="noise")["head"].status == "asymptotic"


class Pooled(nn.Module):
    """BatchNorm, ReLU and an average over an image whose pixels have much in common."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.pool = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return self.pool(torch.relu(self.norm(self.first(x)))).flatten(1)


def test_what_a_pooled_function_of_a_norm_varies_by_is_a_small_remainder():
    """The norm takes out what a channel's positions share: the variance was twice what it is, and `asymptotic`."""
    row, real = (
        predict(build(Pooled), IMAGE, loss="noise")["pool"],
        measure(None, IMAGE, build=Pooled, seeds=60)["pool"],
    )
    assert abs(row.variance - real.variance) < 0.05 * real.variance + 4.0 * real.errors["variance"]
    assert row.status == "assumed"


class NormedHeads(nn.Module):
    """Queries and keys normalized head by head, with gains, as Qwen 3 and OLMo 2 have them."""

    def __init__(self, width=64, heads=4):
        super().__init__()
        self.table, self.maps, self.heads = nn.Embedding(40, width), nn.Linear(width, 3 * width, bias=False), heads
        self.query_norm, self.key_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)

    def forward(self, ids):
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in self.maps(self.table(ids)).chunk(3, -1))
        scores = self.query_norm(q) @ self.key_norm(k).mT / q.shape[-1] ** 0.5
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_gains_inside_attention_weights_are_drawn_until_they_are_known():
    """Few entries scatter more than queries and keys: one seed told a gain's gradient to a tenth, and said 15 %."""
    tokens = torch.arange(16).view(1, 16)
    for name in ("query_norm.weight", "key_norm.weight"):
        made = [predict(build(NormedHeads), tokens, seed=seed).parameter(name) for seed in range(8)]
        found = torch.tensor([row.grad_second_moment for row in made])
        assert float(found.std()) < 0.07 * float(found.mean())


class SpeltNorm(nn.RMSNorm):
    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weight


def test_sites_that_drawn_attention_passes_have_its_gradients():
    """Those of query and key norms that a model spells out had no number."""

    def make():
        made = NormedHeads()
        made.query_norm, made.key_norm = SpeltNorm(16), SpeltNorm(16)
        return made

    tokens = torch.arange(16).view(1, 16)
    assert max(errors(make, tokens, 60, "grad_variance", "query_norm", "key_norm")) < 4.0


def test_a_drawn_attention_keeps_no_kernel_of_pairs(monkeypatch):
    """T5's biases of pairs of positions are a site that attention passes: their kernel took 2 minutes at 64 tokens."""
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    config.use_cache = False
    ids = torch.arange(40)[None]
    followed = []

    class Noted(replayed_heads.Reverse):
        def __init__(self, parts, sites=(), **options):
            followed.extend(sites)
            super().__init__(parts, sites, **options)

    monkeypatch.setattr(replayed_heads, "Reverse", Noted)
    made = predict(
        build(lambda: transformers.T5ForConditionalGeneration(config).eval()),
        {"input_ids": ids, "decoder_input_ids": ids},
    )
    assert all(site.layout.positions <= 1024 for site in followed)
    assert [row.grad_variance > 0 for row in made.sites if row.name.endswith("SelfAttention.q")] == [True, True]

"""Where entries are not Gaussian, or weights not independent: followed, or marked as a guess."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from sigprop.capture import build, predict
from sigprop.measurement import measure

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 4])


def loss(out):
    return F.cross_entropy(out, LABELS)


class ReluStream(nn.Module):
    """`x = relu(x + f(x))`, as ResNets have it: the stream is never negative, so that the last ReLU does little."""

    def __init__(self, depth=4, width=64):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, 6)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for block in self.blocks:
            x = F.relu(x + block(x))
        return self.head(x.mean((-1, -2)))


class FewNormed(nn.Sequential):
    """Convolutions with norms over eight numbers, as the last stage of a ResNet has them for two small images."""

    def __init__(self, norm, depth, width=96):
        blocks = [(norm(width), nn.ReLU(), nn.Conv2d(width, width, 1, bias=False)) for _ in range(depth)]
        super().__init__(nn.Conv2d(64, width, 1), *(layer for block in blocks for layer in block))


class StandardizedConv(nn.Conv2d):
    def forward(self, x):
        weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True)
        weight = weight.reshape_as(self.weight) * self.weight[0].numel() ** -0.5
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class StandardizedLinear(nn.Linear):
    def forward(self, x):
        weight = self.weight - self.weight.mean(1, keepdim=True)
        weight = weight / (self.weight.std(1, keepdim=True) * weight.shape[1] ** 0.5)
        return F.linear(x, weight, self.bias)


def perceptron(layer, wrap=lambda made: made, width=128):
    return nn.Sequential(wrap(layer(32, width)), nn.ReLU(), wrap(layer(width, width)), nn.ReLU(), nn.Linear(width, 16))


def test_relu_of_a_stream_that_is_never_negative(agreement):
    """Taken as Gaussian its variance was 45 % too small after four blocks, and its gradient five times."""
    agreement(ReluStream, IMAGE, loss, width=20)


@pytest.mark.parametrize(
    ("norm", "depth"),
    [(nn.BatchNorm2d, 3), (lambda width: nn.GroupNorm(width, width), 1)],
    ids=["BatchNorm", "GroupNorm"],
)
def test_norms_over_few_numbers_make_no_gaussians(norm, depth, agreement):
    """Three BatchNorms over eight with ReLU behind made gradients 20 % too large; a variance behind one was 4 % off,
    behind a norm over four 9 %."""
    x = torch.randn(2, 64, 2, 2, generator=torch.Generator().manual_seed(0))
    agreement(lambda: FewNormed(norm, depth), x, "noise", seeds=40, training=True)


class WrittenInPlace(nn.Module):
    """The sum is twice the rectified numbers: what `inplace` wrote over is gone."""

    def __init__(self, norm):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(64, 96), norm(), nn.Linear(96, 32)

    def forward(self, x):
        x = self.norm(self.a(x))
        return self.b(x + F.leaky_relu(x, 0.1, True))


@pytest.mark.parametrize("norm", [nn.Identity, lambda: nn.BatchNorm1d(96)], ids=["plain", "norm of few"])
def test_inplace_activations_write(norm, agreement):
    """The sum was taken as that of the numbers before and after."""
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    agreement(lambda: WrittenInPlace(norm), x, "noise", training=True)


def test_gradient_before_an_inplace_activation_that_is_drawn(agreement):
    """That of the norm was the gradient behind the ReLU, twice what it is."""
    x = torch.randn(2, 64, 2, 2, generator=torch.Generator().manual_seed(0))
    agreement(lambda: nn.Sequential(nn.Conv2d(64, 96, 1), nn.BatchNorm2d(96), nn.ReLU(True)), x, "noise", training=True)


def test_standardized_convolutions_do_not_see_the_mean(agreement):
    """They were `exact` with twice the variance, and a thousandth of the weight gradient."""

    def make():
        layers = [StandardizedConv(64, 64, 3, padding=1), nn.ReLU(), StandardizedConv(64, 64, 3, padding=1), nn.ReLU()]
        return nn.Sequential(StandardizedConv(3, 64, 3, padding=1), nn.ReLU(), *layers, nn.Conv2d(64, 8, 1))

    predicted = agreement(make, IMAGE, width=20)
    assert {row.status for row in predicted.sites} == {"exact"}


def test_standardized_linear_maps_do_not_see_the_mean(agreement):
    agreement(lambda: perceptron(StandardizedLinear), ROWS, "noise", width=20)


def test_weight_norm_is_no_guess(agreement):
    """Rows of one length are as good as independent entries."""
    predicted = agreement(lambda: perceptron(nn.Linear, weight_norm), ROWS, "noise", width=20)
    assert "assumed" not in {row.status for row in (*predicted.sites, *predicted.parameters)}


class GainedConv(nn.Conv2d):
    """Standardized weights with a gain of each output, as in a network without norms."""

    def __init__(self, *args):
        super().__init__(*args)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x):
        var, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) * torch.rsqrt(var * self.weight[0].numel()) * self.gain
        return F.conv2d(x, weight, self.bias)


@pytest.mark.parametrize("gained", [GainedConv, lambda *args: weight_norm(nn.Conv2d(*args))], ids=["std", "norm"])
def test_gains_of_weights_in_front_of_an_activation(gained, agreement):
    """The sum of a channel's gradient times the channel is large below a function whose gradient positions share:
    gains were 8 to 10 times too small, and the weights of 27 inputs 1.5 times too large."""

    def make():
        layers = gained(3, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(64, 8))

    agreement(make, IMAGE, "noise", seeds=64, within=4.0, width=15, skip=("2", "3", "4.weight"))


def test_weights_made_with_numbers_that_were_made_from_them_are_a_guess():
    """Singular vectors of the weight are buffers: what they make of a fresh draw is not what they make of their own."""
    predicted = predict(lambda: perceptron(nn.Linear, spectral_norm), ROWS, loss="noise")
    assert {row.status for row in predicted.sites} == {"assumed"}


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 96)

    def forward(self, x):
        return self.second(F.pad(torch.relu(self.first(x)), (0, 0, 2, 0)))


def test_weights_on_given_numbers_have_no_fluctuating_input(agreement):
    """The gradient of a square is along its output; its first weights got what random inputs would add: 14 %."""
    sequences = torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(0))
    agreement(Padded, sequences, lambda out: out.square().mean(), seeds=48, within=4.0, width=100)


@pytest.mark.parametrize("channels", [16, 64])
def test_gains_of_small_groups_before_an_activation(agreement, channels):
    """Sampled norms draw gradients through the mask of the ReLU that follows; the gain's was 30 % too small."""

    def make():
        groups = nn.GroupNorm(64 // channels, 64)
        tail = (nn.ReLU(), nn.Conv2d(64, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(nn.Conv2d(3, 64, 3), groups, *tail)

    agreement(make, IMAGE, loss, seeds=32, within=4.0, width=15)


def test_gains_of_batch_norm_under_a_square(agreement):
    """Homogeneous: the gradient of a gain has a mean. It was half as large."""

    def make():
        return nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 8, 3))

    agreement(make, IMAGE, lambda out: out.square().mean(), training=True, skip=("0.bias", "0.weight"), width=10)


@pytest.mark.parametrize("norm", [lambda: nn.GroupNorm(3, 3), lambda: nn.BatchNorm2d(3)])
def test_norms_of_the_raw_input_keep_its_numbers(agreement, norm):
    """They were taken for weights with independent entries: a smooth image had no correlations left."""
    smooth = F.interpolate(IMAGE[..., ::4, ::4], size=(8, 8), mode="bilinear")

    def make():
        return nn.Sequential(norm(), nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 8, 3))

    predicted = agreement(make, smooth, lambda out: out.square().mean(), training=True, skip=("0.weight",), width=8)
    assert predicted.parameter("0.weight").status == "assumed"


def test_sampled_norms_after_a_convolution_that_shrinks():
    """Maps of windows were drawn at the positions of their input."""
    make = lambda: nn.Sequential(  # noqa: E731
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.GroupNorm(4, 32)
    )
    predicted = predict(make, IMAGE, loss=lambda out: out.square().mean())
    assert len(predicted.sites) == 5


def test_layers_that_are_copies_of_one_draw_are_a_guess():
    """As torch builds an encoder: every layer starts with the same numbers, which no theory of independent ones has."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
    stack = lambda count: nn.TransformerEncoder(layer, count, enable_nested_tensor=False)  # noqa: E731
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    for given in (lambda: stack(2), stack(2)):
        predicted = predict(given, x, loss="noise")
        assert predicted["layers.1"].status == "assumed"
        assert "another layer" in predicted["layers.1"].reason
    assert predict(lambda: stack(1), x, loss="noise")["layers.0"].status != "assumed"


@pytest.mark.parametrize("as_module", [False, True])
def test_backward_hooks_of_modules_make_gradients_a_guess(as_module):
    """They may change what they see; theory stopped at them with a message about the batch."""

    def make():
        model = perceptron(nn.Linear)
        model[2].register_full_backward_hook(lambda module, below, above: tuple(10.0 * item for item in below))
        return model

    given = make() if as_module else make
    for _ in range(2):
        predicted = predict(given, ROWS, loss="noise")
        assert predicted["0"].status == "assumed"
        assert predicted["0"].reason == "backward hooks on 2 are not followed"
        assert "variance" in predicted["0"].stated_errors
    if as_module:
        assert len(given[2]._backward_hooks) == 1


class Interpolated(nn.Module):
    """Learned positions brought to another size, as image models do."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 16, 64))
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 96)

    def forward(self, x):
        table = self.positions.reshape(1, 4, 4, 64).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=(2, 3), mode="bilinear").reshape(1, 64, 6).permute(0, 2, 1)
        return self.second(torch.relu(self.first(x) + table))


def test_positions_that_are_interpolated_are_followed():
    sequences = torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(0))
    predicted = predict(Interpolated, sequences, loss="noise")
    assert predicted.parameter("positions").grad_second_moment > 0.0


class Weighed(nn.Module):
    """Four vectors make one number that weighs a tensor against another, as in a differential attention."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.second, self.readout = (nn.Linear(24, width), nn.Linear(24, width), nn.Linear(width, 8))
        self.one, self.other = (nn.Parameter(0.1 * torch.randn(16)) for _ in range(2))

    def forward(self, x):
        first, weight = self.first(x), torch.exp((self.one * self.other).sum())
        mixed = first.sigmoid() * first - weight * first.tanh() * self.second(x)
        return self.readout(mixed / mixed.norm(dim=-1, keepdim=True))


def test_one_number_of_a_whole_tensor_is_a_guess():
    x = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
    rows = predict(build(Weighed), x)
    assert rows.parameter("one").status == rows.parameter("other").status == "assumed"
    assert rows.parameter("readout.weight").status != "assumed"


@pytest.mark.parametrize(("size", "status"), [(2, "assumed"), (4, "sampled")])
def test_gradients_through_norms_over_few_numbers_are_a_guess_until_they_are_verified(size, status):
    """Their mean has a long tail: two images of two by two are eight numbers a channel."""
    x = torch.randn(2, 64, size, size, generator=torch.Generator().manual_seed(0))
    row = predict(build(lambda: FewNormed(nn.BatchNorm2d, 2)), x, loss="noise")["0"]
    assert row.status == status
    assert "variance" in row.stated_errors


class Gated(nn.Module):
    """Sums over earlier tokens with weights that are no shares, scaled by a gate of each token, and a norm of heads."""

    def __init__(self, norm, width=48, heads=3):
        super().__init__()
        self.first, self.out = nn.Linear(24, width, bias=False), nn.Linear(width, 10)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gate, self.heads = nn.Linear(width, heads, bias=False), heads
        self.norm = nn.GroupNorm(heads, width) if norm == "heads" else nn.LayerNorm(width)
        nn.init.normal_(self.gate.weight, std=1.0 / 5)

    def forward(self, x):
        x = F.normalize(self.first(x), dim=-1) * x.shape[-1] ** 0.5
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = (q @ k.mT / 4 + 2.0) * self.gate(x).exp().transpose(1, 2)[..., None]
        y = (scores.tril() @ v).transpose(1, 2).flatten(2)
        return self.out(self.norm(y.flatten(0, 1)).view_as(y))


@pytest.mark.parametrize("norm", ["heads", "all"])
def test_a_norm_of_attention_whose_scale_varies_is_drawn(norm):
    """It was that of Gaussian numbers with the expected kernel, so that queries and keys got half of their gradient,
    and the gates, which a norm of heads lets nothing through of, twice theirs."""
    batch, make = torch.randn(2, 10, 24, generator=torch.Generator().manual_seed(3)), lambda: Gated(norm)
    measured, told = measure(None, batch, "noise", build=make, seeds=80), predict(build(make), batch, loss="noise")
    for name in ("gate.weight", "query.weight", "key.weight", "value.weight", "first.weight"):
        row, found = next(item for item in measured.parameters if item.name == name), told.parameter(name)
        error = 5.0 * row.errors["grad_second_moment"] + 0.15 * row.grad_second_moment
        assert abs(found.grad_second_moment - row.grad_second_moment) < error, name
        assert "scale that varies" not in found.reason


class Scaled(nn.Module):
    """Every channel has a factor of its own before a norm over the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(24, 64, bias=False), nn.Linear(64, 8)
        self.norm = nn.BatchNorm1d(64, eps=0.1)
        nn.init.normal_(self.first.weight, std=0.2)
        self.factor = nn.Parameter(torch.empty(64).uniform_(0.2, 2.0))

    def forward(self, x):
        return self.last(self.norm(torch.relu(self.first(x) * self.factor)))


def test_a_norm_over_the_batch_takes_out_what_a_channel_is_scaled_by(agreement):
    inputs = torch.randn(24, 24, generator=torch.Generator().manual_seed(0))
    predicted = agreement(Scaled, inputs, seeds=96, training=True)
    assert predicted["norm"].status == "sampled"


class Noisy(nn.Module):
    """Few numbers that are sampled at every pass: about a mean, by a std, and in a function."""

    def __init__(self, way):
        super().__init__()
        self.way, self.mean, self.std, self.out = way, nn.Linear(32, 3), nn.Linear(32, 3), nn.Linear(3, 48)

    def forward(self, x):
        mean, std = self.mean(x), F.softplus(self.std(x))
        if self.way == "like":
            made = mean + std * torch.randn_like(mean)
        elif self.way == "rsample":
            made = torch.distributions.Normal(mean, std).rsample()
        elif self.way == "dropped path":
            made = mean.div(0.6) * (0.6 + torch.rand(len(x), 1)).floor_()
        elif self.way == "mask":
            made = mean * mean.new_empty(len(x), 1).bernoulli_(0.6).div_(0.6)
        else:
            made = torch.tanh(mean) * torch.normal(torch.zeros(len(x), 3), torch.ones(len(x), 3))
        return self.out(made)


@pytest.mark.parametrize("way", ["like", "rsample", "normal", "dropped path", "mask"])
def test_noise_that_a_model_samples_is_that_of_any_pass(way):
    def energies(seed):
        rows = predict(build(lambda: Noisy(way)), ROWS, loss="noise", seed=seed)
        return [rows.parameter(name).grad_second_moment for name in ("mean.weight", "out.weight")]

    found = torch.tensor([energies(seed) for seed in range(4)])
    real = measure(None, ROWS, "noise", build=lambda: Noisy(way), seeds=range(200), progress=False)
    for number, name in enumerate(("mean.weight", "out.weight")):
        row = real.parameter(name)
        known, error = row.grad_second_moment, row.errors["grad_second_moment"]
        scatter = float(found[:, number].std())
        assert scatter < 0.1 * known
        assert abs(float(found[:, number].mean()) - known) < 5.0 * math.hypot(error, scatter / 2), name


def test_numbers_of_a_generator_that_is_given_are_these(agreement):
    """The target of a loss, made anew with one seed: it was taken as noise of every pass."""

    def loss(out):
        return F.l1_loss(0.1 * out, torch.randn(out.shape, generator=torch.Generator().manual_seed(2)))

    agreement(lambda: nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)), ROWS, loss, seeds=96)


class Chain(nn.Module):
    """Logarithms of sums over paths of tags, which grow with every step."""

    def __init__(self, tags=6):
        super().__init__()
        self.scores, self.end = nn.Linear(32, 4 * tags), nn.Parameter(0.1 * torch.randn(tags))
        self.register_buffer("steps", torch.randn(tags, tags, generator=torch.Generator().manual_seed(0)) / 4 + 5.0)

    def forward(self, x):
        scores = self.scores(x).unflatten(-1, (4, -1))
        paths = scores[:, 0]
        for step in range(1, 4):
            paths = torch.logsumexp(paths[:, :, None] + self.steps, 1) + scores[:, step]
        return torch.logsumexp(paths + self.end, 1, keepdim=True)


def test_a_gradient_along_a_signal_with_a_large_mean_is_no_more_than_there_is():
    rows = predict(build(Chain), ROWS, loss=torch.sum)
    real = measure(None, ROWS, torch.sum, build=Chain, seeds=range(64), progress=False)
    known, error = real["scores"].grad_variance, real["scores"].errors["grad_variance"]
    assert 0.0 < rows["scores"].grad_variance < known + 5.0 * error

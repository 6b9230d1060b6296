"""Parts of the state that matter at finite size, each against plain draws: k standard errors, no bare percentages."""

import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, predict, trace
from sigprop.measurement import measure
from sigprop.models import mixer
from sigprop.theory import Dense, Gradient, Signal, activations
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.batch_norm import BatchNorm, FiniteBatchNorm
from sigprop.theory.ops.layer_norm import LayerNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.positions_to_channels import ChannelsToPositions, PositionsToChannels
from sigprop.theory.ops.residual import Residual
from sigprop.theory.ops.token_map import TokenLinear
from sigprop.theory.states import Common, Directions, Fluctuation


def close(draws: torch.Tensor, expected: float, k: float = 4.0) -> None:
    """The average of independent draws is the expected value."""
    error = draws.std() / len(draws) ** 0.5
    assert abs(float(draws.mean()) - expected) < k * float(error), (float(draws.mean()), expected, float(error))


def test_a_map_over_tokens_makes_a_part_common_to_all_channels_which_a_norm_removes():
    tokens, width, draws, mean, bias = 24, 400, 200, 0.7, 0.3
    generator = torch.Generator().manual_seed(0)
    x = mean + torch.randn(draws, tokens, width, generator=generator)
    weight = torch.randn(draws, tokens, generator=generator) * tokens**-0.5
    y = torch.einsum("nt,ntc->nc", weight, x) + bias * torch.randn(draws, 1, generator=generator)
    level = torch.tensor([[1 + mean**2]], dtype=torch.float64)
    signal = Signal(Dense(level), torch.tensor([mean], dtype=torch.float64), width)
    made = TokenLinear(tokens, 1, 1 / tokens, bias**2).forward(signal)
    _, scale = LayerNorm(epsilon=0.0)._scale(made)
    close(y.var(-1), float(scale**2))
    close(y.square().mean(-1), float(made.kernel.diagonal))
    assert float(made.common.share) > 0.3


def test_a_gradient_without_a_uniform_part_does_not_see_what_channels_have_in_common():
    tokens, width, draws, mean = 12, 64, 400, 0.7
    generator = torch.Generator().manual_seed(0)
    x = mean + torch.randn(draws, tokens, width, generator=generator)
    gradient = torch.randn(draws, width, generator=generator)
    gradient = gradient - gradient.mean(-1, keepdim=True)
    found = torch.einsum("nc,ntc->nt", gradient, x).square().mean(-1) / (width - 1)
    level = torch.tensor([[1 + mean**2]], dtype=torch.float64)
    signal = Signal(Dense(level), torch.tensor([mean], dtype=torch.float64), width)
    upstream = Gradient(Dense(torch.ones(1, 1, dtype=torch.float64)), directions=Directions(uniform=0.0))
    (weight,) = TokenLinear(tokens, 1, 1 / tokens).parameters(upstream, signal)
    close(found, float(weight.grad_second_moment))


def test_a_token_mixed_with_others_overlaps_with_itself():
    tokens, width, draws = 16, 256, 400
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(draws, tokens, width, generator=generator)
    z = x + torch.randn(draws, tokens, tokens, generator=generator) @ x / tokens**0.5
    squares = z.square().mean(-1)
    eye = torch.eye(tokens, dtype=torch.float64)
    skip = Signal(Dense(eye), torch.zeros(tokens, dtype=torch.float64), width)
    branch = replace(
        skip, common=Common(mixed=1.0 / tokens), fluctuation=Fluctuation(norm=2.0 * (1.0 + width / tokens))
    )
    expected = Residual().forward(skip, branch).fluctuation.norm
    close(((squares - squares.mean()) / squares.mean()).square().mean(-1) * width, float(expected))


def below_a_small_batch(epsilon: float) -> tuple[torch.Tensor, float, float]:
    """Energy below a norm over 12 samples: measured, predicted for few and for many."""
    samples, draws = 12, 4000
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(samples, samples, generator=generator, dtype=torch.float64)
    x = torch.randn(draws, samples, generator=generator, dtype=torch.float64).requires_grad_()
    gradient = torch.randn(draws, samples, generator=generator, dtype=torch.float64) @ root
    y = F.batch_norm(x.T, None, None, training=True, eps=epsilon).T
    (back,) = torch.autograd.grad(y, x, gradient)
    signal = Signal(Dense(torch.eye(samples, dtype=torch.float64)), torch.zeros(samples, dtype=torch.float64), draws)
    upstream = Gradient(Dense(root.T @ root))
    few, many = (norm(epsilon=epsilon).backward(upstream, signal, signal)[0] for norm in (FiniteBatchNorm, BatchNorm))
    return back.square().mean(1), float(few.energy()), float(many.energy())


def test_a_norm_over_a_small_batch_backward():
    """Few samples: the inverse variance has a heavy tail and the projection is not small. Exact for equal samples."""
    measured, few, many = below_a_small_batch(1e-12)
    close(measured, few)
    with pytest.raises(AssertionError):
        close(measured, many)


@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_a_norm_over_a_small_batch_with_a_large_epsilon(epsilon):
    """Gradients were `(v + eps) / v` too large: the mean inverse was that of `v`."""
    measured, few, _ = below_a_small_batch(epsilon)
    close(measured, few)


def test_random_mixtures_of_tokens_overlap():
    """Products of two mixtures of the same tokens, alone and added to the tokens; half of each token is one of two."""
    tokens, width, draws = 16, 256, 300
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(draws, *shape, generator=generator)

    def squares(y):
        """Per draw, the squares of the products of different tokens about their average, relative to the norms."""
        products = y @ y.transpose(1, 2) / y.square().mean((0, 1)).sum()
        squared = (products - products.mean(0)).square()
        return (squared.sum((1, 2)) - squared.diagonal(dim1=1, dim2=2).sum(1)) * width / (tokens * (tokens - 1))

    kind = torch.arange(tokens) % 2
    x = (drawn(tokens, width) + drawn(2, width)[:, kind]) / 2**0.5
    kernel = (torch.eye(tokens) + (kind[:, None] == kind)).double() / 2
    signal = Signal(Dense(kernel), torch.zeros(tokens, dtype=torch.float64), width)
    y = drawn(tokens, tokens) @ x / tokens**0.5
    taken = PositionsToChannels(torch.arange(tokens)[None], tokens, mixes=True).forward(signal)
    made = TokenLinear(tokens, tokens, 1 / tokens, channels=width).forward(taken)
    branch = ChannelsToPositions(tokens).forward(made)
    close(squares(y), float(branch.fluctuation.pair))
    total = Residual(branch=0.4).forward(signal, branch)
    close(squares(x + 0.4 * y), float(total.fluctuation.pair))


def test_slopes_and_their_inputs_fluctuate_together():
    """A gradient common to all tokens, tokens that are not: weights and gain before an activation."""
    tokens, width, draws = 24, 64, 300
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(draws, *shape, generator=generator)

    z = F.layer_norm(drawn(tokens, width), (width,))
    weight = drawn(width, width) / width**0.5
    h = (z @ weight).requires_grad_()
    common = drawn(1, width).expand(-1, tokens, -1)
    (grad,) = torch.autograd.grad(F.gelu(h), h, common)
    weights = (z.transpose(1, 2) @ grad).square().mean((1, 2))
    gains = ((grad @ weight.transpose(1, 2)) * z).sum(1).square().mean(1)

    zero = torch.zeros(tokens, dtype=torch.float64)
    x = Signal(Dense(torch.eye(tokens, dtype=torch.float64)), zero, width)
    norm, linear, gelu = LayerNorm(epsilon=0.0), Linear(width, width, 1 / width), Activation(activations.get("gelu"))
    unit = norm.forward(x)
    mapped = linear.forward(unit)
    (below,) = gelu.backward(Gradient(Dense(torch.ones(tokens, tokens, dtype=torch.float64))), mapped, mapped)
    (matrix,) = linear.parameters(below, unit)
    (lower,) = linear.backward(below, mapped, unit)
    gain, _ = norm.parameters(lower, x)
    close(weights, float(matrix.grad_second_moment))
    close(gains, float(gain.grad_second_moment))
    for draws_of, plain in ((weights, below.kernel.contract(unit.kernel)), (gains, lower.kernel.contract(unit.kernel))):
        with pytest.raises(AssertionError):
            close(draws_of, float(plain))


def test_gains_and_matrices_of_a_mixer(agreement):
    """All of them but the biases of the token mixing, whose gradient the next norm removes."""
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([1, 4])

    def make():
        return mixer(image=16, patch=4, width=192, depth=3, token_hidden=96, channel_hidden=192)

    skip = ("token_mlp.down.bias", "token_mlp.down", "token_mlp", "token_mlp.up", "token_mlp.activation")
    agreement(make, images, lambda out: F.cross_entropy(out, targets), skip=skip, width=40, seeds=48)


WIDTH = 128


def test_a_slice_of_a_map_fluctuates_like_a_smaller_map():
    x = Signal(Dense(torch.eye(2, dtype=torch.float64)), torch.zeros(2, dtype=torch.float64), 64, Fluctuation(pair=3.0))
    whole, small = Linear(64, 256, 1.0).forward(x), Linear(64, 128, 1.0).forward(x)
    assert Narrow(0.5, 128).forward(whole).fluctuation == small.fluctuation


class Readout(nn.Module):
    """Embedding, norm, head: nothing between the norm and the softmax but the head."""

    def __init__(self, tied: bool, deviation: float):
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 64, bias=False)
        nn.init.normal_(self.embedding.weight, 0.0, deviation)
        nn.init.normal_(self.head.weight, 0.0, deviation)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.norm(self.embedding(ids)))


def norm_errors(tied: bool, deviation: float, seeds: int = 80) -> dict[str, float]:
    """Errors of the norm's gain and bias and of the gradient below it, in standard errors."""
    ids = torch.arange(24)[None] // 2
    targets = torch.arange(24).flip(0) * 2

    def loss(out):
        return F.cross_entropy(out.flatten(0, 1), targets)

    def make():
        return Readout(tied, deviation)

    comparison = predict(build(make), ids, loss=loss).compare(measure(None, ids, loss, build=make, seeds=seeds))
    found = comparison.column("grad_second_moment") + comparison.column("grad_variance")
    names = ("norm.weight", "norm.bias", "embedding")
    return {item.name: item.error / item.standard_error for item in found if item.name in names}


class Confident(nn.Module):
    """A tied head with large logits, which picks the input: the gradient is made of rows that the stream carries."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(4))
        self.maps = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(12))
        for place, weight in enumerate(self.maps.parameters()):
            nn.init.normal_(weight, 0.0, (0.8 if place % 4 < 2 else 1.3) * WIDTH**-0.5)

    def forward(self, ids):
        x = self.embedding(ids)
        for block, norm in enumerate(self.norms[:3]):
            query, key, value, out = self.maps[4 * block : 4 * block + 4]
            z = norm(x)
            heads = [linear(z).unflatten(-1, (4, -1)).transpose(1, 2) for linear in (query, key, value)]
            mixed = F.scaled_dot_product_attention(*heads)
            x = x + out(mixed.transpose(1, 2).flatten(2))
        return self.norms[3](x) @ self.embedding.weight.T


def test_a_slope_along_the_signal_goes_back_through_attention(agreement, monkeypatch):
    ids, targets = torch.arange(24)[None] * 5 % 64, torch.arange(24) * 7 % 64

    def loss(out):
        return F.cross_entropy(out.flatten(0, 1), targets)

    agreement(Confident, ids, loss, seeds=60, width=60)
    monkeypatch.setattr(sys.modules["sigprop.theory.ops.attention.drawn"], "unit_slope", lambda *_: (None, 0.0))
    with pytest.raises(AssertionError):
        agreement(Confident, ids, loss, seeds=12, width=60)


@pytest.mark.parametrize(("tied", "deviation"), [(False, WIDTH**-0.5), (True, 0.4)])
def test_the_gradient_leans_along_the_signal_below_a_softmax(tied, deviation):
    errors = norm_errors(tied, deviation)
    assert len(errors) == 3
    assert all(abs(error) < 4 for error in errors.values()), errors


def test_the_gain_needs_the_alignment(monkeypatch):
    monkeypatch.setattr("sigprop.theory.ops.layer_norm.aligned_gain", lambda *_: 0.0)
    assert norm_errors(False, WIDTH**-0.5)["norm.weight"] < -6


def test_what_is_sampled_brings_the_fluctuation_of_its_own_moments():
    """Weights of a router have a mean, so that their squares vary less than those of Gaussian numbers."""

    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.value = nn.Linear(64, 4), nn.Linear(64, 64)

        def forward(self, x):
            weight = self.router(x).softmax(-1).max(-1, keepdim=True).values
            return self.value(x) * weight

    found = trace(Routed(), torch.randn(16, 64, generator=torch.Generator().manual_seed(0)))
    norms = {type(n.op).__name__: float(found.states.signal(n).fluctuation.norm) for n in found.capture.graph.nodes}
    assert norms["Sampled"] < 1.0


def test_norms_that_vary_apart_below_batch_norm():
    """A wide layer behind a narrow one: examples have norms of their own, whose average the next norm fixes. Rows of
    EfficientNet and YOLO were guesses, as if the norms of all examples varied together."""

    def make():
        def block(a, b):
            return [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.SiLU()]

        return nn.Sequential(*block(64, 16), *block(16, 96), *block(96, 96), nn.Linear(96, 8))

    x = torch.randn(80, 64, generator=torch.Generator().manual_seed(2))
    predicted, measured = predict(build(make), x), measure(None, x, build=make, seeds=64)
    rows = {row.name: row for row in (*predicted.sites, *predicted.parameters)}
    assert all(row.status != "assumed" for row in rows.values())
    for item in predicted.compare(measured).differences:
        if item.column in ("variance", "grad_variance", "grad_second_moment") and item.standard_error > 0.0:
            stated = rows[item.name].stated_errors[item.column] * item.value / item.reference
            assert abs(item.error) <= stated + 4.0 * item.standard_error, item

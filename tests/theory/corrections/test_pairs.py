"""Products of two tokens fluctuate between networks: every rule against plain draws, k standard errors."""

import pytest
import torch
import torch.nn.functional as F

from sigprop.theory import Dense, Signal, activations
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.attention.drawn import correlation
from sigprop.theory.ops.layer_norm import LayerNorm, RMSNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.product import Product
from sigprop.theory.ops.residual import Residual

TOKENS, WIDTH = 24, 96
GENERATOR = torch.Generator()


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def alike(draws: int, cosine: float, width: int = WIDTH) -> torch.Tensor:
    """Tokens of variance 1 with one cosine, channels independent: `[draws, tokens, width]`."""
    return cosine**0.5 * drawn(draws, 1, width) + (1.0 - cosine) ** 0.5 * drawn(draws, TOKENS, width)


def state(cosine: float, width: int = WIDTH) -> Signal:
    kernel = (1.0 - cosine) * torch.eye(TOKENS, dtype=torch.float64) + cosine
    return Signal(Dense(kernel), torch.zeros(TOKENS, dtype=torch.float64), width)


def about_average(x: torch.Tensor) -> torch.Tensor:
    """Products of tokens about the average token."""
    apart = x - x.mean(1, keepdim=True)
    return apart @ apart.mT / x.shape[-1]


def fluctuation(x: torch.Tensor) -> torch.Tensor:
    """Of each draw: the squares of the products of different tokens, of unit size, less their mean; times the width."""
    product = about_average(x)
    product = product / product.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    different = ~torch.eye(TOKENS, dtype=torch.bool)
    return x.shape[-1] * (product - product.mean(0)).square()[:, different].mean(1)


def close(draws: torch.Tensor, expected: torch.Tensor | float, k: float = 4.0) -> None:
    mean, error = float(draws.mean()), float(draws.std() / len(draws) ** 0.5)
    assert abs(mean - float(expected)) < k * error, (mean, float(expected), error)


@pytest.mark.parametrize("name", ["gelu", "relu", "tanh"])
@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.95])
def test_fresh_channels_of_an_activation(name, cosine):
    GENERATOR.manual_seed(0)
    found = fluctuation(activations.get(name)(alike(300, cosine).double()))
    made = Activation(activations.get(name)).forward(state(cosine))
    close(found, made.fluctuation.pair)
    if cosine == 0.95 and name != "tanh":
        assert float(made.fluctuation.pair) > 1.5


def test_an_activation_passes_the_fluctuations_of_its_input():
    GENERATOR.manual_seed(1)
    cosine, hidden = 0.6, 4 * WIDTH
    up = alike(300, cosine) @ drawn(300, WIDTH, hidden) / WIDTH**0.5
    made = Linear(WIDTH, hidden, 1.0 / WIDTH).forward(state(cosine))
    close(fluctuation(up), made.fluctuation.pair)
    made = Activation(activations.get("gelu")).forward(made)
    close(fluctuation(F.gelu(up)), made.fluctuation.pair)
    assert float(made.fluctuation.pair_inherited) < float(made.fluctuation.pair) - 1.0


@pytest.mark.parametrize(("first", "second"), [(0.0, 0.0), (0.3, 0.7), (0.9, 0.9)])
def test_a_product_of_gaussian_tensors(first, second):
    GENERATOR.manual_seed(2)
    found = fluctuation(alike(400, first) * alike(400, second))
    close(found, Product().forward(state(first), state(second)).fluctuation.pair)


@pytest.mark.parametrize("order", [1, -1])
def test_a_stack_of_residual_mlps(order):
    """Post-LN, six layers: the skip path may be named first or last. To first order in 1/width, hence the width."""
    GENERATOR.manual_seed(3)
    cosine, draws, width, hidden, depth = 0.5, 40, 256, 512, 6
    x, node = F.layer_norm(alike(draws, cosine, width), (width,)), LayerNorm().forward(state(cosine, width))
    up, down = Linear(width, hidden, 1 / width), Linear(hidden, width, 1 / width)
    for _ in range(depth):
        inside = F.gelu(x @ drawn(draws, width, hidden) / width**0.5)
        x = F.layer_norm(x + inside @ drawn(draws, hidden, width) / width**0.5, (width,))
        branch = down.forward(Activation(activations.get("gelu")).forward(up.forward(node)))
        node = LayerNorm().forward(Residual().forward(*[node, branch][::order]))
    close(fluctuation(x), node.fluctuation.pair)
    assert float(node.fluctuation.pair) > 3.0


def test_independent_sources_have_nothing_in_step():
    GENERATOR.manual_seed(4)
    made = Residual().forward(state(0.2), state(0.6))
    close(fluctuation(alike(400, 0.2) + alike(400, 0.6)), made.fluctuation.pair)
    assert float(made.fluctuation.pair_inherited) == 0.0


@pytest.mark.parametrize("gate", ["identity", "silu"])
def test_factors_made_from_one_input_have_kernels_that_vary_together(gate):
    """The gated unit of a narrow network: tokens are more alike after it than the product of the kernels says."""
    GENERATOR.manual_seed(5)
    width, hidden, draws, cosine = 32, 128, 3000, 0.3
    x = F.rms_norm(alike(draws, cosine, width)[:, :2], (width,))
    first, second = (x @ drawn(draws, width, hidden) / width**0.5 for _ in range(2))
    z = activations.get(gate)(first.double()) * second
    node = RMSNorm(epsilon=0.0).forward(state(cosine, width))
    wide = Linear(width, hidden, 1.0 / width).forward(node)
    gated = Activation(activations.get(gate)).forward(wide)
    made, plain = Product().forward(gated, wide).kernel.values, gated.kernel.values * wide.kernel.values
    found = (z[:, 0] * z[:, 1]).mean(-1)
    close(found, made[0, 1])
    assert float(found.mean() - plain[0, 1]) > 4 * float(found.std()) / draws**0.5
    torch.testing.assert_close(made.diagonal(), plain.diagonal())


def test_an_average_over_tokens_is_hardly_in_step_with_them():
    GENERATOR.manual_seed(6)
    draws, weights = 400, torch.tril(torch.ones(TOKENS, TOKENS, dtype=torch.float64))
    for average in (weights / weights.sum(1, keepdim=True), torch.eye(TOKENS, dtype=torch.float64)):
        x = alike(draws, 0.0).double()
        inside, outside = about_average(x), about_average(average @ x)
        sizes = [k.diagonal(dim1=1, dim2=2).mean(1).mean() for k in (inside, outside)]
        together = ((inside - inside.mean(0)) * (outside - outside.mean(0))).mean((1, 2)) * WIDTH
        value, made = Dense(torch.eye(TOKENS, dtype=torch.float64)), Dense(average @ average.mT)
        centred = average - average.mean(0)
        rest = (centred * centred.mT).sum() / (TOKENS**2 * sizes[0] * sizes[1])
        close(together / (sizes[0] * sizes[1]), correlation(average, value, made) + rest)
    assert float(correlation(average, value, made)) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["relu", "silu", "sigmoid"])
def test_channels_that_are_zero_fluctuate_by_nothing_more(name):
    """A modulation that starts at zero, as a diffusion transformer's: 0/0 made attention above it a fault."""
    zero = Signal(
        Dense(torch.zeros(TOKENS, TOKENS, dtype=torch.float64)), torch.zeros(TOKENS, dtype=torch.float64), WIDTH
    )
    scale = Activation(activations.get(name)).forward(zero)
    assert float(scale.fluctuation.pair) == 1.0
    for made in (Product().forward(state(0.3), scale), Product().forward(state(0.3), zero)):
        assert all(bool(torch.as_tensor(item).isfinite()) for item in vars(made.fluctuation).values())
    assert float(Product().forward(state(0.3), zero).fluctuation.pair) == 1.0

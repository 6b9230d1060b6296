"""Parts of the state that matter at finite size, each against plain draws: k standard errors, no bare percentages."""

import torch

from sigprop.theory import Dense, Signal
from sigprop.theory.ops.normalization import LayerNorm
from sigprop.trace.structural import TokenLinear


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
    assert float(made.common_share) > 0.3

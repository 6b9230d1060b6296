"""One case or more for every op: the op, states for its inputs, and the same thing done to real tensors.

`simulate` takes drawn inputs `[draw, position, channel]` and returns the output and the parameters that were drawn
(leaves `[draw, ...]`, by the names that the op gives them). What a case leaves unchecked it says, with the reason or
the place of the test that does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from sigprop.theory import Dense, Signal, activations
from sigprop.theory.ops import sources
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.attention import Attention, DrawnAttention
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.batch_norm import BatchNorm, FiniteBatchNorm
from sigprop.theory.ops.cat import CatChannels, CatPositions
from sigprop.theory.ops.convolution import Convolution
from sigprop.theory.ops.drawn import Sampled
from sigprop.theory.ops.dropout import Dropout
from sigprop.theory.ops.expert_sum import ExpertSum
from sigprop.theory.ops.gain import Gain
from sigprop.theory.ops.gather import Gather, Scatter
from sigprop.theory.ops.group_norm import GroupNorm
from sigprop.theory.ops.layer_norm import LayerNorm, RMSNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.modulate import Modulate
from sigprop.theory.ops.narrow import Narrow
from sigprop.theory.ops.positions_to_channels import ChannelsToPositions, PositionsToChannels
from sigprop.theory.ops.product import Product
from sigprop.theory.ops.residual import BranchOrigin, Piece, Residual, SharedResidual, TokenResidual, VisitedResidual
from sigprop.theory.ops.scale import GradientScale, Scale
from sigprop.theory.ops.sources import GivenSignal, Lookup, ParameterSource
from sigprop.theory.ops.token_map import DrawnTokenLinear, TokenLinear, TokenMap
from tests.theory.ops.given_draws import DrawnFunction, GivenHeads

P, C = 4, 24
Simulated = tuple[Tensor, dict[str, Tensor]]
Simulation = Callable[[list[Tensor], torch.Generator], Simulated]
ELSEWHERE = ("forward", "backward", "parameters", "norm", "uniform", "directions", "along", "gain")


@dataclass(frozen=True)
class AllRows:
    """A law by its first two moments."""

    mean: float
    second_moment: float
    kind: str = "independent"
    unevenness: float = 1.0

    @property
    def variance(self) -> float:
        return self.second_moment - self.mean**2


@dataclass(frozen=True)
class Case:
    """An op with inputs. `linear`: it is one in expectation, without bias or mean, so that it has an adjoint."""

    op: Op
    inputs: tuple[Signal, ...]
    simulate: Simulation | None = None
    linear: bool = False
    energy: float = 1.0
    unchecked: dict[str, str] = field(default_factory=dict)
    allowed: float = 0.0
    """Relative error that the op states of itself, beside the standard errors."""


def random_kernel(size: int, seed: int, common: float = 0.6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, 2 * size, generator=generator, dtype=torch.float64) / (2 * size) ** 0.5
    return root @ root.T + common


def signal(seed: int = 0, width: int = C, positions: int = P, mean: float = 0.0, common: float = 0.6) -> Signal:
    level = torch.linspace(0.5, 1.0, positions, dtype=torch.float64) * mean
    kernel = random_kernel(positions, seed, common) + level[:, None] * level
    return Signal(Dense(kernel), level, width)


def alike(width: int = C, positions: int = P, correlation: float = 0.4) -> Signal:
    kernel = torch.full((positions, positions), correlation, dtype=torch.float64).fill_diagonal_(1.0)
    return Signal(Dense(kernel), torch.zeros(positions, dtype=torch.float64), width)


def fixed(function: Callable[..., Tensor]) -> Simulation:
    """A function without parameters."""
    return lambda xs, generator: (function(*xs), {})


def drawn(generator: torch.Generator, *shape: int, variance: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * variance**0.5).requires_grad_()


def linear(
    fan_in: int, fan_out: int, variance: float, bias: float | None = None, mean: float = 0.0, offset: float = 0.0
) -> Simulation:
    def simulate(xs: list[Tensor], generator: torch.Generator) -> Simulated:
        weight = (drawn(generator, len(xs[0]), fan_in, fan_out, variance=variance) + mean).detach().requires_grad_()
        if bias is None:
            return xs[0] @ weight, {"weight": weight}
        shift = (drawn(generator, len(xs[0]), 1, fan_out, variance=bias) + offset).detach().requires_grad_()
        return xs[0] @ weight + shift, {"weight": weight, "bias": shift}

    return simulate


def taken(x: Tensor, rows: Tensor) -> Tensor:
    """Windows `[draw, row, place, channel]`; -1 is a zero."""
    return F.pad(x, (0, 0, 0, 1))[:, rows]


def convolution(rows: Tensor, outputs: int, variance: float, groups: int = 1, mean: float = 0.0) -> Simulation:
    def simulate(xs: list[Tensor], generator: torch.Generator) -> Simulated:
        seen = taken(xs[0], rows).unflatten(-1, (groups, -1)).permute(0, 3, 1, 2, 4).flatten(3)
        weight = drawn(generator, len(seen), groups, seen.shape[-1], outputs, variance=variance) + mean
        weight = weight.detach().requires_grad_()
        return (seen @ weight).permute(0, 2, 1, 3).flatten(2), {"weight": weight}

    return simulate


def gained(op: Gain) -> Simulation:
    def simulate(xs: list[Tensor], generator: torch.Generator) -> Simulated:
        spread = (op.second_moment - op.mean**2) ** 0.5
        noise = torch.randn(len(xs[0]), 1, xs[0].shape[-1], generator=generator, dtype=torch.float64)
        weight = (op.mean + spread * noise).requires_grad_()
        return xs[0] * weight, {"weight": weight}

    return simulate


def normed(function: Callable[[Tensor], Tensor], bias: bool = True) -> Simulation:
    """A norm with gains of 1 and biases of 0."""

    def simulate(xs: list[Tensor], generator: torch.Generator) -> Simulated:
        (x,) = xs
        gain = torch.ones(len(x), 1, x.shape[-1], dtype=x.dtype, requires_grad=True)
        shift = torch.zeros(len(x), 1, x.shape[-1], dtype=x.dtype, requires_grad=True)
        found = {"weight": gain, "bias": shift} if bias else {"weight": gain}
        return function(x) * gain + shift, found

    return simulate


def standardized(dims: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        centred = x - x.mean(dims, keepdim=True)
        return centred / centred.square().mean(dims, keepdim=True).sqrt()

    return function


def dropped(probability: float) -> Simulation:
    def simulate(xs: list[Tensor], generator: torch.Generator) -> Simulated:
        mask = torch.rand(xs[0].shape, generator=generator, dtype=torch.float64) >= probability
        return xs[0] * mask / (1.0 - probability), {}

    return simulate


def scattered(index: Tensor, size: int) -> Simulation:
    return fixed(lambda x: torch.zeros(len(x), size, x.shape[-1], dtype=x.dtype).index_add(1, index, x))


def source(op: ParameterSource, draws: int) -> Simulation:
    def simulate(xs: list[Tensor], generator: torch.Generator) -> Simulated:
        noise = torch.randn(draws, 1, op.channels, generator=generator, dtype=torch.float64)
        weight = (op.mean + op.variance**0.5 * noise).requires_grad_()
        return weight.expand(-1, op.gram.tokens, -1), {"weight": weight}

    return simulate


def rows_of(ids: Tensor, op: ParameterSource, draws: int, zero: int = -1, untrained: int = -1) -> Simulation:
    """Rows of a table: one is zero, one is not trained."""

    def simulate(xs: list[Tensor], generator: torch.Generator) -> Simulated:
        table = op.mean + drawn(generator, draws, *op.shape, variance=float(op.variance))
        if zero >= 0:
            table[:, zero] = 0.0
        rows = table.requires_grad_()[:, ids]
        return torch.where((ids == untrained)[:, None], rows.detach(), rows), {"weight": table}

    return simulate


def of_numbers(windows: Tensor, op: ParameterSource, draws: int) -> Simulation:
    def simulate(xs: list[Tensor], generator: torch.Generator) -> Simulated:
        weight = drawn(generator, draws, windows.shape[1], op.channels, variance=float(op.variance))
        return windows @ weight, {"weight": weight}

    return simulate


OF_MEANS = {
    "uniform": "the share says it",
    "directions": "of the mean the radial share does not know",
    "along": "marked: what is along a signal with a mean is along all ones",
    "gain": "likewise",
}
DRAWS = 3000
ROWS = torch.tensor([[-1, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, -1]])
ONE = torch.arange(P)[:, None]
IDS = torch.tensor([0, 2, 0, 1])
EYE = torch.eye(P, dtype=torch.float64)
ONES = torch.ones(P, P, dtype=torch.float64)
NUMBERS = torch.randn(P, C, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 1.0
WINDOWS = torch.randn(P, 6, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
ATTENDED = random_kernel(P, 6).softmax(-1)
DRAWN = DrawnTokenLinear.draw(TokenLinear(P, 3, 0.25, channels=C), seed=1)
POOL = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.2, 0.3, 0.5]], dtype=torch.float64)
GAIN = Gain(1.3, 1.1, ONES, (C,), C, 1.2674)
CENTRED_GAIN = Gain(1.0, 0.0, ONES, (C,), C, 3.0)
BIAS = ParameterSource(Dense(ONES), 0.5, (C,), C, 0.3)
LOOKUP = Lookup.of(IDS, (5, C), AllRows(0.8 * 0.3, 0.8 * (0.7 + 0.3**2)), zero_rows=[2], padding=1)
TABLE = ParameterSource(sources.equal_ids(IDS), 0.7, (5, C), C)
PATCHES = ParameterSource(Dense(WINDOWS @ WINDOWS.T), 0.2, (16, 6), 16)
SOME = torch.full((P,), 0.6, dtype=torch.float64)
PIECE = Piece(SOME, torch.arange(P), SOME)
STRONG = "the square of a slope has fourth moments of the numbers, which are not known"

CASES: dict[str, Case] = {
    "activation, relu": Case(
        Activation(activations.get("relu")),
        (signal(width=64),),
        fixed(torch.relu),
        unchecked={"gain": "the argument of a further function is not Gaussian"},
    ),
    "activation, tanh": Case(
        Activation(activations.get("tanh")),
        (signal(width=64),),
        fixed(torch.tanh),
        unchecked={
            "norm": "the fourth moment of ReLU stands for that of any function",
            "gain": "the argument of a further function is not Gaussian",
        },
    ),
    "attention": Case(
        Attention(8),
        (signal(0), signal(1), signal(2)),
        unchecked=dict.fromkeys(ELSEWHERE, "fitted; tests/theory/ops/test_attention.py"),
    ),
    "batch norm": Case(
        BatchNorm(),
        (alike(positions=48),),
        normed(standardized((1,))),
        allowed=3.0 / 48,
        unchecked={"along": "ended", "gain": "the norm takes it out", "directions": "of order 1/batch"},
    ),
    "batch norm of few": Case(
        FiniteBatchNorm(),
        (alike(positions=12, correlation=0.2),),
        normed(standardized((1,))),
        allowed=2.0 / 12,
        unchecked={"along": "ended", "gain": "the norm takes it out", "directions": "of order 1/batch"},
    ),
    "cat channels": Case(
        CatChannels((0.25, 0.75), 48),
        (signal(0, 12), signal(1, 36)),
        fixed(lambda x, y: torch.cat((x, y), -1)),
        linear=True,
        unchecked={"gain": "ended", "along": "an average over the channels of both"},
    ),
    "cat positions": Case(
        CatPositions(),
        (signal(0), signal(1, positions=3)),
        fixed(lambda x, y: torch.cat((x, y), 1)),
        linear=True,
        unchecked={"gain": "the functions of each block only"},
    ),
    "channels to positions": Case(
        ChannelsToPositions(4),
        (signal(width=48, common=0.0),),
        fixed(lambda x: x.unflatten(-1, (4, -1)).flatten(1, 2)),
        linear=True,
        energy=0.25,
        unchecked={
            "norm": "the state's width is that of one output",
            "along": "ended",
            "directions": "the state's width is that of one output",
            "gain": "sum over the new axis: of a channel of the input",
        },
    ),
    "convolution": Case(Convolution(3 * C, 16, 0.02, rows=ROWS), (signal(),), convolution(ROWS, 16, 0.02), linear=True),
    "convolution in groups": Case(
        Convolution(3 * C // 2, 8, 0.02, rows=ROWS, groups=2),
        (signal(),),
        convolution(ROWS, 8, 0.02, groups=2),
        linear=True,
        unchecked={
            "norm": "to first order in the channels of one group",
            "gain": "to first order in the channels of one group",
        },
    ),
    "linear with means": Case(
        Linear(C, 16, 0.04, 0.3, mean=0.05, bias_mean=0.4),
        (signal(mean=0.5),),
        linear(C, 16, 0.04, 0.3, 0.05, 0.4),
        unchecked=OF_MEANS,
    ),
    "convolution with means": Case(
        Convolution(3 * C, 16, 0.02, rows=ROWS, mean=0.03),
        (signal(mean=0.5),),
        convolution(ROWS, 16, 0.02, mean=0.03),
        unchecked=OF_MEANS,
    ),
    "convolution of one": Case(
        Convolution(C, 16, 0.04, rows=ONE), (signal(),), convolution(ONE, 16, 0.04), linear=True
    ),
    "drawn attention": Case(
        DrawnAttention(GivenHeads(signal(), ATTENDED[None])),
        (signal(),),
        fixed(lambda value: ATTENDED @ value),
        unchecked=dict.fromkeys(("directions", "gain"), "ended"),
        allowed=1e-5,
    ),
    "drawn token linear": Case(
        DRAWN, (signal(),), fixed(lambda x: DRAWN.matrix @ x), linear=True, unchecked={"parameters": "test_ops.py"}
    ),
    "dropout": Case(
        Dropout(0.3),
        (signal(width=64),),
        dropped(0.3),
        linear=True,
        unchecked={"gain": "masked entries are not Gaussian", "leaning": STRONG},
    ),
    "embedding": Case(TABLE, (), rows_of(IDS, TABLE, DRAWS)),
    "expert sum": Case(
        ExpertSum(2), (signal(), signal(1)), unchecked=dict.fromkeys(ELSEWHERE, "tests/capture/test_experts.py")
    ),
    "gain": Case(
        GAIN,
        (signal(),),
        gained(GAIN),
        linear=True,
        unchecked={"leaning": STRONG},
    ),
    "gain, centred": Case(
        CENTRED_GAIN,
        (signal(),),
        gained(CENTRED_GAIN),
        linear=True,
        unchecked={"leaning": STRONG},
    ),
    "gather, slice": Case(Gather(torch.tensor([1, 3])), (signal(),), fixed(lambda x: x[:, [1, 3]]), linear=True),
    "gather, repeats": Case(
        Gather(torch.tensor([0, 1, 1, 3, 0])), (signal(),), fixed(lambda x: x[:, [0, 1, 1, 3, 0]]), linear=True
    ),
    "gather, copies": Case(
        Gather(torch.arange(P), copies=3.0, width=3 * C),
        (signal(),),
        fixed(lambda x: x.repeat(1, 1, 3)),
        linear=True,
        unchecked={
            "along": "copies lean to one entry together: their slopes add up squared",
            "gain": "likewise",
            "directions": "the state's width is that of the copies",
        },
    ),
    "group norm": Case(
        GroupNorm(),
        (signal(width=96, common=0.1),),
        normed(standardized((1, 2))),
        allowed=2.0 / 96,
        unchecked={"parameters": "to first order in the size of an image"},
    ),
    "input convolution": Case(PATCHES, (), of_numbers(WINDOWS, PATCHES, DRAWS)),
    "layer norm": Case(
        LayerNorm(epsilon=0.0),
        (signal(width=96),),
        normed(standardized((2,))),
        allowed=1.0 / 96,
        unchecked={"gain": "ended"},
    ),
    "linear": Case(Linear(C, 16, 0.04), (signal(),), linear(C, 16, 0.04), linear=True),
    "linear with bias": Case(Linear(C, 16, 0.04, 0.3), (signal(),), linear(C, 16, 0.04, 0.3)),
    "mean pool": Case(TokenMap.mean(P), (signal(),), fixed(lambda x: x.mean(1, keepdim=True)), linear=True),
    "modulate": Case(
        Modulate(NUMBERS @ NUMBERS.T / C, NUMBERS.mean(1)),
        (signal(),),
        fixed(lambda x: x * NUMBERS),
        linear=True,
        unchecked={
            "norm": "the fourth moment of the numbers is not known",
            "gain": "numbers that differ between channels make entries that are not Gaussian",
            "leaning": STRONG,
        },
    ),
    "narrow": Case(Narrow(0.25, C // 4), (signal(),), fixed(lambda x: x[..., : C // 4]), linear=True),
    "lookup": Case(LOOKUP, (), rows_of(IDS, LOOKUP, DRAWS, zero=2, untrained=1)),
    "parameter source": Case(BIAS, (), source(BIAS, DRAWS)),
    "positions to channels": Case(
        PositionsToChannels(ROWS, 3 * C),
        (signal(),),
        fixed(lambda x: taken(x, ROWS).flatten(2)),
        linear=True,
        unchecked={"along": "ended", "gain": "of a channel that several positions share"},
    ),
    "product": Case(
        Product(),
        (signal(0, 64), signal(1, 64, mean=0.5)),
        fixed(lambda x, y: x * y),
        unchecked={"gain": "ended"},
    ),
    "residual": Case(
        Residual(0.8, 0.5),
        (signal(0), signal(1)),
        fixed(lambda x, f: 0.8 * x + 0.5 * f),
        linear=True,
    ),
    "rms norm": Case(
        RMSNorm(epsilon=0.0),
        (signal(width=96),),
        normed(lambda x: x / x.square().mean(-1, keepdim=True).sqrt(), bias=False),
        allowed=1.0 / 96,
        unchecked={"gain": "ended"},
    ),
    "gradient scale": Case(
        GradientScale(slope=0.4), (signal(),), fixed(lambda x: 0.4 * x + 0.6 * x.detach()), unchecked={"gain": "ended"}
    ),
    "sampled": Case(
        Sampled(DrawnFunction(torch.tanh, signal()), "drawn"),
        (signal(),),
        fixed(torch.tanh),
        unchecked={"along": "ended", "norm": "by its inverse mean"},
        allowed=0.05,
    ),
    "given": Case(GivenSignal(signal()), ()),
    "stream": Case(BranchOrigin(), (signal(),), fixed(lambda x: 1.0 * x), linear=True),
    "scale": Case(Scale(0.3), (signal(),), fixed(lambda x: 0.3 * x), linear=True),
    "scatter": Case(
        Scatter(torch.tensor([0, 5, 3, 1]), 6), (signal(),), scattered(torch.tensor([0, 5, 3, 1]), 6), linear=True
    ),
    "scatter, meeting": Case(
        Scatter(torch.tensor([0, 2, 2, 1]), 4),
        (signal(),),
        scattered(torch.tensor([0, 2, 2, 1]), 4),
        linear=True,
        unchecked={"norm": "that of a sum of tokens", "directions": "likewise"},
    ),
    "shared residual": Case(
        SharedResidual(pieces=((PIECE, PIECE),)),
        (signal(0), signal(1), signal(2)),
        unchecked=dict.fromkeys(ELSEWHERE, "tests/capture/test_shared_parts.py"),
    ),
    "visited residual": Case(
        VisitedResidual(between=0.1 * torch.eye(P, dtype=torch.float64)),
        (signal(0), signal(1)),
        unchecked=dict.fromkeys(ELSEWHERE, "tests/capture/test_visits.py"),
    ),
    "token linear": Case(
        TokenLinear(P, 6, 0.1, 0.2, channels=C),
        (signal(width=C),),
        unchecked=dict.fromkeys(ELSEWHERE, "test_ops.py, tests/capture/test_finite_size.py"),
    ),
    "token map": Case(TokenMap(POOL), (signal(),), fixed(lambda x: POOL @ x), linear=True),
    "token residual": Case(
        TokenResidual(cross=random_kernel(P, 9) * 0.1),
        (signal(0), signal(1)),
        unchecked=dict.fromkeys(ELSEWHERE, "tests/theory/ops/test_ops.py"),
    ),
}

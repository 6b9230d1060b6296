"""Where signals start: tables of embeddings, parameters themselves, states that are given."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.theory.kernels import Dense, Exchangeable, Kernel
from sigprop.theory.ops.base import Law, Op, ParameterState
from sigprop.theory.states import EXACT, Evidence, Fluctuation, Gradient, Signal, exchangeable_signal, starts


@dataclass(frozen=True, eq=False)
class GivenSignal(Op):
    """A tensor that no op of the chain made.

    Forward   `K` and mean as given
    Weights   none

    It has no input: the signal starts here. Exact.
    """

    carries = starts("what is given has the parts that it was given with")

    signal: Signal

    def forward(self, *inputs: Signal) -> Signal:
        return self.signal

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[()]:
        return ()


@dataclass(frozen=True, eq=False)
class ParameterSource(Op):
    """A parameter used as a tensor of the network: biases, learned positions, class tokens, latents.

    Forward   `K = variance * same + average^2`, `same` telling which positions share entries
    Weights   total over entries `channels * sum_pp' same G`

    It has no input: the signal starts here. Exact.
    """

    carries = starts("independent entries")

    variance: float
    average: float
    same: Tensor
    shape: tuple[int, ...]
    channels: int

    def forward(self, *inputs: Signal) -> Signal:
        kernel = Dense(self.variance * self.same + self.average**2)
        return Signal(kernel, torch.full((len(self.same),), self.average, dtype=torch.float64), self.channels)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient, ...]:
        return ()

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        total = self.channels * (gradient.kernel.values * self.same).sum()
        return [ParameterState("weight", self.shape, "source", self.variance, total / math.prod(self.shape))]

    def with_law(self, parameter: str, law: Law) -> ParameterSource:
        return replace(self, variance=law.variance, average=law.mean)


@dataclass(frozen=True, eq=False)
class Lookup(ParameterSource):
    """`x_p = E[id_p]`: rows of a parameter; `same` tells which positions read one row.

    Forward   `K = (variance * same + average^2) drawn_p drawn_p'`: 0 at rows that are set to zero
    Weights   total over entries `channels * sum_pp' same G` over the positions whose row is `trained`

    It has no input: the signal starts here. Exact.
    """

    carries = starts("independent rows")

    multiplies = False
    drawn: Tensor
    trained: Tensor
    zero_share: float = 0.0
    """Of the rows, those that are set to zero: a law is that of all."""

    def with_law(self, parameter: str, law: Law) -> Lookup:
        if not self.zero_share:
            return replace(self, variance=law.variance, average=law.mean)
        mean = law.mean / (1.0 - self.zero_share)
        return replace(self, variance=law.second_moment / (1.0 - self.zero_share) - mean**2, average=mean)

    def forward(self, *inputs: Signal) -> Signal:
        kernel = (self.variance * self.same + self.average**2) * self.drawn[:, None] * self.drawn
        return Signal(Dense(kernel), self.average * self.drawn, self.channels)

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        pairs = gradient.kernel.values * self.same * self.trained[:, None] * self.trained
        level = self.channels * pairs.sum() / math.prod(self.shape)
        return [ParameterState("weight", self.shape, "source", self.variance, level)]


EULER = 0.5772156649015329
SEGMENT_CORRELATION = 2.0 / 3.0


def zipf_coincidence(vocabulary: int) -> float:
    """Probability `sum_i p_i^2` that two tokens drawn from Zipf's law are equal (corrects dslm B.1).

    Exact; for large vocabularies about `(pi^2/6) / (gamma + log V)^2`.
    """
    require(vocabulary >= 1, "vocabulary", vocabulary, "at least 1")
    rank = torch.arange(1, vocabulary + 1, dtype=torch.float64)
    return float((1 / rank**2).sum() / (1 / rank).sum() ** 2)


def zipf_coincidence_asymptotic(vocabulary: int) -> float:
    return (math.pi**2 / 6) / (EULER + math.log(vocabulary)) ** 2


@dataclass(frozen=True)
class Embedding(Op):
    """`x_t = E[id_t]`: rows of a table with `Var E = variance`. `same` holds `P(id_t = id_t')`.

    Forward   `K = variance * same`, mean 0
    Weights   `E[(dL/dE)^2] = sum_tt' G same / rows`, averaged over the entries of the table

    It has no input: the signal starts here. Exact.
    """

    carries = starts("independent entries")

    same: Kernel
    variance: Tensor | float
    width: int
    rows: int
    role: str = "embedding"
    evidence: Evidence = EXACT

    def forward(self, *inputs: Signal) -> Signal:
        kernel = self.same.scale(self.variance)
        return Signal(kernel, torch.zeros_like(kernel.diagonal), self.width, evidence=self.evidence)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[()]:
        return ()

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        found = gradient.kernel.contract(self.same) / self.rows
        return [ParameterState("weight", (self.rows, self.width), self.role, self.variance, found)]

    def with_law(self, parameter: str, law: Law) -> Embedding:
        return replace(self, variance=law.variance)


def equal_ids(ids: Tensor, others: Tensor | None = None) -> Dense:
    """Real token ids: two tokens share a row exactly when their ids are equal."""
    return Dense((ids[..., :, None] == (ids if others is None else others)[..., None, :]).double())


def zipf_tokens(vocabulary: int, tokens: int) -> Exchangeable:
    """Exchangeable tokens drawn from Zipf's law."""
    return Exchangeable.of(1.0, zipf_coincidence(vocabulary), tokens)


def zipf_next(vocabulary: int, tokens: int) -> Exchangeable:
    """`P(id_t = id_{t'+1})` for tokens drawn from Zipf's law: one of all pairs is the token itself."""
    chance = zipf_coincidence(vocabulary)
    return Exchangeable.of(chance, chance + (1.0 - chance) / tokens, tokens)


def one_per_position(tokens: int) -> Exchangeable:
    """A row for each position."""
    return Exchangeable.of(1.0, 0.0, tokens)


def two_segments(tokens: int) -> Exchangeable:
    """Two segments split at a uniformly random point: correlation 2/3."""
    return Exchangeable.of(1.0, SEGMENT_CORRELATION, tokens)


def sinusoidal_positions(tokens: int, width: int, amplitude: float = 1.0) -> Signal:
    """The fixed sine and cosine table: `K[t,t'] = (1/width) sum_c e_tc e_t'c`, deterministic."""
    position = torch.arange(tokens, dtype=torch.float64)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
    table = torch.cat((torch.sin(position * rate), torch.cos(position * rate)), -1) * amplitude
    return Signal(Dense(table @ table.T / table.shape[-1]), table.mean(-1), width)


def patches(pixels: Tensor) -> Signal:
    """Image patches `[..., T, pixels_per_patch]`, given: `K = x x^T / pixels_per_patch`."""
    x = pixels.double()
    return Signal(Dense(x @ x.transpose(-1, -2) / x.shape[-1]), x.mean(-1), x.shape[-1], Fluctuation(norm=0.0))


def noise_patches(correlation: Tensor | float, tokens: int, values: int) -> Signal:
    """Patches of unit second moment with a given correlation between them."""
    signal = exchangeable_signal(1.0, correlation, tokens=tokens, width=values)
    return replace(signal, fluctuation=Fluctuation(norm=0.0))

"""Where signals start: tables of embeddings, parameters themselves, states that are given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sigprop.errors import require
from sigprop.theory.corrections.gates import along_weights
from sigprop.theory.corrections.kurtosis import of_weights
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
    numbers: Tensor | None = None
    """Those that it was given as, `[position, channel]`."""

    def forward(self, *inputs: Signal) -> Signal:
        return self.signal

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[()]:
        return ()


@dataclass(frozen=True, eq=False)
class ParameterSource(Op):
    """Parameters summed with given numbers: `y_p = sum_e a_pe w_e + b`, with fresh `w_e` in every channel.

    A parameter itself (biases, learned positions, class tokens, latents) and the rows of a table have one `a_pe = 1` at
    each position; a convolution of real numbers has its windows for `a_p`. Known of them are `gram[p,p'] = sum_e a_pe
    a_p'e` (that positions share an entry, its probability where ids are random), `sums[p] = sum_e a_pe` where `w` has a
    mean, and `trained`, the gram of what gets a gradient, where that is not all.

    Forward   `K = variance * gram + bias_variance + m m'`, `m = mean * sums + bias_mean`
    Weights   total over entries `channels * sum_pp' G trained`

    It has no input: the signal starts here. Exact. `centred` weights (see `Linear`) take the gram of windows about
    their means.
    """

    carries = starts("independent entries make independent channels")

    gram: Kernel
    variance: Tensor | float
    shape: tuple[int, ...]
    channels: int
    mean: float = 0.0
    sums: Tensor | float = 1.0
    trained: Kernel | None = None
    bias_variance: float | None = None
    bias_mean: float = 0.0
    centred: bool = False
    tails: float = 0.0
    """The excess kurtosis of the weights."""
    role: str = "source"
    evidence: Evidence = EXACT

    def forward(self, *inputs: Signal) -> Signal:
        kernel = self.gram.scale(self.variance)
        mean = torch.zeros_like(kernel.diagonal) + self.sums * self.mean + self.bias_mean
        values = kernel.values + (self.bias_variance or 0.0)
        kernel = kernel.like(values + kernel.outer(mean, mean).values if torch.any(mean) else values)
        return Signal(kernel, mean, self.channels, evidence=self.evidence)

    def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[()]:
        return ()

    def parameters(self, gradient: Gradient, *inputs: Signal) -> list[ParameterState]:
        total = self.channels * gradient.kernel.contract(self.trained or self.gram)
        found = [ParameterState("weight", self.shape, self.role, self.variance, total / math.prod(self.shape))]
        if self.bias_variance is not None:
            found.append(ParameterState("bias", (self.channels,), "bias", 0.0, gradient.summed()))
        return found

    def kurtosis(self, output: Signal, inputs: Sequence[Signal], below: Sequence[Tensor | None]) -> Tensor | None:
        entries = math.prod(self.shape) // self.channels
        return None if self.mean else of_weights(self.tails, entries, self.gram.scale(self.variance), output.kernel)

    def along_rows(self, gradient: Gradient, *inputs: Signal) -> float | None:
        entries = math.prod(self.shape) // self.channels
        if self.mean or self.shape[0] != self.channels:
            return None
        brought = self.gram.scale(self.variance)
        return along_weights(gradient, brought, entries, self.bias_variance, self.bias_mean)

    def with_law(self, parameter: str, law: Law) -> ParameterSource:
        if parameter == "bias":
            return replace(self, bias_variance=law.variance, bias_mean=law.mean)
        return replace(self, variance=law.variance, mean=law.mean, tails=law.tails)


@dataclass(frozen=True, eq=False)
class Lookup(ParameterSource):
    """`x_p = E[id_p]`: rows of a parameter, of which some are set to zero.

    Forward   as `ParameterSource`; the distribution is that of all rows, `zero_share` of which are zero
    Weights   likewise
    """

    carries = ParameterSource.carries

    multiplies = False

    zero_share: float = 0.0

    @classmethod
    def of(
        cls, ids: Tensor, shape: tuple[int, ...], law: Law, zero_rows: Sequence[int] = (), padding: int = -1
    ) -> Lookup:
        """The rows at some ids of a table of such a distribution; that at `padding` is not trained."""
        drawn = (~torch.isin(ids, torch.tensor(zero_rows, dtype=ids.dtype))).double()
        same, trained = equal_ids(ids), (ids != padding).double()
        gram = same * same.outer(drawn, drawn)
        made = cls(gram, 0.0, shape, shape[-1], sums=drawn, trained=same * same.outer(trained, trained))
        return replace(made, zero_share=len(zero_rows) / shape[0]).with_law("weight", law)

    def with_law(self, parameter: str, law: Law) -> Lookup:
        if not self.zero_share:
            return replace(self, variance=law.variance, mean=law.mean)
        mean = law.mean / (1.0 - self.zero_share)
        return replace(self, variance=law.second_moment / (1.0 - self.zero_share) - mean**2, mean=mean)


SEGMENT_CORRELATION = 2.0 / 3.0


def zipf_coincidence(vocabulary: int) -> float:
    """Probability `sum_i p_i^2` that two tokens drawn from Zipf's law are equal (corrects dslm B.1).

    Exact; for large vocabularies about `(pi^2/6) / (gamma + log V)^2`.
    """
    require(vocabulary >= 1, "vocabulary", vocabulary, "at least 1")
    rank = torch.arange(1, vocabulary + 1, dtype=torch.float64)
    return float((1 / rank**2).sum() / (1 / rank).sum() ** 2)


def equal_ids(ids: Tensor, others: Tensor | None = None) -> Dense:
    """Real token ids: two tokens share a row exactly when their ids are equal."""
    return Dense((ids[..., :, None] == (ids if others is None else others)[..., None, :]).double())


def zipf_tokens(vocabulary: int, tokens: int) -> Exchangeable:
    """Exchangeable tokens drawn from Zipf's law."""
    return Exchangeable.of(1.0, zipf_coincidence(vocabulary), tokens)


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

"""What is kept of the torch functions of one forward pass: plain numbers by the name of the module that runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Activity:
    """Shares of units: zero on every position, and of entries within 5 % of a bound; the largest channel's share.

    `channel_share` is the second moment of the largest channel over the sum of all channels'. `silent`: what the dead
    units read is zero itself. `reads`: root mean square of what the bounded entries read, `maker`: what made it.
    """

    dead: float = 0.0
    silent: bool = False
    saturated: float = 0.0
    reads: float = 0.0
    maker: str = ""
    channel_share: float = 0.0
    channel: int = -1
    channels: int = 0


@dataclass(frozen=True)
class MadeBy:
    """What made a tensor: the module of the last matrix before it; `factors`: of a product of two signals theirs, each
    with its mean square."""

    site: str
    factors: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class LossCall:
    """One loss that the model (or the loss function) computes, beside that of a guess: equal logits, or zeros.

    `variance`: of the logits over the classes, `source`: what made them. `probabilities`: the logits of a cross entropy
    sum to one already. `summed`: over how many labels the loss is a sum; 0 for a mean. `wanted`: root mean
    square of the targets of a regression; `offset`: the labels are token ids of the batch, this many places later.
    """

    site: str
    kind: str
    classes: int
    value: float
    chance: float
    variance: float
    probabilities: bool = False
    labelled: bool = True
    summed: int = 0
    wanted: float = 0.0
    source: MadeBy | None = None
    offset: int | None = None


@dataclass(frozen=True)
class NormInput:
    """Median over positions of the variance (mean square) that a norm divides by, and its epsilon; of `vectors` that
    are divided by their lengths, both squared."""

    variance: float
    epsilon: float
    vectors: bool = False


@dataclass(frozen=True)
class Routing:
    """One choice among `options`, over `positions` tokens: how many options take nine tenths of them."""

    options: int
    chosen: int
    positions: int
    busy: int


@dataclass(frozen=True)
class Gate:
    """A sigmoid: its mean, and its slope over that at zero."""

    mean: float
    slope: float


@dataclass(frozen=True)
class Softmax:
    """Average largest weight, the variance of the logits over the options, and how many options are open on average.

    `logits`: to be compared with those of another batch. `places`: one logit for each pair of two positions, with the
    softmax along another axis than the last. `source`: what made the logits.
    """

    largest: float
    variance: float
    options: float
    logits: Tensor | None = None
    places: bool = False
    source: MadeBy | None = None


@dataclass
class Calls:
    """By name of the module that runs.

    `normalized`: mean squares of what a norm reads, of what it makes, and of what its gain (the parameter, or one
    plus it) and bias would make. `inputs`: root mean square of numbers of the
    batch that a matrix multiplies as they are, of what comes of it, and their std. `positions`: variance of a
    table's rows and of the numbers that are added to them, and the parameters that these are. `exponents`: median
    of what an exponential reads. `weights`: of a matrix that is made of several parameters its root mean square
    times sqrt(fan_in), and their names. `blind`: queries whose scores are all -inf; `unseen`: sequences of which no
    key may be seen; `bounded`: what takes logits and is given what a function has bounded already: place, reader,
    that function; `unlikely`: losses of logarithms of probabilities that sum to another number than one; `broadcast`:
    losses whose output and target have unlike shapes; `unreached`: losses whose output an activation bounds: place,
    activation, share of the targets beyond its bounds.
    `itself`: losses over pairs in which each example is most like itself, which is never the right answer.
    `across`: weights of pairs whose rows are summed over, and whose columns a softmax made sum to one. `multiplied`:
    parameters that stand in a product as a matrix. `steps`: by place, function and shape the mean squares of what each
    call of it makes. `future`: attentions that see nothing but what comes after; `attends`: a softmax compares
    positions (or heads) with one another.
    """

    activity: dict[str, Activity] = field(default_factory=dict)
    losses: list[LossCall] = field(default_factory=list)
    dropouts: dict[str, float] = field(default_factory=dict)
    norms: dict[str, NormInput] = field(default_factory=dict)
    routings: dict[str, Routing] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)
    softmaxes: dict[str, Softmax] = field(default_factory=dict)
    inputs: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    exponents: dict[str, float] = field(default_factory=dict)
    detached: dict[str, int] = field(default_factory=dict)
    normalized: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    positions: dict[str, tuple[float, float, tuple[str, ...]]] = field(default_factory=dict)
    weights: dict[str, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    blind: dict[str, int] = field(default_factory=dict)
    bounded: list[tuple[str, str, str]] = field(default_factory=list)
    unlikely: list[tuple[str, str, float]] = field(default_factory=list)
    broadcast: list[tuple[str, tuple, tuple]] = field(default_factory=list)
    unreached: list[tuple[str, str, float]] = field(default_factory=list)
    unseen: dict[str, int] = field(default_factory=dict)
    attends: bool = False
    itself: list[str] = field(default_factory=list)
    multiplied: set[str] = field(default_factory=set)
    across: list[str] = field(default_factory=list)
    steps: dict[tuple, list[float]] = field(default_factory=dict)
    future: list[str] = field(default_factory=list)

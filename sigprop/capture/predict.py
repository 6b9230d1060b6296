"""`predict`: forward and backward moments of any model, from theory, without its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sigprop.batches import shortened
from sigprop.capture.capture import LONG, PASSES, REPEATED, SEQUENCES, CaptureOptions
from sigprop.capture.identical_sequences import Started, first_sequences, two_sequences
from sigprop.capture.long_contexts import continued
from sigprop.capture.record import Uneven
from sigprop.capture.replayed_function import ReplayedFunction
from sigprop.capture.rows import SiteRows, parameter_rows, placed, score_rows
from sigprop.capture.skipped_rows import with_skipped_rows
from sigprop.capture.tracing import TracedModel, followed
from sigprop.distributions import build
from sigprop.errors import require
from sigprop.graph.evaluate import Evaluation, Start
from sigprop.isolation import as_written, undisturbed
from sigprop.losses import LossChoice, require_loss
from sigprop.results import Profile, SiteRow
from sigprop.results.stated_errors import mark_vanished
from sigprop.theory import Status

SHORTEST = 16
"""Tokens from which on longer sequences are continued and not cut."""


@dataclass(frozen=True, kw_only=True)
class TheoryOptions(CaptureOptions):
    """How `predict` follows a model: as `CaptureOptions` say, and

    loss: what is differentiated, as for `measure`: the model's own loss, else its output against white noise, when
        None; "cross_entropy", "mse", "noise", or a function of (output) or (output, batch), which is traced like the
        model. See `sigprop.losses`.
    tokens: longest sequence that is followed; longer ones are continued from it and from half of it, which the rows
        say (below 16 tokens they are cut, which `meta` says).
    networks: 1 follows the average network; more follow that many with their own heads and average them, which is more
        exact for models with few heads and takes as many times longer.
    scores: also predict attention scores (`module.scores`): variance, entropy, largest weight, as `measure` does.
    """

    loss: LossChoice = None
    tokens: int = 128
    networks: int = 1
    scores: bool = False
    passes: Collection[str] = tuple(PASSES)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_loss(self.loss)
        require(self.networks >= 1, "networks", self.networks, "at least 1")
        require(self.tokens >= 2, "tokens", self.tokens, "at least 2")


def predict(model: nn.Module | Callable[[], nn.Module], batch: Any, **options: Any) -> Profile:
    """Moments of every module output and of its gradient, and of every parameter's gradient.

    model: an nn.Module (left as it was), or a function that builds one, which is done without weights.
    batch: a tensor, a tuple or a mapping, as for `measure`.
    The options are those of `TheoryOptions`.
    """
    settings = TheoryOptions(**options)
    with undisturbed() as interrupts, interrupts.let_through():
        if settings.networks == 1:
            return _predict(model, batch, settings)
        loaded = _loaded(model)
        return averaged([_predict(loaded, batch, replace(settings, network=n)) for n in range(settings.networks)])


def _predict(model: Any, batch: Any, settings: TheoryOptions) -> Profile:
    loaded, tokens = _loaded(model), settings.tokens
    if LONG not in settings.passes:
        return _followed(model, loaded, batch, settings)
    short, cut = shortened(batch, tokens)
    found = _followed(model, loaded, short, settings)
    if cut is None:
        return found
    if tokens < SHORTEST:
        found.meta["cut"] = f"sequences cut from {cut[0]} to {cut[1]} tokens"
        return found
    half = _followed(model, loaded, shortened(batch, tokens // 2)[0], settings)
    found.meta["passes"] = [*found.meta["passes"], LONG]
    return continued(half, found, tokens, cut[0])


def _followed(model: Any, loaded: nn.Module, batch: Any, settings: TheoryOptions) -> Profile:
    """With jumps over alike blocks where there are many; all of them where they turn out to be uneven."""
    try:
        return _followed_once(model, loaded, batch, settings)
    except Uneven:
        return _followed_once(model, loaded, batch, replace(settings, passes=frozenset(settings.passes) - {REPEATED}))


def _followed_once(model: Any, loaded: nn.Module, batch: Any, settings: TheoryOptions) -> Profile:
    """A batch with all its kernels, or, of many alike sequences, with those of the first two."""
    own = not isinstance(model, nn.Module) and all(parameter.is_meta for parameter in loaded.parameters())

    def started(count: int | None) -> Started:
        made = followed(loaded, batch if count is None else first_sequences(batch, count), settings, copy=not own)
        return made, *made.differentiate(settings.loss)

    many = two_sequences(loaded, batch, started) if SEQUENCES in settings.passes else None
    found, start, name = many.started if many else started(None)
    meta: dict[str, Any] = {"source": "predict", "model": type(loaded).__name__, "loss": name}
    sites = _site_rows(found, start, meta)
    if many:
        many.continue_to_batch(sites)
        meta["sequences"] = (
            f"{many.sequences} sequences, equal in distribution and separate until the loss, the first two followed"
        )
    if settings.scores:
        sites = placed(sites, score_rows(found, settings.seed))
    meta["passes"] = [*found.passes, *([SEQUENCES] if many else [])]
    profile = Profile(sites, parameter_rows(found), meta)
    for run in found.runs:
        profile = with_skipped_rows(profile, run)
    mark_vanished((*profile.sites, *profile.parameters))
    return profile


def _site_rows(found: TracedModel, start: Start, meta: dict[str, Any]) -> list[SiteRow]:
    """Rows of the sites after the backward pass; what a user's hooks make uncertain is noted."""
    if found.unheard:
        meta["hooks"] = f"forward hooks on {', '.join(found.unheard)} were not run: they are for real tensors"
    if found.unfollowed:
        start = start.note(Status.ASSUMED, f"backward hooks on {', '.join(found.unfollowed)} are not followed")
    rows = SiteRows(found, start)
    found.states.backward(start, rows.take_gradient)
    meta["operations"] = operations_of(found.states, found.capture.drawn)
    return rows.finish()


def _loaded(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    return as_written(model) if isinstance(model, nn.Module) else build(model)


PER_NODE, PER_REPLICA = 5e7, 2e7
PER_PAIR = 5e3
"""For each pair of positions of a node: roots and products of its kernel."""
PER_DRAWN_PAIR = 6.0
"""For each pair of positions of a drawn tensor, channel and replica: its kernel, forward and backward."""


def operations_of(states: Evaluation, drawn: Sequence[ReplayedFunction]) -> float:
    """Of the forward and the backward pass over all nodes."""
    draws = sum(map(_of_draws, drawn))
    return draws + sum(PER_NODE + PER_PAIR * count**2 for count in states.sizes())


def _of_draws(function: ReplayedFunction) -> float:
    drawn = [function.target, *function.parts, *function.sites_between]
    pairs = sum(item.layout.positions**2 * item.layout.channels for item in drawn)
    return function.replicas * (PER_REPLICA + PER_DRAWN_PAIR * pairs)


def averaged(found: Sequence[Profile]) -> Profile:
    """The average over several networks, row by row."""
    sites, parameters = _rows([item.sites for item in found]), _rows([item.parameters for item in found])
    return Profile(sites, parameters, found[0].meta | {"networks": len(found)})


def _rows(found: Sequence[Sequence[Any]]) -> list[Any]:
    """Rows of the first network, each with the averages of the rows of its name."""
    named: dict[str, list[Any]] = {}
    for row in (row for rows in found for row in rows):
        named.setdefault(row.name, []).append(row)
    return [replace(row, **{name: _average(named[row.name], name) for name in type(row).COLUMNS}) for row in found[0]]


def _average(rows: Sequence[Any], column: str) -> float:
    values = [getattr(row, column) for row in rows if not math.isnan(getattr(row, column))]
    return sum(values) / len(values) if values else math.nan

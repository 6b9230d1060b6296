"""`predict`: forward and backward moments of any model, from theory, without its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.errors import require
from sigprop.losses import LossChoice, require_loss
from sigprop.process import as_written, undisturbed
from sigprop.results import ParameterRow, Profile, SiteRow
from sigprop.results.depth import DepthCounter
from sigprop.results.stated_errors import mark_vanished, stated_by_theory
from sigprop.theory import Evidence, Gradient, Node, Signal, Status
from sigprop.theory.ops.linear import Linear
from sigprop.trace.attention_scores import placed, score_rows
from sigprop.trace.evaluate import Evaluation, Start
from sigprop.trace.inputs import shortened
from sigprop.trace.layout import BATCH, Layout
from sigprop.trace.layout import LARGEST as MOST_POSITIONS
from sigprop.trace.length import continued
from sigprop.trace.networks import average, averaged
from sigprop.trace.record import Field, Uneven
from sigprop.trace.replayed_function import MOST_REPLAYED, function_of
from sigprop.trace.roles import find_roles
from sigprop.trace.sequences import Started, first_sequences, pairs_of, two_sequences
from sigprop.trace.skeleton import build
from sigprop.trace.skipped_rows import with_skipped_rows
from sigprop.trace.tracing import TracedModel, trace
from sigprop.trace.work import operations_of

LARGEST = 1024
SHORTEST = 16
FEW = 32
"""Channels up to which their own average counts: beyond it is at most 3 % of a variance."""
Axes = tuple[tuple[int, bool], ...]
"""For each axis of positions its size and whether it is the batch."""


def predict(
    model: nn.Module | Callable[[], nn.Module],
    batch: Any,
    *,
    loss: LossChoice = None,
    state: str = "kernel",
    tokens: int = 128,
    networks: int = 1,
    dtype: torch.dtype = torch.float64,
    scores: bool = False,
    seed: int = 0,
    positions: int = MOST_POSITIONS,
    replayed: int = MOST_REPLAYED,
) -> Profile:
    """Moments of every module output and of its gradient, and of every parameter's gradient.

    model: an nn.Module (left as it was), or a function that builds one, which is done without weights.
    batch: a tensor, a tuple or a mapping, as for `measure`.
    loss: what is differentiated, as for `measure`: the model's own loss, else its output against white noise, when
        None; "cross_entropy", "mse", "noise", or a function of (output) or (output, batch), which is traced like the
        model. See `sigprop.losses`.
    state: "kernel" follows every pair of tokens; "preview" takes all tokens as alike (fast, less exact).
    tokens: longest sequence that is followed; longer ones are continued from it and from half of it, which the rows
        say (below 16 tokens, and in a preview, they are cut, which `meta` says).
    networks: 1 follows the average network; more follow that many with their own heads and average them, which is more
        exact for models with few heads and takes as many times longer.
    dtype: of the kernels that are kept; float32 takes half their memory, which counts for many tokens.
    scores: also predict attention scores (`module.scores`): variance, entropy, largest weight, as `measure` does.
    positions: of a tensor with channels, at most (examples times pixels, or times tokens): kernels of more are refused.
    replayed: calls of functions without a rule that are drawn, at most: of a recurrence every step draws those before.
    """
    settings: dict[str, Any] = {"loss": loss, "state": state, "tokens": tokens, "dtype": dtype}
    settings |= {"scores": scores, "seed": seed, "positions": positions}
    settings["replayed"] = replayed
    require_settings(networks=networks, **settings)
    with undisturbed() as interrupts, interrupts.let_through():
        if networks == 1:
            return _predict(model, batch, **settings)
        loaded = _loaded(model)
        return averaged(networks, lambda number: _predict(loaded, batch, **settings, network=number))


def require_settings(
    *,
    loss: LossChoice = None,
    state: str = "kernel",
    tokens: int = 128,
    networks: int = 1,
    dtype: torch.dtype = torch.float64,
    scores: bool = False,
    seed: int = 0,
    positions: int = MOST_POSITIONS,
    replayed: int = MOST_REPLAYED,
) -> None:
    """Raise for an option of `predict` that is not allowed."""
    require_loss(loss)
    require(networks >= 1, "networks", networks, "at least 1")
    require(dtype in (torch.float32, torch.float64), "dtype", dtype, "torch.float64 or torch.float32")
    require(state in ("kernel", "preview"), "state", state, "'kernel' or 'preview'")
    require(tokens >= 2, "tokens", tokens, "at least 2")
    require(positions >= 1, "positions", positions, "at least 1")
    require(replayed >= 1, "replayed", replayed, "at least 1")


def _predict(
    model: Any,
    batch: Any,
    *,
    loss: LossChoice,
    state: str,
    tokens: int,
    dtype: torch.dtype,
    scores: bool,
    seed: int,
    positions: int,
    replayed: int,
    network: int | None = None,
) -> Profile:
    loaded = _loaded(model)
    settings: dict[str, Any] = {"loss": loss, "state": state, "dtype": dtype, "scores": scores, "seed": seed}
    settings |= {"network": network, "positions": positions, "replayed": replayed}
    tokens = tokens if state == "kernel" else min(tokens, 32)
    followed, cut = shortened(batch, tokens)
    found = _of_sequences(model, loaded, followed, settings)
    if cut is None:
        return found
    if tokens < SHORTEST or state == "preview":
        found.meta["cut"] = f"sequences cut from {cut[0]} to {cut[1]} tokens"
        return found
    return continued(_of_sequences(model, loaded, shortened(batch, tokens // 2)[0], settings), found, tokens, cut[0])


def _of_sequences(model: Any, loaded: nn.Module, batch: Any, settings: dict[str, Any]) -> Profile:
    """Of many alike sequences, the average over pairs of them."""
    first, *others = pairs_of(loaded, batch)
    found = [_followed(model, loaded, first, **settings)]
    if "sequences" in found[0].meta:
        found += [_followed(model, loaded, each, **settings) for each in others]
    return average(found) if len(found) > 1 else found[0]


def _followed(model: Any, loaded: nn.Module, batch: Any, **settings: Any) -> Profile:
    """With jumps over alike blocks where there are many; all of them where they turn out to be uneven."""
    try:
        return _followed_once(model, loaded, batch, jumps=True, **settings)
    except Uneven:
        return _followed_once(model, loaded, batch, jumps=False, **settings)


def _followed_once(
    model: Any,
    loaded: nn.Module,
    batch: Any,
    *,
    jumps: bool,
    loss: LossChoice,
    state: str,
    dtype: torch.dtype,
    scores: bool,
    seed: int,
    positions: int,
    replayed: int,
    network: int | None,
) -> Profile:
    """A batch with all its kernels, or, of many alike sequences, with those of the first two."""
    own = not isinstance(model, nn.Module) and all(parameter.is_meta for parameter in loaded.parameters())
    options: dict[str, Any] = {
        "preview": state == "preview",
        "copy": not own,
        "seed": seed + (network or 0),
        "single": network is not None,
        "dtype": dtype,
        "jumps": jumps,
        "positions": positions,
        "replayed": replayed,
    }

    def started(count: int | None) -> Started:
        made = trace(loaded, batch if count is None else first_sequences(batch, count), **options)
        states = Evaluation(made.capture)
        return Started(made, states, *made.differentiate(loss, states))

    many = two_sequences(loaded, batch, started)
    found, states, start, differentiated = many.started if many else started(None)
    note = {}
    if found.unheard:
        note["hooks"] = f"forward hooks on {', '.join(found.unheard)} were not run: they are for real tensors"
    if found.unfollowed:
        start = start.note(Status.ASSUMED, f"backward hooks on {', '.join(found.unfollowed)} are not followed")
    rows = _Rows(found, states, start)
    states.backward(start, rows.take_gradient)
    meta = {"source": "predict", "state": state, "model": type(loaded).__name__, "loss": differentiated, **note}
    meta["operations"] = operations_of(states.nodes)
    sites = rows.finish()
    if many:
        many.continue_to_batch(sites)
        meta["sequences"] = f"{many.sequences} sequences, alike and apart until the loss, the first two followed"
    if scores:
        sites = placed(sites, score_rows(found, seed))
    profile = Profile(sites, _parameter_rows(found, states), meta)
    for run in found.runs:
        profile = with_skipped_rows(profile, run)
    mark_vanished((*profile.sites, *profile.parameters))
    return profile


def _loaded(model: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    return as_written(model) if isinstance(model, nn.Module) else build(model)


# -- rows


class _Rows:
    """Rows of the sites: signals at once, gradients as the backward pass comes by."""

    def __init__(self, found: TracedModel, states: Evaluation, start: Start):
        self._states = states
        self.sites: list[SiteRow] = []
        self._waiting: dict[Node, list[tuple[SiteRow, Field]]] = {}
        self._kept: dict[Field, Gradient] = {}
        self._masks = padding_masks(found.batch)
        self._last: tuple[Any, tuple[float, float, float], Any] | None = None
        depth = DepthCounter()
        for name, item in found.sites:
            if any(axis.role == "key" for dim in item.layout.dims for axis in dim):
                continue
            if item._node is None and item.layout.positions > LARGEST:
                count = f"{item.layout.positions:,} positions, more than the {LARGEST:,} of a tensor between others"
                self.sites.append(SiteRow(name, depth(name), status="assumed", reason=f"not followed: {count}"))
                continue
            with found.capture.lock:
                signal = states.signal(item.node)
            mean, variance, correlation = self._summary(name, signal, signal.mean, item.layout)
            if isinstance(item.node.op, Linear):
                variance = max(variance - _of_the_average(signal), 0.0)
            row = SiteRow(name, depth(name), mean, variance, correlation, status=str(signal.evidence.status))
            row.reason = signal.evidence.reason
            row.stated_errors = stated_by_theory(variance=row.status)
            self.sites.append(row)
            if item.requires_grad:
                self._waiting.setdefault(item.node, []).append((row, item))
        drawn = filter(None, map(function_of, found.capture.tape.nodes))
        self._bypassed = {site for function in drawn for site in function.sites_between}.union(start.passed)

    def take_gradient(self, node: Node, gradient: Gradient) -> None:
        for row, item in self._waiting.get(node, ()):
            self._fill(row, item, gradient)
            if item in self._bypassed:
                self._kept[item] = gradient

    def finish(self) -> list[SiteRow]:
        """Add the gradients that passed sites without their nodes."""
        for found in self._waiting.values():
            for row, item in found:
                passed, kept = self._states.passed.get(item), self._kept.get(item)
                if passed is not None:
                    self._fill(row, item, passed if kept is None else passed + kept)
        return self.sites

    def _fill(self, row: SiteRow, item: Field, gradient: Gradient) -> None:
        signal = self._states.signal(item.node)
        none = torch.zeros_like(signal.mean)
        _, level, row.grad_token_correlation = self._summary(row.name, gradient, none, item.layout)
        row.grad_variance = level / self._states.capture.repeats.get(item, 1)
        worst = signal.evidence.join(gradient.evidence)
        row.status, row.reason = str(worst.status), worst.reason
        row.stated_errors |= stated_by_theory(grad_variance=row.status)

    def _summary(self, name: str, state: Signal | Gradient, mean: Tensor, layout: Layout) -> tuple[float, float, float]:
        """That of the site before where both have one state, as a module and its last layer do."""
        axes = _axes(layout)
        mask = _fitting(self._masks, name, axes)
        key = (state, axes, mask)
        if self._last is None or any(
            one is not two and one != two for one, two in zip(self._last[0], key, strict=True)
        ):
            self._last = (key, _summary(state.kernel.values, mean, axes, mask), state)
        return self._last[1]


def _of_the_average(signal: Signal) -> float:
    """Variance over networks of the average over all entries, about which each network's variance is taken.

    Of independent channels `1 / d` of the average covariance of two positions: it counts where channels are few, as in
    a gate of one channel whose tokens have much in common.
    """
    if signal.width > FEW:
        return 0.0
    return max(float(signal.covariance.total() / signal.kernel.tokens**2), 0.0) / signal.width


def token_correlation(signal: Signal, layout: Layout) -> float:
    """Of a traced state, by the profile's definition: pairs of different tokens of one sequence."""
    return _summary(signal.kernel.values, signal.mean, _axes(layout))[2]


def _axes(layout: Layout) -> Axes:
    return tuple((axis.size, axis.role == BATCH) for axis in layout.order)


def padding_masks(batch: Any) -> list[Tensor]:
    """Masks `(sequences, tokens)` of the batch that leave something out, true for a real token; see `measure`."""
    named = dict(batch) if isinstance(batch, Mapping) else {}
    found = [named.get(key) for key in ("attention_mask", "decoder_attention_mask")]
    return [mask.bool() for mask in found if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all())]


def _fitting(masks: list[Tensor], name: str, axes: Axes) -> Tensor | None:
    """The mask of a site's positions: that whose sequences and tokens it has, in this order."""
    sizes = [size for size, _ in axes]
    fitting = [mask for mask in masks if sizes == [n for n in mask.shape if n > 1] and (not axes or not axes[-1][1])]
    return None if not fitting else fitting[-1] if "decoder" in name else fitting[0]


def _summary(kernel: Tensor, mean: Tensor, axes: Axes, mask: Tensor | None = None) -> tuple[float, float, float]:
    """Mean, variance and token correlation over the positions of a mask; pairs are taken within each sequence."""
    same = _same_sequence(axes)
    if mask is not None:
        kept = mask.flatten().nonzero()[:, 0]
        kernel, mean, same = kernel[kept][:, kept], mean[kept], same[kept][:, kept]
    overall = mean.mean()
    centred = kernel - overall * (mean[:, None] + mean) + overall**2 if overall else kernel
    level = centred.diagonal().clamp_min(0.0)
    usable = (level > 1e-13 * (kernel.diagonal() + overall**2)).double()
    inverse = usable / level.clamp_min(1e-300).sqrt()
    pairs = usable @ same @ usable
    correlation = float(inverse @ (centred * same) @ inverse / pairs) if pairs > 0 else float("nan")
    return float(overall), float(level.mean()), correlation


@lru_cache(maxsize=4)
def _same_sequence(axes: Axes) -> Tensor:
    """1 for pairs of different positions of one sequence."""
    index = torch.zeros([size for size, _ in axes] or [1], dtype=torch.long)
    for place, (size, is_batch) in enumerate(axes):
        if is_batch:
            shape = [-1 if other == place else 1 for other in range(len(axes))]
            index = index * size + torch.arange(size).reshape(shape)
    sequence = index.flatten()
    return (sequence[:, None] == sequence).double().fill_diagonal_(0.0)


def _parameter_rows(found: TracedModel, states: Evaluation) -> list[ParameterRow]:
    energy, evidence = states.energy, states.evidence
    roles = find_roles(found, [item for item in found.capture.records if isinstance(item, Field)])
    rows = []
    for name, weight in found.weights.items():
        count = 1
        for n in weight.shape:
            count *= n
        row = ParameterRow(name, weight.shape, roles[name].role, weight.distribution.variance**0.5)
        found_evidence = evidence.get(name, Evidence())
        row.status, row.reason = str(found_evidence.status), found_evidence.reason
        if name in energy and weight.requires_grad:
            row.grad_second_moment = energy[name] / count
            row.stated_errors = stated_by_theory(grad_second_moment=row.status)
        rows.append(row)
    return rows

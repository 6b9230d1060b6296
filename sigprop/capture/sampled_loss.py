"""A loss without a closed form: the real loss on drawn outputs, differentiated by autograd.

Outputs are drawn from their predicted state, the loss's own functions are run on them, and the gradient that arrives
is averaged: `G[t,t'] = E g_t g_t'`, and with it the part of the gradient that is a function of the signal. By Stein's
lemma `E (x_s - m_s) g_t = sum_u Cov[s,u] B[t,u]` with `B` its mean slope.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sigprop.capture.ensemble import (
    APART,
    Ensemble,
    Joint,
    are_uses_unknown,
    joined,
    joint_of,
    parts_of_sources,
    sites_between,
    tied,
)
from sigprop.capture.record import Field, Weight
from sigprop.capture.replay import Replay
from sigprop.errors import InputError, NoRule, TooLarge, UnsupportedError
from sigprop.graph.evaluate import Evaluation, Start
from sigprop.graph.graph import Node
from sigprop.graph.shared_parts import IN_STEP
from sigprop.theory import Dense, Evidence, Gradient, Signal, Status
from sigprop.theory.drawing import DTYPE, drawn_rows, kernel_of
from sigprop.theory.ops.linear import Linear
from sigprop.theory.states import AlongSignal, Directions

ERROR = 0.015
"""Relative standard error of the gradient's energy at which drawing ends."""
FEWEST, MOST = 32, 768
"""Draws."""
FEW_MAKE = 0.05
"""Relative standard error at a site on the way, as a sigmoid of large logits, from which on its row is a guess."""
ENTRIES = 1 << 26
"""Entries drawn at most, as long as there are a few draws."""
FEW = 4
WIDEST = 1 << 28
"""Entries of one draw from which on a loss is refused."""
SCATTER = 2.0
"""Mean square of what a diagonal slope leaves, in units of its variance, from which on tokens are coupled."""
CANCELS = 1e-3
"""Energy of the sum over tokens, relative to the sum of energies, that counts as none."""
COUPLED = 0.05
"""Share of the gradient's energy that is a function of other tokens, from which on it is no more than assumed."""
SMALLEST = 1e-4
"""Share of the largest eigenvalue of a covariance below which a direction says nothing of the slope."""


def sampled_start(states: Evaluation, loss: Field) -> Start:
    """The gradient of a number at its sources, at the weights it takes and at the sites between."""
    parts = parts_of_sources(loss)
    drawn = [part for found in parts.values() for part in found]
    size = sum(math.prod(part.shape) for part in drawn)
    if size > WIDEST:
        raise TooLarge(f"the loss is a function of {size} numbers, more than the {WIDEST} that are sampled")
    joint = _drawn_together(states, parts)
    found = AveragedGradients(states, parts, sites_between(loss, parts), joint)
    seed = states.graph.loss_seed * APART
    ensemble = Ensemble(states, FEWEST, torch.Generator().manual_seed(seed))
    most = max(FEW, min(MOST, ENTRIES // max(1, size)))
    while found.draws < most and (found.draws < FEWEST or found.error > ERROR):
        generator = torch.Generator().manual_seed(seed + found.draws + 1)
        replica = found.draws % FEWEST
        ensemble = ensemble if replica else ensemble.again(generator)
        replay = ExpectedReplay(states, generator, True, ensemble, replica, drawn, joint)
        value = _played(replay, loss)
        if not value.requires_grad:
            raise UnsupportedError("the loss carries no gradient: it was detached, or is not differentiable")
        found.add(replay, value)
    if not math.isfinite(found.error):
        raise UnsupportedError("the loss, or its gradient, is not finite on outputs sampled from their predicted state")
    made = found.start()
    return made.note(Status.ASSUMED, IN_STEP) if joint is None and are_uses_unknown(states, parts) else made


def _drawn_together(states: Evaluation, parts: dict[Field, list[Field]]) -> Joint | None:
    """Outputs that have something in common, as those of one encoder for two inputs."""
    together = next(iter(tied(states, parts)), None)
    if together is None:
        return None
    op, inputs = joined(states, list(dict.fromkeys(item.node for item in together)))
    node = Node(op, tuple(inputs))
    states.run_one(node)
    return joint_of(states, together, node)


def _played(replay: Replay, loss: Field) -> Tensor:
    try:
        return replay(loss)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        cause = error.__cause__ if isinstance(error, NoRule) and error.__cause__ is not None else error
        said = f"{type(cause).__name__}: {cause}"
        raise InputError(f"the loss fails on outputs of the predicted kind: {said}") from error


class ExpectedReplay(Replay):
    """Draws with the expected kernels; what finite width adds follows from the slope, as for closed forms. Outputs that
    have something in common, of which differences may be left, are drawn with those of single initializations.

    The bias of a linear map, which often is most of an output, is drawn by its own law.
    """

    def _draw(self, item: Field) -> Tensor:
        source = item.sources[0].field
        if self.joint is not None and source in self.joint.spans:
            return super()._draw(item)
        bias, _ = source.node.weights.get("bias", (None, 0))
        if bias is None or not isinstance(self.states.op(source.node), Linear) or item is not source:
            return self.from_rows(item, self._rows(source.node, item.layout.channels))
        law = self.states.law(bias)
        drawn = law.draw((item.layout.channels,), self.generator) - law.mean
        rows = self._rows(source.node, item.layout.channels, law.variance)
        return self.from_rows(item, rows + drawn.to(DTYPE))

    def _rows(self, node: Node, channels: int, less: float = 0.0) -> Tensor:
        rows = drawn_rows(self.ensemble.expected(node, less)[None], channels, self.generator)
        return rows + self.states.signal(node).mean.to(DTYPE)[:, None]


class AveragedGradients:
    """Gradients of a loss over draws: at sources with their products with the signal, at weights, at sites between."""

    def __init__(
        self, states: Evaluation, parts: dict[Field, list[Field]], sites: list[Field], joint: Joint | None = None
    ):
        self.states = states
        self.parts = parts
        self.joint = joint
        self._spans = {} if joint is None else joint.spans
        self._energies: list[float] = []
        self._wholes: list[float] = []
        nodes = dict.fromkeys(self._node(source) for source in parts)
        self.sources = {node: Arrived(states.signal(node)) for node in nodes}
        self.sites: dict[Field, Tensor | float] = dict.fromkeys(sites, 0.0)
        self._at_sites: dict[Field, list[float]] = {site: [] for site in sites}
        self.weights: dict[Weight, float] = {}

    def _node(self, source: Field) -> Node:
        """That from which it is drawn."""
        return self.joint.node if self.joint is not None and source in self._spans else source.node

    def add(self, replay: Replay, loss: Tensor) -> None:
        gradients, passed, weights = replay.arrivals(loss.sum(), self.parts, self.sites)
        for site, value in passed.items():
            kernel = kernel_of(site.layout.to_rows(value.double()))
            self.sites[site] = self.sites[site] + kernel
            self._at_sites[site].append(float(kernel.diagonal().sum()))
        energy, whole = 0.0, 0.0
        for node, pairs in self._rows(replay, gradients).items():
            kernel = self.sources[node].add(pairs)
            energy, whole = energy + float(kernel.diagonal().sum()), whole + float(kernel.sum())
        for weight, value in weights.items():
            total = float(value.double().square().sum())
            self.weights[weight] = self.weights.get(weight, 0.0) + total
            energy, whole = (energy, whole) if self.parts else (energy + total, whole + total)
        self._energies.append(energy)
        self._wholes.append(whole)

    def _rows(self, replay: Replay, gradients: dict[Field, Tensor]) -> dict[Node, list[Rows]]:
        """Numbers and gradients that arrived, `[position, channel]`, of each node."""
        found: dict[Node, list[Rows]] = {}
        for source, parts in self.parts.items():
            for part in parts:
                if part in gradients:
                    rows = [part.layout.to_rows(item.double()) for item in (replay(part).detach(), gradients[part])]
                    kept = found.setdefault(self._node(source), [])
                    if source not in self._spans:
                        kept.append((rows[0], rows[1]))
                    elif self.joint is not None:
                        kept[:] = [_placed(self.joint, source, rows, kept)]
        return found

    @property
    def draws(self) -> int:
        return len(self._energies)

    @property
    def error(self) -> float:
        """Relative standard error of the gradient's energy, or of the energy of its sum over tokens."""
        energy, whole = relative_error(self._energies), relative_error(self._wholes)
        cancels = abs(sum(self._wholes)) < CANCELS * sum(self._energies)
        return energy if cancels else max(energy, whole)

    def start(self) -> Start:
        evidence = Evidence(Status.SAMPLED, f"the loss on sampled outputs, standard error {self.error:.1%}")
        seeds = [
            (node, arrived.gradient(self.draws, evidence))
            for node, arrived in self.sources.items()
            if isinstance(arrived.kernel, Tensor)
        ]
        passed = {
            site: Gradient(Dense(kernel / self.draws), evidence=evidence.join(self._told(site)))
            for site, kernel in self.sites.items()
            if isinstance(kernel, Tensor)
        }
        weights = {weight: total / self.draws for weight, total in self.weights.items()}
        return Start(seeds, weights, passed, evidence, [] if self.joint is None else [self.joint.node])

    def _told(self, site: Field) -> Evidence:
        few = relative_error(self._at_sites[site]) > FEW_MAKE
        return Evidence(Status.ASSUMED, "a few outputs make most of this gradient") if few else Evidence()


Rows = tuple[Tensor, Tensor]
"""Numbers, and the gradient there."""


def _placed(joint: Joint, source: Field, rows: list[Tensor], before: list[Rows]) -> Rows:
    """Those of one of several tensors that stand one after another, with those of others before."""
    empty = torch.zeros(joint.positions, rows[0].shape[1], dtype=torch.float64)
    values, gradient = (item.clone() for item in (before[0] if before else (empty, empty)))
    values[joint.spans[source]] = rows[0]
    gradient[joint.spans[source]] += rows[1]
    return values, gradient


def relative_error(values: list[float]) -> float:
    """Relative standard error of a mean."""
    mean = float(np.mean(values)) if len(values) > 1 else 0.0
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) / abs(mean) if mean else 0.0


class Arrived:
    """Sums over draws of the gradient's kernel at one source and of signal times gradient, with its square."""

    def __init__(self, signal: Signal):
        self.signal = signal
        self.kernel: Tensor | float = 0.0
        self.product: Tensor | float = 0.0
        self.square: Tensor | float = 0.0
        self.uniform = 0.0

    def add(self, parts: list[Rows]) -> Tensor:
        """Take in numbers and gradients of one draw, of the source or of slices of it; the gradient's kernel."""
        shape = (len(self.signal.mean),) * 2
        kernel, product = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        for x, rows in parts:
            kernel += rows @ rows.T / self.signal.width
            product += (x - self.signal.mean[:, None]) @ rows.T / self.signal.width
            self.uniform += float(rows.sum(1).square().sum() / rows.shape[1])
        self.kernel, self.product = self.kernel + kernel, self.product + product
        self.square = self.square + product**2
        return kernel

    def gradient(self, draws: int, evidence: Evidence) -> Gradient:
        assert isinstance(self.kernel, Tensor)
        assert isinstance(self.product, Tensor)
        kernel, product = self.kernel / draws, self.product / draws
        spread = (self.square / draws - product**2).clamp_min(0.0) / max(1, draws - 1)
        covariance = self.signal.covariance.values
        slope, rest = split_along(covariance, product, spread)
        if slope.ndim > 1:
            others = slope - torch.diag(slope.diagonal())
            if float((others @ covariance * others).sum()) > COUPLED * float(kernel.diagonal().sum()):
                reason = "a loss that compares tokens: what its gradient has of other tokens is followed to first order"
                evidence = evidence.join(Evidence(Status.ASSUMED, reason))
        energy = float(kernel.diagonal().sum()) * self.signal.width
        uniform = self.uniform / draws / energy * self.signal.width if energy > 0.0 else 1.0
        return Gradient(
            Dense(kernel),
            Directions(uniform=uniform),
            AlongSignal(slope, rest),
            evidence=self.signal.evidence.join(evidence),
        )


def split_along(covariance: Tensor, product: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Slope along the signal and rest, from `E (x_s - m_s) g_t` and the square of its standard error."""
    weight = covariance.square().sum(0).clamp_min(1e-300)
    slope = (covariance * product).sum(0) / weight
    left = product - covariance * slope
    scatter = float((left.square() / spread.clamp_min(1e-300)).mean()) if float(spread.max()) > 0.0 else 0.0
    coupled = float(left.square().sum()) > 1e-6 * float(product.square().sum())
    if scatter < SCATTER or not coupled:
        return slope, torch.zeros_like(product)
    values, vectors = torch.linalg.eigh(covariance)
    kept = values > SMALLEST * values.max()
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    whole = (inverse @ product).T
    return whole, product - covariance @ whole.T

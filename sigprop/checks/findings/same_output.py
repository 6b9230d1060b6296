"""Outputs that do not tell inputs, or positions, apart; tokens that become alike on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.batches import tensors_in
from sigprop.checks.observation import is_kept
from sigprop.checks.registry import check, say, told
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("ignores_input", "signal", "outputs that do not depend on the input")
def ignores_input(subject: Subject) -> Iterator[Finding]:
    """The model is run on another input of the same values; an output that zeros hold is left to `no_gradient`."""
    share, output = subject.observed.answer, subject.observed.output
    constant = share <= limit("same_output")
    if output is None or not (constant or subject.observed.rounding > limit("rounding")):
        return
    lost = subject.influence.constant
    if not lost and not (constant and bool(output.any())):
        return
    fix = next((end.fix for end in subject.gradient_ends[1].values() if end.fix), "")
    fix = "give each of its groups more numbers than one" if "group_norm" in lost or "instance_norm" in lost else fix
    yield say(
        "problem",
        "the output does not depend on the input: "
        + (f"another one changes {share:.2g} of its mean square" if constant else "it is rounding"),
        (f"{lost} makes the same of values that differ. " if lost else "")
        + "What is left of the signal at the output is a constant (biases), so that nothing about the input can be "
        "learned until it has grown back.",
        prescription=Prescription(fix) if fix else None,
        evidence=(Datum("share of the output that another input changes", share, "measured"),),
    )


@check("equal_examples", "tokens", "outputs that are equal for all examples of a batch")
def equal_examples(subject: Subject) -> Iterator[Finding]:
    share = subject.observed.example_share
    if subject.observed.answer > limit("same_output") >= share and _examples_differ(subject):
        yield told(
            "problem",
            "the outputs of all examples are equal",
            "Another batch changes them, and within one they are the same: something averages over the batch (the "
            "places of all examples, the nodes of all graphs), or one example is read for all.",
            "pool within each example: over its own axis (dim), or by the index of its graph (scatter, index_add)",
            datum=Datum("variance of the output between examples, over its mean square", share, "measured"),
        )


@check("equal_positions", "tokens", "outputs that are equal at all positions")
def equal_positions(subject: Subject) -> Iterator[Finding]:
    """Variance of the output between positions over its mean square."""
    share = subject.observed.position_share
    if not math.isfinite(share) or share > limit("same_output") or not _tokens_differ(subject):
        return
    rows = [] if subject.profile is None else subject.profile.sites
    merged = [row for row in rows if row.token_correlation > 1.0 - limit("same_output") ** 0.5]
    yield say(
        "problem",
        "the outputs of all positions are equal"
        + (f": from {merged[0].name} on tokens have correlation 1" if merged else ""),
        "What tells positions apart is averaged away before the output. Attention without a skip around it does this "
        "within a few blocks (Dong et al. 2021); the loss can learn the frequencies of tokens and nothing else.",
        "Dong et al. 2021, 'Attention is not all you need'",
        sites=tuple(row.name for row in merged),
        evidence=(Datum("variance of the output between positions, over its mean square", share, "measured"),),
    )


def _examples_differ(subject: Subject) -> bool:
    """Whether they differ beside what they have in common, as numbers far from zero do not."""
    given = [item.double() for place, item in tensors_in(subject.batch) if item.dim() and not is_kept(place)]
    least = limit("same_output") ** 0.5
    return any(bool((item - item[:1]).square().mean() > least * item.square().mean()) for item in given)


def _tokens_differ(subject: Subject) -> bool:
    """Whether the first tensor with positions told its tokens apart."""
    rows = [] if subject.profile is None else subject.profile.sites
    found = [row.token_correlation for row in rows if math.isfinite(row.token_correlation)]
    return bool(found) and min(found) < 1.0 - limit("same_output") ** 0.5


@check("rank_collapse", "tokens", "token correlation passes 0.9: where, and the value it settles at")
def rank_collapse(subject: Subject) -> Iterator[Finding]:
    """Softmax attention averages values, so each block raises the correlation of tokens that it starts from."""
    if not subject.attends:
        return
    for stream in subject.streams:
        rows = [row for row in stream.rows(subject.profile) if math.isfinite(row.token_correlation)]
        values = [row.token_correlation for row in rows]
        if len(values) < 2 or values[-1] < limit("rank_collapse"):
            continue
        place = next(i for i, value in enumerate(values) if value >= limit("rank_collapse"))
        evidence = [Datum("token correlation at the last block", values[-1], subject.source)]
        predicted = stream.values(subject.predicted, "token_correlation")
        if subject.measured is not None and predicted:
            evidence.append(Datum("the same", predicted[-1], "predicted"))
        if subject.scores:
            entropy = sum(row.extras["entropy"] for row in subject.scores) / len(subject.scores)
            evidence.append(Datum("average attention entropy in nats", entropy, subject.source))
        yield say(
            "problem" if values[-1] > limit("rank_collapse_problem") else "warning",
            f"token correlation passes {limit('rank_collapse'):g} at block {place + 1} of "
            f"{len(values)} and ends at {values[-1]:.4g}",
            "Attention that is nearly uniform gives every token the same average, and the stream keeps too little of "
            "its own; gradients of queries and keys vanish with 1 - correlation. Entropy collapse is the other end of "
            "the same dial: sharper scores mix less.",
            "dslm, App. F; Noci et al. 2022",
            sites=tuple(row.name for row in rows[place:]),
            depths=(rows[place].depth, rows[-1].depth),
            evidence=tuple(evidence),
        )

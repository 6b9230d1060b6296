"""Inputs, places, examples and frozen parts that change nothing, or what they should not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

from sigprop.checks.edits import edit, listed
from sigprop.checks.ends import ABSENT, ZERO, gradient_ends
from sigprop.checks.registry import check, told
from sigprop.checks.subject import Subject
from sigprop.checks.suspects import started
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Edit, Finding


@check("no_influence", "influence", "inputs, places or rows that the output does not depend on")
def no_influence(subject: Subject) -> Iterator[Finding]:
    """Each is replaced alone; an input that a zero still hides, which learns, is let through."""
    seen = subject.influence
    for name, lost in seen.idle:
        cause = f"{lost} makes the same of values that differ" if lost else "Nothing that is computed reads its values"
        yield told(
            "problem",
            f"the output does not depend on {name}",
            f"{cause}: another {name} changes neither the output nor the loss, so that nothing about it is learned.",
            f"divide without rounding there (`/`, not `//`), or let {name} reach the signal in another way"
            if "div" in lost or "floor" in lost
            else f"let {name} reach the signal",
        )
    if seen.late:
        yield told(
            "problem",
            f"the output does not depend on positions from {seen.late} on",
            "Their inputs were replaced and nothing changed: the output is read at a place that has not seen them.",
            "read the last position (of a one-way network), or an average over all, and not the first",
        )
    hidden = [name for name in subject.draws.rows if "_hh" in name and "bias" not in name]
    if seen.forgotten:
        yield told(
            "problem",
            f"the end of the sequence does not depend on the first {seen.forgotten} positions",
            "Their inputs were replaced and nothing changed: "
            + (
                "what the recurrent layers keep of a step is lost within 16 steps, and so is its gradient."
                if hidden
                else "no position sees another one. Attention runs along another axis than that of positions (over "
                "heads), or its output is not used."
            ),
            f"initialize the recurrent matrix ({listed(hidden)}) orthogonal (torch.nn.init.orthogonal_), and let "
            "forget gates start open"
            if hidden
            else "let attention run along positions: (batch, heads, positions, width) is what it takes, by a transpose",
            parameters=hidden,
        )
    if seen.orderless:
        yield told(
            "problem",
            f"positions make no difference: tokens {seen.orderless} and {seen.orderless + 1} can be exchanged",
            "The two were exchanged, their outputs were exchanged with them, and no other changed: no code of "
            "positions reaches the signal (none is added, or all are the same), and a sequence is read as a set.",
            "add a table or sines of positions to the embedding, or turn queries and keys by them (rotary)",
        )
    silent, rows = seen.silent
    if silent:
        yield told(
            "problem",
            f"{silent} of {rows} rows of the output do not depend on the input",
            "All inputs were replaced, and these rows stayed as they were, to the last bit: nothing is sent to them.",
            "look at the indices (edges, masks, offsets within a batch) by which they are given their inputs",
        )


def _share(share: float) -> Datum:
    return Datum("share of the output that it changes", share, "measured")


@check("wrong_influence", "influence", "examples that change one another, and targets that the output can see")
def wrong_influence(subject: Subject) -> Iterator[Finding]:
    seen = subject.influence
    how = f" The first to do so is `{seen.function}` in {seen.where}." if seen.function else ""
    if seen.mixed > limit("leak"):
        yield told(
            "problem",
            f"examples of a batch change one another, in {seen.where} first",
            f"The first example was replaced, and the output of the others changed by {seen.mixed:.2g} of its mean "
            f"square: something runs along the axis of the batch.{how}",
            "let it run within each example: another axis (dim), batch_first=True, or a transpose before it",
            (seen.where,),
            datum=_share(seen.mixed),
        )
    elif seen.seen > limit("leak"):
        yield told(
            "problem",
            f"outputs see the tokens that they are to predict, in {seen.where} first",
            f"Later tokens change {seen.seen:.2g} of the outputs before them, and each target is the next token: the "
            "loss can be learned by copying what no causal mask hides, or what runs along the axis of positions."
            f"{how}",
            "hide later positions there: a causal mask in every attention, and nothing along the axis of positions",
            (seen.where,),
            datum=_share(seen.seen),
        )
    mask, share = seen.hidden
    if mask:
        yield told(
            "problem",
            f"tokens that {mask} hides change the outputs of those that it shows",
            f"They were replaced, and the rest changed by {share:.2g} of its mean square: the mask does not reach the "
            "attention (or the average) that padding should be kept out of, or is inverted.",
            f"give {mask} to every attention and pooling, with True (or 1) for what each of them takes it for",
            datum=_share(share),
        )
    if seen.padded > limit("leak"):
        yield told(
            "warning",
            "padding changes the outputs of what it stands behind",
            f"An example was cut where its padding begins, and its output changed by {seen.padded:.2g} of its mean "
            "square: pads are averaged, attended to or read as the last place, so that an answer depends on how long "
            "the others of its batch are.",
            "keep padding out: divide by the real length and not by all places, read the last real place (or pack the "
            "sequence), and give attention a mask",
            datum=_share(seen.padded),
        )
    losses = subject.observed.losses
    wrong = [item for item in losses if item.offset in OFFSETS and not any(other.offset == 1 for other in losses)]
    if wrong and seen.causal and not subject.made_up:
        what, why = OFFSETS[wrong[0].offset or 0]
        yield told(
            "problem",
            f"the labels of the loss in {wrong[0].site} are the input tokens, {what}",
            f"Outputs that see no later token are to predict {why}",
            "shift them once: compare logits[:, :-1] with ids[:, 1:]",
            [wrong[0].site],
        )


COPYING = "and the loss falls to zero by copying."
OFFSETS = {
    0: ("each at its own place", f"the token that they read, the same and not the next, {COPYING}"),
    -1: ("each one place late", f"the token before the one that they read: labels were shifted backwards, {COPYING}"),
    2: ("shifted by two places", "the token after the next: labels are shifted twice, by the data and by the model."),
}


@check("frozen_silenced", "influence", "frozen weights that what is trained beside them keeps from the output")
def frozen_silenced(subject: Subject) -> Iterator[Finding]:
    """What is frozen has been trained: it must count. Gradients are asked for where none are taken."""
    flags = {name: item.requires_grad for name, item in subject.model.named_parameters()}
    if subject.measured is None or subject.evaluation is None or all(flags.values()) or not any(flags.values()):
        return
    model = copy.deepcopy(subject.model)
    for item in model.parameters():
        item.requires_grad_(item.is_floating_point() or item.is_complex())
    states, ends = gradient_ends(model, subject.batch, subject.evaluation.loss)
    dead = [row.name for row in subject.draws.matrices if not flags.get(row.name, True) and row.std]
    zeros = {
        name: ends[name].zero
        for name in dead
        if states.get(name) == ZERO and name in ends and flags.get(ends[name].zero)
    }
    used = [name for name, trained in flags.items() if trained and states.get(name) not in (ABSENT, None)]
    unread = [name for name in dead if states.get(name) == ABSENT and name not in ends and _beside(name, used, states)]
    if unread:
        because = "Nothing reads them, though what is trained beside them runs."
        yield _silenced(unread, because, "call the frozen layer and add to it")
    elif zeros:
        inits = {name: started(subject.draws[name]) for name in flags if name in set(zeros.values())}
        because = f"What they make is multiplied by {listed(list(inits))}, which is zero."
        what = f"start {listed(list(inits))} apart from zero"
        yield _silenced(list(zeros), because, what, (edit(what, inits, because),))


@check("frozen_readout", "influence", "a last layer, or zeros, that are frozen while what is around them is trained")
def frozen_readout(subject: Subject) -> Iterator[Finding]:
    last, flags = subject.readout, {name: item.requires_grad for name, item in subject.model.named_parameters()}
    zeros = [row.name for row in subject.draws if row.std == 0 == row.mean and not flags.get(row.name, True)]
    zeros = [name for name in zeros if "bias" not in name and any(map(flags.get, _around(name, flags)))]
    if zeros:
        yield told(
            "warning",
            f"{listed(zeros)} {'is' if len(zeros) == 1 else 'are'} zero and frozen (requires_grad is False)",
            "What it multiplies stays zero in all of training, while the weights around it are trained: was the wrong "
            "part frozen?",
            f"train {listed(zeros)} (requires_grad_(True)), or start it apart from zero",
            parameters=zeros,
        )
    if last is None or last.tied or flags.get(last.name, True):
        return
    names = [row.name for row in subject.draws.matrices]
    place = names.index(last.name) if last.name in names else 0
    if place and flags.get(names[place - 1]):
        yield told(
            "warning",
            f"{last.name}, which makes the output, is frozen (requires_grad is False), and what it reads is trained",
            "The last layer is what a new task needs first: frozen, it stays as it was initialized, and the rest has "
            "to fit it. Were the two exchanged?",
            f"train the last layer: model.{last.name.rpartition('.')[0]}.requires_grad_(True)",
            parameters=[last.name],
        )


def _silenced(names: list[str], cause: str, fix: str, edits: tuple[Edit, ...] = ()) -> Finding:
    title = f"{len(names)} frozen matrices do not reach the output, {names[0]} first"
    cause = f"{cause} What they have learned is lost, and training starts without it."
    return replace(told("problem", title, cause, fix, parameters=names), edits=edits)


def _around(name: str, flags: dict[str, bool]) -> list[str]:
    owner = name.rpartition(".")[0]
    return [other for other in flags if other.startswith(f"{owner}.") and other != name]


def _beside(name: str, used: list[str], states: dict[str, str]) -> bool:
    """Whether the smallest module around it that holds anything used trains some of it."""
    owner = name.rpartition(".")[0]
    while owner:
        inside = [item for item, state in states.items() if item.startswith(f"{owner}.") and state != ABSENT]
        if inside:
            return any(item.startswith(f"{owner}.") for item in used)
        owner = owner.rpartition(".")[0]
    return False

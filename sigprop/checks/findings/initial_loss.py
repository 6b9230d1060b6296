"""The loss starts far above that of a guess."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.calls import LossCall, MadeBy
from sigprop.checks.gauges import logit_variance
from sigprop.checks.registry import check, say, told
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("tied_readout", "output", "a tied readout initialized as an embedding: logits of variance width * std^2")
def tied_readout(subject: Subject) -> Iterator[Finding]:
    if subject.readout is not None and subject.readout.tied and subject.profile is not None:
        yield from loss_finding(
            subject,
            f"The embedding, {subject.readout.name}, is also the readout: behind a norm its logits have variance "
            "width * std^2.",
        )


UNSURE = "no outcome can become certain, and gradients are small throughout"
BOUNDED = {
    "softmax": f"lie between 0 and 1 and sum to one: what comes of them is nearly uniform, {UNSURE}",
    "sigmoid": f"lie between 0 and 1: {UNSURE}",
    "tanh": f"lie between -1 and 1: {UNSURE}",
    "relu": "are never negative: an outcome cannot be told to be unlikely, and dead units pass no gradient",
}


@check("loss_inputs", "output", "a loss (or softmax) that is given what it does not take")
def loss_inputs(subject: Subject) -> Iterator[Finding]:
    """What a loss is given beside what it takes: logits, probabilities, shapes, ranges, targets, signs."""
    seen = subject.observed
    for site, reader, maker in seen.bounded[:1]:
        yield told(
            "problem",
            f"`{reader}` in {site} takes logits and is given what a {maker} has made",
            f"Its values pass a {maker} before and {BOUNDED[maker]}.",
            f"leave out the {maker} before it",
            [name for name, *_ in seen.bounded],
        )
    for site, reader, total in seen.unlikely[:1]:
        yield told(
            "problem",
            f"`{reader}` in {site} takes logarithms of probabilities, and these sum to {total:.3g}",
            "Over the classes they should sum to one: there is no log_softmax before it, or it runs along another axis "
            "(dim), so that the loss is none of probabilities.",
            "take log_softmax over the classes before it (cross_entropy does both)",
            [name for name, *_ in seen.unlikely],
        )
    for site, made, wanted in seen.broadcast[:1]:
        yield told(
            "problem",
            f"the loss in {site} compares an output of shape {made} with targets of shape {wanted}",
            "They are broadcast: every output is compared with targets of other examples, and the best it can do is "
            "their mean.",
            "give both one shape (`squeeze(-1)` the output, or `unsqueeze(-1)` the targets)",
            [name for name, *_ in seen.broadcast],
        )

    for site in seen.itself[:1]:
        yield told(
            "problem",
            f"in the loss in {site} each example is most like itself, which is never the right answer",
            "The diagonal of the similarities holds each example beside itself, the largest of its row, and counts "
            "among the wrong answers: the loss can only fall as similar pairs are pushed apart.",
            "mask the diagonal (masked_fill with -inf, by torch.eye) before the softmax",
            seen.itself,
        )
    for site, maker, share in seen.unreached[:1]:
        yield told(
            "problem",
            f"{share:.0%} of the targets of the loss in {site} lie beyond what the {maker} before it can make",
            f"The output passes a {maker} and stays within its bounds, so that no training reaches these targets: the "
            "activation saturates towards them.",
            f"leave out the {maker}, or normalize the targets to its range",
            [name for name, *_ in seen.unreached],
        )
    for site, name in list(subject.wiring.moving.items())[:1]:
        yield told(
            "warning",
            f"the targets of `{name}` in {site} have a gradient as well as the outputs",
            "Both sides of the loss are trained towards one another: the target moves with the output (a bootstrap "
            "or teacher that is not detached), and both may collapse.",
            "detach the target (`target.detach()`, or make it under torch.no_grad())",
            subject.wiring.moving,
        )
    total = subject.measured.meta.get("loss_value") if subject.measured is not None else None
    for item in seen.losses:
        if item.kind == "cross_entropy" and isinstance(total, float) and abs(total + item.value) < 1e-3 * item.value:
            yield told(
                "problem",
                f"the loss is the negative of the cross entropy in {item.site}",
                "Its sign is turned: training makes the right classes less likely, and the loss falls without bound.",
                "leave out the minus: minimize the cross entropy itself",
                [item.site],
            )


@check("initial_loss", "output", "initial loss far from that of a guess: the logits are too large")
def initial_loss(subject: Subject) -> Iterator[Finding]:
    """Logits of variance s2 that know nothing of the labels give ln(classes) + s2 / 2 (less when s2 > 2 ln classes)."""
    yield from _worse_than_nothing(subject)
    yield from _far_targets(subject)
    yield from _summed(subject)
    yield from _equal(subject)
    readout = subject.readout
    if subject.profile is not None and not (readout is not None and readout.tied):
        yield from loss_finding(subject, "The first steps only undo the size of the logits.")


SMALLER = (
    "make the output smaller: normalize what is added to it (a skip, the input) or the factors that multiply it, or "
    "start the last layer smaller"
)
NORMALIZED = "normalize both, or divide by the root of their length"


def classified(subject: Subject) -> list[LossCall]:
    return [item for item in subject.observed.losses if item.kind == "cross_entropy" and not item.probabilities]


def _far_targets(subject: Subject) -> Iterator[Finding]:
    """A regression to numbers far larger than what the model makes."""
    for item in subject.observed.losses:
        made = item.variance**0.5
        if item.kind == "regression" and item.wanted > limit("large_input") * max(1.0, made):
            yield say(
                "warning",
                f"the targets of the loss in {item.site} have root mean square {item.wanted:.3g}; the output has std "
                f"{made:.3g}",
                f"The loss starts at {item.value:.3g}, gradients are as large as the targets, and the last layer has "
                "to grow by that factor first.",
                sites=(item.site,),
                evidence=(Datum("root mean square of the targets", item.wanted, "measured", expected=1.0),),
                prescription=Prescription(f"normalize the targets: divide them by {item.wanted:.3g}"),
            )
            return


def _summed(subject: Subject) -> Iterator[Finding]:
    """A cross entropy that is the sum over its labels, and that nothing divides afterwards."""
    total = subject.measured.meta.get("loss_value") if subject.measured is not None else None
    for item in subject.observed.losses:
        if item.summed > 1 and isinstance(total, float) and total > 0.99 * item.summed * item.value > 0:
            yield say(
                "warning",
                f"the loss in {item.site} is a sum over {item.summed} labels: {total:.3g}",
                "Nothing divides it: gradients grow with batch and length, so that clipping always acts and an SGD "
                "rate holds for one batch size only.",
                sites=(item.site,),
                evidence=(Datum("labels that the loss sums over", item.summed, "measured", expected=1),),
                prescription=Prescription("reduction='mean', or divide the loss by the number of labels"),
            )
            return


def _equal(subject: Subject) -> Iterator[Finding]:
    """Logits that are products of two signals (similarities) have no readout that could grow."""
    for item in classified(subject):
        if item.source is None or not item.source.factors or not 0 < item.variance < limit("equal_logits"):
            continue
        yield say(
            "warning",
            f"the similarities in {item.site} are all but equal as logits: variance {item.variance:.2g} over "
            f"{item.classes} classes",
            f"They are products of {_factors(item.source)}, and nothing makes them large enough for a softmax to tell "
            "them apart: the loss stays near that of a guess, and all gradients are as small.",
            sites=(item.site,),
            evidence=(Datum("variance of the logits", item.variance, "measured", expected=1.0),),
            prescription=Prescription("divide them by the temperature (multiply by its inverse), about 1 / 0.07"),
        )
        return


def _product(item: LossCall) -> str:
    """Where logits are products of two signals, which."""
    if item.source is None or not item.source.factors:
        return ""
    return f" The logits are products of {_factors(item.source)}."


def _factors(source: MadeBy) -> str:
    return " and ".join(f"{site or 'the model'} (mean square {size:.3g})" for site, size in source.factors)


def _worse_than_nothing(subject: Subject) -> Iterator[Finding]:
    """Losses of two classes and of numbers beside what an output of zeros gets; numbers only where that is the loss."""
    total = subject.measured.meta.get("loss_value") if subject.measured is not None else None
    for item in subject.observed.losses:
        excess = item.value - item.chance
        is_loss = isinstance(total, float) and total < 2 * item.value
        binary = item.kind == "binary" and excess > limit("initial_loss")
        if not binary and not (
            item.kind == "regression" and is_loss and item.value > limit("loss_over_zero") * item.chance > 0
        ):
            continue
        yield say(
            "problem" if (binary and excess > limit("initial_loss_problem")) or not binary else "warning",
            f"the loss in {item.site} starts at {item.value:.3g}, where an output of zeros gets {item.chance:.3g}",
            "The output is too large: the first steps only undo it. It has variance "
            f"{item.variance:.3g}" + (" as logits." if binary else ".") + _product(item),
            sites=(item.site,),
            parameters=(subject.readout.name,) if subject.readout is not None else (),
            evidence=(Datum("initial loss", item.value, "measured", expected=item.chance),),
            prescription=Prescription(SMALLER),
        )
        return


def loss_finding(subject: Subject, cause: str) -> Iterator[Finding]:
    """The cross entropy that the model computes; else the variance of its logits. Too large logits are told also where
    the labels of the batch hide them (labels that equal a tied model's inputs)."""
    assert subject.profile is not None
    variance = logit_variance(subject, subject.profile)
    calls = classified(subject)
    worst = max(calls, key=lambda item: item.value - item.chance, default=None)
    if worst is not None:
        guess, excess, classes = worst.chance, worst.value - worst.chance, worst.classes
    elif subject.classes is not None:
        classes = subject.classes
        guess, excess = math.log(classes), variance / 2
        if subject.measured_loss is not None and subject.profile.meta.get("loss") == "cross_entropy":
            excess = subject.measured_loss - guess
    else:
        return
    if not math.isfinite(variance) or variance / 2 < limit("initial_loss"):
        return
    cause += "" if worst is None else _product(worst)
    seen = worst is not None or subject.measured_loss is not None
    hidden = excess < limit("initial_loss")
    evidence = [Datum("logit variance", variance, subject.source, expected=1.0)]
    if seen:
        evidence.insert(0, Datum("initial loss", guess + excess, "measured", expected=guess))
    yield say(
        "problem" if max(excess, variance / 2) > limit("initial_loss_problem") else "warning",
        f"logits have variance {variance:.3g}: the loss starts {variance / 2:.3g} above ln({classes}) = {guess:.2f} on "
        "labels that the input does not hold"
        if hidden
        else f"the loss starts {excess:.3g} above ln({classes}) = {guess:.2f}"
        + ("" if seen else ", from the variance of the logits"),
        cause,
        "mean of the log-sum-exp of normal logits; dslm, B.7",
        sites=(subject.logits_site,) if subject.logits_site and worst is None else (),
        parameters=(subject.readout.name,) if subject.readout is not None and worst is None else (),
        evidence=tuple(evidence),
        prescription=Prescription(NORMALIZED) if worst is not None and _product(worst) else None,
    )

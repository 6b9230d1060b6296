"""Dropout that leaves next to nothing."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.edits import setting
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Edit, Finding, Prescription


@check("dropout", "signal", "dropout of nearly all entries")
def dropout(subject: Subject) -> Iterator[Finding]:
    """Dropping a share p adds noise of p / (1 - p) times the signal's mean square, on both passes."""
    bad = {name: share for name, share in subject.observed.dropouts.items() if share > limit("dropout")}
    if not bad:
        if subject.observed.noise > limit("training_noise"):
            yield _noise(subject)
        return
    worst = max(bad, key=bad.__getitem__)
    share = bad[worst]
    noise = share / (1 - share) if share < 1 else float("inf")
    yield say(
        "problem",
        f"{worst} drops {share:.3g} of all entries: its noise is {noise:.3g} times the signal",
        "While it trains, what is kept is a small random sample, scaled up; was the probability to keep given in place "
        "of that to drop?",
        "Srivastava et al. 2014",
        sites=tuple(bad),
        evidence=(Datum(f"dropout of {worst}", share, "measured"),),
        prescription=Prescription(f"p = {1 - share:.2g} in place of {share:.3g}"),
        edits=_edits(subject, list(bad), 1 - share),
    )


def _noise(subject: Subject) -> Finding:
    """Nothing says that it drops entries, and another seed changes the output."""
    share = subject.observed.noise
    return say(
        "problem",
        f"training adds noise that is {share:.0%} of the output: two seeds give two answers",
        "Without training the output is the same for both: what is dropped (units, paths, layers) leaves nothing of "
        "the signal.",
        "Srivastava et al. 2014",
        evidence=(Datum("share of the output that another seed changes", share, "measured"),),
        prescription=Prescription("drop less: were the share to keep and the share to drop exchanged?"),
    )


def _edits(subject: Subject, names: list[str], share: float) -> tuple[Edit, ...]:
    modules = dict(subject.model.named_modules())
    places = {
        f"{name}.{key}": share
        for name in names
        for key in ("p", "dropout")
        if isinstance(getattr(modules.get(name), key, None), float)
    }
    because = f"Dropout leaves {share:.2g} of all entries."
    return (setting(f"drop {share:.2g} of the entries, not {1 - share:.2g}", places, because),) if places else ()

"""Findings register here: one function from a subject to what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sigprop.errors import InputError
from sigprop.registry import Registry
from sigprop.results.report import Datum, Finding, Prescription

if TYPE_CHECKING:
    from sigprop.checks.subject import Subject

JUDGED = ("signal", "gradient", "tokens", "output", "criticality")
"""Groups that a change of the weights is judged by."""
GROUPS = ("draw", "signal", "gradient", "influence", "tokens", "output", "criticality", "precision", "sizes", "theory")
Examination = Callable[["Subject"], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """One kind of finding: its name, the group it belongs to, what it says in one line, and how it is found."""

    name: str
    group: str
    about: str
    examine: Examination

    def __call__(self, subject: Subject) -> Iterator[Finding]:
        for item in self.examine(subject):
            depths = item.depths or subject.depths_of((*item.sites, *item.parameters))
            yield replace(item, name=self.name, group=self.group, depths=depths)


def say(severity: str, title: str, cause: str, reference: str = "", **parts: Any) -> Finding:
    """A finding of the check that makes it: its name, group and depths are filled in by that."""
    return Finding("", "", severity, title, cause, reference, **parts)


def told(
    severity: str,
    title: str,
    cause: str,
    fix: str,
    sites: Iterable[str] = (),
    parameters: Iterable[str] = (),
    datum: Datum | None = None,
) -> Finding:
    """A finding that is plain: its evidence is how many places there are, or one number, and its fix is in words."""
    sites, parameters = tuple(dict.fromkeys(sites)), tuple(parameters)
    datum = datum or Datum("such places", max(1, len(sites), len(parameters)), "measured", expected=0)
    return say(
        severity,
        title,
        cause,
        sites=sites,
        parameters=parameters,
        evidence=(datum,),
        prescription=Prescription(fix),
    )


CHECKS: Registry[Check] = Registry("finding", "sigprop.checks.findings")


def check(name: str, group: str, about: str) -> Callable[[Examination], Examination]:
    """Decorator: register a finding under its name."""

    def add(function: Examination) -> Examination:
        if group not in GROUPS:
            raise InputError(f"finding {name!r}: group {group!r} is not one of {', '.join(GROUPS)}")
        CHECKS.add(name, Check(name, group, about, function))
        return function

    return add


def checks() -> dict[str, Check]:
    """All findings, group by group."""
    return dict(sorted(CHECKS.items(), key=lambda item: (GROUPS.index(item[1].group), item[0])))

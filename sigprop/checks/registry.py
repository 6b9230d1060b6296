"""Findings register here: one file, one function from a subject to what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from sigprop.errors import InputError
from sigprop.results.report import Finding

if TYPE_CHECKING:
    from sigprop.checks.subject import Subject

JUDGED = ("signal", "gradient", "tokens", "output", "criticality")
"""Groups that a change of the weights is judged by."""
GROUPS = ("draw", "signal", "gradient", "tokens", "output", "criticality", "precision", "sizes", "theory")
Examination = Callable[["Subject"], Iterable[Finding]]
_CHECKS: dict[str, Check] = {}


@dataclass(frozen=True)
class Check:
    """One kind of finding: its name, the group it belongs to, what it says in one line, and how it is found."""

    name: str
    group: str
    about: str
    examine: Examination

    def __call__(self, subject: Subject) -> Iterator[Finding]:
        yield from self.examine(subject)


def check(name: str, group: str, about: str) -> Callable[[Examination], Examination]:
    """Decorator: register a finding under its name."""

    def add(function: Examination) -> Examination:
        if name in _CHECKS:
            raise InputError(f"finding {name!r} is already registered by {_CHECKS[name].examine.__module__}")
        if group not in GROUPS:
            raise InputError(f"finding {name!r}: group {group!r} is not one of {', '.join(GROUPS)}")
        _CHECKS[name] = Check(name, group, about, function)
        return function

    return add


def checks() -> dict[str, Check]:
    """All findings, group by group."""
    package = import_module("sigprop.checks.findings")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_CHECKS.items(), key=lambda item: (GROUPS.index(item[1].group), item[0])))


def signal_findings(subject: Subject) -> list[Finding]:
    """What is found about signals and gradients."""
    return [finding for kind in checks().values() if kind.group in JUDGED for finding in kind(subject)]

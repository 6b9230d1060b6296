"""Findings that are known and accepted: by name and pattern, or since an earlier report holds them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from sigprop.checks.registry import checks
from sigprop.errors import InputError, UnknownNameError
from sigprop.results.report import SEVERITIES, Finding, Report

NUMBER = re.compile(r"\d+")


def without(report: Report, ignore: Iterable[str] = (), baseline: str | Path | None = None) -> Report:
    """The report without what is ignored; `meta["ignored"]` counts it.

    ignore: `finding` or `finding:pattern`; with a pattern only where all places of the finding match it.
    baseline: an earlier report (`sigprop check --json`): what it holds, no milder, is left out.
    """
    rules = [(name, pattern) for name, _, pattern in (rule.partition(":") for rule in ignore)]
    for name, _ in rules:
        if name not in checks():
            raise UnknownNameError("finding", name, checks())
    known = {} if baseline is None else _known(_earlier(Path(baseline)))
    kept = [item for item in report.findings if not _ruled(item, rules) and not _is_known(item, known)]
    left_out = len(report.findings) - len(kept)
    return replace(report, findings=kept, meta=report.meta | ({"ignored": left_out} if left_out else {}))


def _earlier(path: Path) -> Report:
    try:
        return Report.from_json(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"baseline {path}: needs a report of `sigprop check --json`; {error}") from error


def _ruled(finding: Finding, rules: list[tuple[str, str]]) -> bool:
    places = (*finding.sites, *finding.parameters)
    return any(
        name == finding.name and (not pattern or (places and all(fnmatchcase(place, pattern) for place in places)))
        for name, pattern in rules
    )


def _known(report: Report) -> dict[tuple, int]:
    found: dict[tuple, int] = {}
    for item in report.findings:
        level = SEVERITIES.index(item.severity)
        found[_key(item)] = min(level, found.get(_key(item), level))
    return found


def _is_known(finding: Finding, known: dict[tuple, int]) -> bool:
    return known.get(_key(finding), len(SEVERITIES)) <= SEVERITIES.index(finding.severity)


def _key(finding: Finding) -> tuple:
    """The name and the families of its places: numbers of layers may change."""
    places = (*finding.sites, *finding.parameters)
    return finding.name, frozenset(NUMBER.sub("*", place) for place in places)

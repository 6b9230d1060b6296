"""A report as text: the verdict first, then what was found, in plain sentences and 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sigprop.grid import WIDTH, clean, counted, number, thinned

if TYPE_CHECKING:
    from sigprop.results.report import Curve, Finding, Report

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 36
SHOWN = 3
LINES = {
    "variance": "stream variance",
    "grad_variance": "gradient variance",
    "token_correlation": "token correlation",
    "entropy": "attention entropy",
}
LOGARITHMIC = ("variance", "grad_variance")


def report_text(report: Report, verbose: bool = False, width: int = WIDTH) -> str:
    """One screen; everything with `verbose`."""
    lines = [*_head(report, width), ""]
    told = [item for item in report.findings if verbose or item.severity != "note"]
    fixes: dict[str, int] = {}
    for place, finding in enumerate(told if verbose else told[:SHOWN], 1):
        code = "" if finding.prescription is None else finding.prescription.code
        same = fixes.setdefault(code, place) if code else place
        lines += [*_finding(place, finding, verbose, width, same if same < place else None), ""]
    sparks = _sparks(report, width)
    lines += [*sparks, ""] if sparks else []
    lines += _foot(report, told, verbose, width)
    return "\n".join(lines).rstrip()


def sparkline(values: Sequence[float], logarithmic: bool = False) -> str:
    """Values by depth as bars; what is not finite is a question mark."""
    shown = thinned(values, SPARKS)
    scaled = [math.log(value) if logarithmic and value > 0 else value for value in shown]
    scaled = [math.nan if logarithmic and not value > 0 else item for value, item in zip(shown, scaled, strict=True)]
    finite = [value for value in scaled if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    least = math.log(1.2) if logarithmic else 0.05
    if high - low < least:
        return "".join(BARS[3] if math.isfinite(value) else "?" for value in scaled)
    return "".join(BARS[round((value - low) / span * 7)] if math.isfinite(value) else "?" for value in scaled)


def _head(report: Report, width: int) -> list[str]:
    meta = report.meta
    how = " and ".join(word for word in ("predicted", "measured") if meta.get(word))
    layers = f"{meta['layers']} layers, " if meta.get("layers") else ""
    size = f"{layers}{counted(meta.get('parameters', 0))} parameters"
    lines = [
        f"{report.verdict[0].upper()}{report.verdict[1:]} in {meta.get('model', 'model')} ({size}; {how})",
        _experiment(meta),
    ]
    return [part for line in lines if line for part in textwrap.wrap(clean(line), width)]


def _experiment(meta: dict[str, Any]) -> str:
    """What was differentiated, on which batch."""
    if not meta.get("loss"):
        return ""
    told = f"Differentiated: {meta['loss_in_words']}, on {meta['batch_in_words']}." if "loss_in_words" in meta else ""
    return told + "".join(f" {warning}" for warning in meta.get("warnings", []))


def _sparks(report: Report, width: int) -> list[str]:
    """One line per column of the stream, by depth: as it is and, where there is one, under the prescription."""
    lines = []
    for column, label in LINES.items():
        found = {curve.kind: curve for curve in report.curves if curve.column == column}
        now = found.get("measured") or found.get("predicted")
        if now is None or len(now.values) < 2:
            continue
        lines.append(_spark(label, now, column)[:width])
        after = found.get("prescribed")
        if after is not None and len(after.values) > 1 and not report.healthy:
            lines.append(_spark("  with the fix", after, column)[:width])
    return [f"{'by depth':<{18 + SPARKS}}  first block -> last", *lines] if lines else []


def _spark(label: str, curve: Curve, column: str) -> str:
    bars = sparkline(curve.values, column in LOGARITHMIC)
    return f"{label:<18}{bars:<{SPARKS}}  {number(curve.values[0])} -> {number(curve.values[-1])}"


def _finding(place: int, finding: Finding, verbose: bool, width: int, same: int | None) -> list[str]:
    where = "" if finding.depths is None else f", depth {finding.depths[0]}"
    if finding.depths is not None and finding.depths[1] != finding.depths[0]:
        where += f" to {finding.depths[1]}"
    lines = [f"{place}. {finding.severity.upper()} {finding.name}{where}"]
    lines += _wrapped(finding.title, width)
    sentences = finding.cause.split(". ")
    cause = finding.cause if verbose else ". ".join(sentences[: 2 if len(sentences[0]) < 60 else 1]).rstrip(".") + "."
    lines += _wrapped(f"Why: {cause}" + (f" [{finding.reference}]" if verbose and finding.reference else ""), width)
    if verbose:
        for item in finding.evidence:
            lines += _wrapped(f"- {item}", width)
        names = (*finding.sites, *finding.parameters)
        if names:
            more = len(names) - 4 + finding.more
            lines += _wrapped("at " + ", ".join(names[:4]) + (f" and {more} more" if more > 0 else ""), width)
    if same is not None:
        lines += _wrapped(f"Fix: that of {same} removes this as well.", width)
    elif finding.prescription is not None:
        lines += _wrapped(f"Fix: {finding.prescription}", width)
        lines += [f"   > {line}" for line in finding.prescription.code.splitlines()]
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(clean(text), width, initial_indent="   ", subsequent_indent="   ")


def _foot(report: Report, told: Sequence[Finding], verbose: bool, width: int) -> list[str]:
    lines = []
    if report.margins and (verbose or report.healthy):
        lines += [
            "Margins: what is judged, its value, and the limit beyond which it is a finding",
            *(
                f"  {item.what:<42} {item.value:>9.3g}  {item.wanted}{' (beyond)' * item.beyond}"
                for item in report.margins
            ),
        ]
    if verbose:
        lines += [
            line for note in report.meta.get("notes", []) for line in textwrap.wrap(clean(f"Note: {note}"), width)
        ]
        return lines
    left = len(told) - SHOWN
    notes = sum(item.severity == "note" for item in report.findings)
    rest = [f"{left} more finding{'s' * (left > 1)}"] if left > 0 else []
    rest += [f"{notes} note{'s' * (notes > 1)}"] if notes else []
    return [*lines, *([f"{' and '.join(rest)} with -v"] if rest else [])]

"""What number formats would lose, site by site, and the scale that mends it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sigprop.checks.formats import FORMATS, Rounding, losses
from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription

RUNS_IN = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8 E4M3",
    torch.float8_e5m2: "fp8 E5M2",
}


@dataclass(frozen=True)
class RoundedSite:
    name: str
    depth: int
    kind: str
    loss: Rounding


@check(
    "precision", "precision", "under- and overflow in bf16, fp16, fp8, MXFP8 and NVFP4, with the scale that mends it"
)
def precision(subject: Subject) -> Iterator[Finding]:
    """Entries of a site are taken as normal with its variance. fp8 and block formats are scaled by tensor, as libraries
    do; they are told only where that is not enough."""
    profile = subject.profile
    if profile is None:
        return
    present = {RUNS_IN.get(parameter.dtype) for parameter in subject.model.parameters()}
    for format in FORMATS:
        found = []
        for row in profile.sites:
            for kind, mean, variance in (("value", row.mean, row.variance), ("gradient", 0.0, row.grad_variance)):
                if math.isfinite(variance) and variance > 0:
                    lost = losses(format, mean, math.sqrt(variance))
                    if format.scaled and lost.after <= limit("precision_share"):
                        continue
                    if lost.overflow > limit("precision_overflow") or lost.underflow > limit("precision_share"):
                        found.append(RoundedSite(row.name, row.depth, kind, lost))
        over = [site for site in found if site.loss.overflow > limit("precision_overflow")]
        under = [site for site in found if site not in over]
        for sites, verb, share in ((over, "overflows", "overflow"), (under, "underflows", "underflow")):
            if sites:
                severity = "note" if format.name not in present else "problem" if verb == "overflows" else "warning"
                if format.name == "bf16" and verb == "overflows":
                    severity = "problem"
                yield _finding(format.name, sites, verb, share, severity)


def _finding(name: str, sites: list[RoundedSite], verb: str, share: str, severity: str) -> Finding:
    worst = max(sites, key=lambda site: getattr(site.loss, share))
    scales = [site.loss.cure for site in sites]
    return Finding(
        "precision",
        "precision",
        severity,
        f"in {name}, {getattr(worst.loss, share):.0%} of the {worst.kind}s of {worst.name} {verb} "
        f"({len(sites)} such sites)",
        f"{name} holds numbers from {worst.loss.smallest:.2g} to {worst.loss.largest:.3g}; these entries have a "
        f"standard deviation of {worst.loss.std:.2g}.",
        "Micikevicius et al. 2018 and 2022; OCP MX specification 1.0",
        sites=tuple(dict.fromkeys(site.name for site in sites)),
        depths=(sites[0].depth, sites[-1].depth),
        evidence=(
            Datum(f"share that {verb} in {name}", getattr(worst.loss, share), "normal law of the site's variance"),
            Datum("scale that mends the worst site", worst.loss.cure, "theory"),
        ),
        prescription=Prescription(
            f"scale by 2^{math.log2(worst.loss.cure):.0f} before the cast"
            + (
                f" (2^{math.log2(min(scales)):.0f} to 2^{math.log2(max(scales)):.0f} over sites)"
                if len(scales) > 1
                else ""
            ),
            "share lost",
            getattr(worst.loss, share),
            worst.loss.after,
            "theory",
        ),
    )

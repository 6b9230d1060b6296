"""What number formats would lose, site by site, with the scale that fixes it, and what rounding changes at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@dataclass(frozen=True)
class Format:
    """Smallest positive and largest number; `block` entries share a scale, which itself has a range.

    `scaled`: libraries multiply a tensor by a scale of its own before the cast.
    """

    name: str
    smallest: float
    largest: float
    block: int = 1
    scaled: bool = False
    scale_smallest: float = 1.0
    scale_largest: float = 1.0


FORMATS = (
    Format("bf16", 2.0**-133, 3.3895e38),
    Format("fp16", 2.0**-24, 65504.0),
    Format("fp8 E4M3", 2.0**-9, 448.0, scaled=True),
    Format("fp8 E5M2", 2.0**-16, 57344.0, scaled=True),
    Format("MXFP8", 2.0**-9, 448.0, 32, True, 2.0**-127, 2.0**127),
    Format("NVFP4", 0.5, 6.0, 16, True, 2.0**-9, 448.0),
)
"""MXFP8: E4M3 entries with a power-of-two scale (E8M0) per 32; NVFP4: E2M1 entries with an E4M3 scale per 16."""


@dataclass(frozen=True)
class Rounding:
    """Shares of entries that round to zero and that pass the largest number; the scale that cures it, and after it."""

    underflow: float
    overflow: float
    cure: float
    after: float
    std: float
    smallest: float
    largest: float


def losses(format: Format, mean: float, std: float) -> Rounding:
    """Of a normal tensor. A block format first divides by the block's largest entry, within its scale's range."""
    under, over = _shares(format, mean, std)
    cure = 2.0 ** round(math.log2(_target(format) / math.hypot(mean, std)))
    after = sum(_shares(format, mean * cure, std * cure))
    return Rounding(under, over, cure, after, std, *_range(format))


def _range(format: Format) -> tuple[float, float]:
    return format.smallest * format.scale_smallest, format.largest * format.scale_largest


def _shares(format: Format, mean: float, std: float) -> tuple[float, float]:
    """Shares that underflow and overflow; a block whose scale rounds to zero is lost as a whole."""
    if format.block == 1:
        return 1.0 - _beyond(format.smallest / 2, mean, std), _beyond(format.largest, mean, std)
    scale = (abs(mean) + std * math.sqrt(2 * math.log(format.block))) / format.largest
    if scale < format.scale_smallest / 2:
        return 1.0, 0.0
    over = _beyond(format.largest * format.scale_largest, mean, std) if scale > format.scale_largest else 0.0
    return 1.0 - _beyond(format.smallest * min(scale, format.scale_largest) / 2, mean, std), over


def _beyond(size: float, mean: float, std: float) -> float:
    """Share of entries of absolute value above `size`."""
    root = std * math.sqrt(2.0)
    return 0.5 * (math.erfc((size - mean) / root) + math.erfc((size + mean) / root))


def _target(format: Format) -> float:
    """One where that is well inside the range, else the middle of the range in logarithms."""
    smallest, largest = _range(format)
    return 1.0 if smallest * 1024 < 1.0 < largest / 16 else math.sqrt(smallest * largest)


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
    "precision", "precision", "under- and overflow in bf16, fp16, fp8, MXFP8 and NVFP4, with the scale that fixes it"
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
    return say(
        severity,
        f"in {name}, {getattr(worst.loss, share):.0%} of the {worst.kind}s of {worst.name} {verb} "
        f"({len(sites)} such site{'s' * (len(sites) > 1)})",
        f"{name} holds numbers from {worst.loss.smallest:.2g} to {worst.loss.largest:.3g}; these entries have a "
        f"standard deviation of {worst.loss.std:.2g}.",
        "Micikevicius et al. 2018 and 2022; OCP MX specification 1.0",
        sites=tuple(dict.fromkeys(site.name for site in sites)),
        depths=(sites[0].depth, sites[-1].depth),
        evidence=(
            Datum(
                f"share that {verb} in {name}",
                getattr(worst.loss, share),
                "for a normal distribution of the site's variance",
            ),
            Datum("scale that fixes the worst site", worst.loss.cure, "theory"),
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


@check("rounding", "precision", "outputs that rounding to bfloat16 changes")
def rounding(subject: Subject) -> Iterator[Finding]:
    """Every output of a module of torch is rounded once; a chaotic network multiplies what that changes."""
    share = subject.observed.rounding
    if not share > limit("rounding") or subject.influence.constant:
        return
    yield say(
        "warning",
        f"rounding to bf16 changes {share:.2g} of the output's mean square",
        "Differences grow on their way through the network (chaos): runs that round differently, on other devices or "
        "with other kernels, part within a few steps.",
        "apjn, section 2; Schoenholz et al. 2017",
        evidence=(Datum("share of the output that rounding to bf16 changes", share, "measured"),),
        prescription=Prescription(
            "run in float32, or lower the std (the gains, the scores) until gradients stop growing"
        ),
    )

"""The embedding against the positions and against the stream that it starts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from torch import nn

from sigprop.checks.branches import Branch
from sigprop.checks.edits import edit
from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.compat import own_modules
from sigprop.results import Edit, Init, SiteRow
from sigprop.results.report import Datum, Finding, Prescription


@check("branch_share", "signal", "a branch drowns its skip or is drowned by it")
def branch_share(subject: Subject) -> Iterator[Finding]:
    """The start of the stream is judged by `embedding_drowned`; later blocks here."""
    later = [branch for branch in subject.branches if not branch.first and math.isfinite(branch.share)]
    loud = [branch for branch in later if branch.share > limit("drowning_branch")]
    quiet = [branch for branch in later if 0 < branch.share < limit("drowned_branch")]
    if loud:
        worst = max(loud, key=lambda branch: branch.share)
        yield _finding(
            subject,
            loud,
            worst,
            "warning",
            f"{worst.site} drowns its skip: {worst.share:.3g} times its variance",
            "The stream is overwritten there: what lies before reaches the output, and its gradient comes back, only "
            "through this branch.",
            "scale its last matrix down",
        )
    if quiet:
        worst = min(quiet, key=lambda branch: branch.share)
        severity, cause, cure = _quiet(subject, quiet, len(later))
        yield _finding(
            subject,
            quiet,
            worst,
            severity,
            f"{len(quiet)} of {len(later)} branches add next to nothing: {worst.site} {worst.share:.2g} of its skip's "
            "variance, lost in bf16",
            cause,
            cure,
        )


def _quiet(subject: Subject, quiet: list[Branch], count: int) -> tuple[str, str, str]:
    """A note where a constant at the branch's end (LayerScale, ReZero) is what makes it small: it learns by itself."""
    ends = [
        junction.weights
        for junction in (subject.structure.junctions if subject.structure else [])
        if junction.exit in {branch.site.removesuffix("[0]") for branch in quiet}
    ]
    rows = [[subject.draws[name] for name in names if name in subject.draws.rows] for names in ends]
    scaled = [
        found for found in rows if any(row.std == 0 and 0 < abs(row.mean) < limit("small_scale") for row in found)
    ]
    if rows and len(scaled) == len(rows):
        return (
            "note",
            "They end in a constant scale that starts small (LayerScale, ReZero) and is learned; in bf16 the sum "
            "rounds them away until it has grown.",
            "keep the stream in float32",
        )
    share = len(quiet) / max(count, 1)
    return (
        "problem" if share > limit("silent_share") else "warning",
        "In bf16 the sum with the skip rounds them away (8 bits: 1.5e-5 in variance), and in any format the output "
        "hardly knows of them: nothing that they compute reaches the loss until they have grown.",
        "enlarge what they read or the std of their last matrices; keep the stream in float32",
    )


def _finding(
    subject: Subject, found: list[Branch], worst: Branch, severity: str, title: str, cause: str, cure: str
) -> Finding:
    return say(
        severity,
        title,
        cause,
        "dslm, section 5.6",
        sites=tuple(branch.site for branch in found),
        depths=(found[0].depth, found[-1].depth),
        evidence=(Datum(f"variance of {worst.site} over its skip", worst.share, subject.source),),
        prescription=Prescription(cure),
    )


SAME_START = (
    "Both are added at the start of the stream, and a norm cannot tell them apart afterwards. Sinusoidal positions "
    "have variance 1/2; tokens of std 0.02 need the factor sqrt(width) that the original Transformer gives them."
)
POSITION = re.compile(r"pos|wpe", re.IGNORECASE)
ROTARY = re.compile(r"rotary|rope", re.IGNORECASE)
OTHER = re.compile(r"type|segment|lang", re.IGNORECASE)


@check("embedding_scale", "signal", "embeddings drowned by positions, or by the first branch")
def embedding_scale(subject: Subject) -> Iterator[Finding]:
    tokens, positions = _embeddings(subject)
    if tokens is not None and positions is not None:
        share = positions.variance / tokens.variance
        if max(share, 1 / share) > limit("embedding_ratio"):
            small, large = (tokens, positions) if share > 1 else (positions, tokens)
            factor = (large.variance / small.variance) ** 0.5
            yield say(
                _severity(share)
                if small is tokens
                else "note",  # models without positions train, without tokens they do not
                f"{large.name} drowns {small.name}: {max(share, 1 / share):.3g} times its variance",
                SAME_START,
                "Vaswani et al. 2017, section 3.4",
                sites=(small.name, large.name),
                depths=(0, 0),
                evidence=(Datum("variance of positions over tokens", share, subject.source),),
                prescription=Prescription(
                    f"multiply {small.name} by {factor:.3g}", "variance ratio", max(share, 1 / share), 1.0, "weights"
                ),
                edits=tuple(_edits(subject, small, large)),
            )
    yield from _added_positions(subject)
    first = [branch for branch in subject.branches if branch.first and branch.share > limit("start_ratio")]
    if first:  # a note: Llama, Mistral and Qwen as published start so, and train
        worst = max(first, key=lambda branch: branch.share)
        yield say(
            "note",
            f"the first branch, {worst.site}, has {worst.share:.3g} times the variance of the stream it is added to",
            "The embeddings start the stream so small that one branch overwrites them; norms hide it from the forward "
            "pass, but gradients of the embedding are larger by the same factor.",
            "Takase et al. 2023, 'Spike no more'",
            sites=(worst.site,),
            depths=(worst.depth, worst.depth),
            evidence=(Datum("variance of the first branch over the stream's start", worst.share, subject.source),),
            prescription=Prescription(f"multiply the embedding's std by {worst.share**0.5:.2g}, or scale its output"),
        )


def _severity(ratio: float) -> str:
    return "problem" if ratio > limit("embedding_ratio_problem") else "warning"


def _added_positions(subject: Subject) -> Iterator[Finding]:
    """Positions without a module of their own, fixed or a parameter, added to what a table gives."""
    for table, (own, added, learned) in subject.observed.positions.items():
        if not own > 0 or added / own < limit("embedding_ratio"):
            continue
        factor = (added / own) ** 0.5
        row = subject.draws.rows.get(f"{table}.weight")
        inits = {} if row is None else {row.name: Init("normal", std=row.std * factor)}
        because = f"The std of {table}.weight leaves its rows {1 / factor:.2g} times the scale of their positions."
        edits = (edit(f"multiply the std of {table}.weight by {factor:.3g}", inits, because),) if inits else ()
        if learned:
            inits = {name: Init("normal", std=own**0.5) for name in learned}
            because = f"The std of {', '.join(learned)}, {added**0.5:.3g}, is {factor:.3g} times that of its words."
            edits = (edit(f"initialize {', '.join(learned)} with std {own**0.5:.3g}", inits, because), *edits)
        yield say(
            _severity(added / own),
            f"{', '.join(learned) or 'fixed positions'} drown {table}, which they are added to: "
            f"{added / own:.3g} times its variance",
            SAME_START,
            "Vaswani et al. 2017, section 3.4",
            sites=(table,),
            depths=(0, 0),
            evidence=(Datum("variance of positions over tokens", added / own, "measured"),),
            prescription=Prescription(f"multiply {table} by {factor:.3g} (the original has sqrt(width))"),
            edits=edits,
        )


def _edits(subject: Subject, small: SiteRow, large: SiteRow) -> Iterator[Edit]:
    """The louder table at the std of the other where it is larger than one, else the quieter at that of the louder."""
    pairs = [(large, small), (small, large)] if large.variance > 1.0 else [(small, large)]
    for changed, kept in pairs:
        row = subject.draws.rows.get(f"{changed.name}.weight")
        if row is not None and row.is_random:
            std = row.std * (kept.variance / changed.variance) ** 0.5
            because = f"The std of {row.name}, {row.std:.3g}, is what makes them unequal."
            yield edit(f"initialize {row.name} with std {std:.3g}", {row.name: Init("normal", std=std)}, because)


def _embeddings(subject: Subject) -> tuple[SiteRow | None, SiteRow | None]:
    """The rows of the token table and of the positions, learned or fixed, before the first block."""
    modules = dict(subject.model.named_modules())
    tokens = positions = None
    for row in subject.profile.sites if subject.profile is not None else []:
        if row.depth > 0 or not row.variance > 0:
            continue
        leaf = row.name.rpartition(".")[2]
        module = modules.get(row.name)
        if POSITION.search(leaf) and (module is None or not own_modules(module)):
            positions = positions or row
        elif isinstance(module, nn.Embedding) and not OTHER.search(leaf):
            tokens = tokens or row
    if tokens is None or positions is None or not _can_add(modules.get(tokens.name), modules.get(positions.name)):
        return tokens, None
    return tokens, positions


def _can_add(tokens: nn.Module | None, positions: nn.Module | None) -> bool:
    """Rotary tables turn queries and keys instead: they are as wide as a head, or say what they are."""
    widths = [getattr(module, "embedding_dim", None) for module in (tokens, positions)]
    return not ROTARY.search(type(positions).__name__) and (None in widths or widths[0] == widths[1])

"""Residual branches against the stream that they are added to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sigprop.results import SiteRow

if TYPE_CHECKING:
    from sigprop.check.subject import Subject


@dataclass(frozen=True)
class Branch:
    """One branch: the site of its output, its depth, its variance and that of the skip before it."""

    site: str
    depth: int
    variance: float
    skip: float
    first: bool

    @property
    def share(self) -> float:
        return self.variance / self.skip


def find_branches(subject: Subject) -> list[Branch]:
    """The skip of a branch is the site that the sum adds to; where that is none, the sum of the junction before it
    (variances add), the block before, or the start of the stream."""
    structure, profile = subject.structure, subject.profile
    if structure is None or profile is None:
        return []
    found = []
    labels = {} if structure.trace is None else {id(item): label for label, item in structure.trace.sites}
    skips = [subject.row(labels.get(id(spot.skip), "")) for spot in structure.sums]
    for stream in subject.streams:
        rows = stream.rows(profile)
        start = _start(profile.sites, rows[0]) if rows else None
        skip = 0.0 if start is None else start.variance
        for place, block in enumerate(rows):
            for junction, own in zip(structure.junctions, skips, strict=True):
                exit_row = subject.row(junction.exit) if junction.exit else None
                inside = junction.name.startswith((block.name.removesuffix("[0]") + ".", block.name + "@"))
                if exit_row is None or not inside:
                    continue
                skip = skip if own is None else own.variance
                branch = junction.branch_scale**2 * exit_row.variance
                if skip > 0:
                    found.append(Branch(exit_row.name, block.depth, branch, skip, place == 0))
                skip = junction.skip_scale**2 * skip + branch
            skip = block.variance
    return found


def _start(sites: list[SiteRow], block: SiteRow) -> SiteRow | None:
    """The last site before the first of a block's own."""
    prefix = block.name.removesuffix("[0]") + "."
    before = None
    for row in sites:
        if row.name.startswith(prefix) or row is block:
            return before
        if row.variance > 0 and "scores" not in row.name:
            before = row
    return before

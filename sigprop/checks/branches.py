"""Residual branches against the stream that they are added to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sigprop.capture.record import Field
from sigprop.checks.streams import Stream
from sigprop.plans.recipes.planned_states import variance
from sigprop.results import Profile, SiteRow
from sigprop.structure import Structure
from sigprop.structure.residual import SUMS


@dataclass(frozen=True)
class Branch:
    """One branch: the site of its output, its depth, its variance and that of the skip before it.

    `first`: it lies in the first block of its stream. `normed`: a norm reads the sum (Post-LN). `stream` counts from 0.
    """

    site: str
    depth: int
    variance: float
    skip: float
    first: bool
    normed: bool
    stream: int

    @property
    def share(self) -> float:
        return self.variance / self.skip


def normed_streams(branches: Sequence[Branch]) -> list[list[Branch]]:
    """By stream, the branches whose sums a norm reads."""
    found: dict[int, list[Branch]] = {}
    for branch in branches:
        if branch.normed and math.isfinite(branch.share):
            found.setdefault(branch.stream, []).append(branch)
    return list(found.values())


def sensitivity_of(branches: Sequence[Branch]) -> float:
    """What the branches of a stream add, relative to their skips, in all (dslm 5.6)."""
    return sum(branch.share for branch in branches)


def find_branches(structure: Structure | None, streams: Sequence[Stream], profile: Profile | None) -> list[Branch]:
    """The skip of a branch is the site that the sum adds to; where that is none, the sum of the junction before it
    (variances add), the block before, or the start of the stream, with what it is itself a sum of."""
    if structure is None or profile is None:
        return []
    found = []
    known = {row.name: row for row in profile.sites}
    labels = {id(item): label for label, item in structure.traced.sites}
    skips = [_row(known, labels.get(id(spot.skip), "")) for spot in structure.sums]
    for number, stream in enumerate(streams):
        rows, skip = stream.rows(profile), 0.0
        for place, block in enumerate(rows):
            for junction, spot, own in zip(structure.junctions, structure.sums, skips, strict=True):
                exit_row = _row(known, junction.exit) if junction.exit else None
                if exit_row is None or junction.block != block.name.removesuffix("[0]"):
                    continue
                if own is not None:
                    skip = own.variance
                elif not skip > 0:
                    skip = _start(structure, spot.skip, known, labels)
                branch = junction.branch_scale**2 * exit_row.variance
                normed = junction.placement == "post"
                skip = junction.skip_scale**2 * skip
                if skip > 0:
                    found.append(Branch(exit_row.name, block.depth, branch, skip, place == 0, normed, number))
                skip += branch
            skip = block.variance
    return found


def _row(known: dict[str, SiteRow], name: str) -> SiteRow | None:
    return known.get(name) or known.get(f"{name}[0]")


def _start(structure: Structure, item: Field, known: dict[str, SiteRow], labels: dict[int, str]) -> float:
    """The variance of what a stream starts with: of a sum those of its parts, by theory where a part is no site."""
    row = _row(known, labels.get(id(item), ""))
    if row is not None:
        return row.variance
    if item.made_by in SUMS and len(item.fields) > 1:
        return sum(_start(structure, part, known, labels) for part in item.fields)
    return variance(item.node, structure.traced.states)

"""Weights whose entries are not independent draws: ops take them as such, so that the state is a guess and says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor

from sigprop.capture.record import Weight
from sigprop.distributions import CENTRED, COPIED, STRUCTURED, UNKNOWN, Distribution, distribution, is_copied
from sigprop.theory import Node, Status

WHAT = {
    STRUCTURED: "taken as independent draws, which they are not",
    CENTRED: "taken as independent draws, and they sum to zero",
    COPIED: "those of another layer, and taken as a draw of their own",
    UNKNOWN: "not known",
}


def law_of(parameter: Tensor) -> Distribution:
    """The law of a parameter's entries; a draw that others have too is no draw of its own."""
    law = distribution(parameter)
    return replace(law, kind=COPIED) if is_copied(parameter) and law.variance else law


def note_dependent_entries(node: Node, weights: Iterable[Weight]) -> None:
    """Lower the evidence of a node whose op takes dependent entries as independent."""
    for weight in weights:
        kind = weight.distribution.kind
        if kind in WHAT and not (kind == CENTRED and getattr(node.op, "centred", False)):
            name = next((name for name, _ in weight.roots()), "a weight")
            node.signal = node.signal.note(Status.ASSUMED, f"entries of {name} are {WHAT[kind]}")

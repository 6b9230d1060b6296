"""Shortcuts of a prediction: what is followed in place of the whole, with the error that each states.

All are used where they apply; `predict(..., passes=())` follows everything, and `meta["passes"]` names those that were
used. What each does stands in the file that it names.
"""

from __future__ import annotations

from collections.abc import Collection

from sigprop.errors import UnknownNameError

REPEATED, SEQUENCES, LONG = "repeated blocks", "identical sequences", "long contexts"
EXPERTS, THINNED = "experts as one", "thinned heads"
PASSES = {
    REPEATED: "of 40 identical blocks or more some are followed: 2 % of a kernel at each jump (repeated_blocks.py)",
    SEQUENCES: "of 4 sequences or more two are followed: 12 % of what all share, else less (identical_sequences.py)",
    LONG: "sequences beyond `tokens` are continued from shorter ones: rows are assumed (long_contexts.py)",
    EXPERTS: "of stacked experts one is followed: none in expectation, for weights of mean zero (experts_as_one.py)",
    THINNED: "of many heads a part is drawn: the standard errors of the draws (replay.py)",
}
"""Each with what it does, its error, and its file in `sigprop/capture`."""


def require_passes(passes: Collection[str]) -> frozenset[str]:
    """The passes that are allowed; raises for one that is none."""
    for name in (passes,) if isinstance(passes, str) else passes:
        if name not in PASSES:
            raise UnknownNameError("pass", name, PASSES)
    return frozenset(passes)

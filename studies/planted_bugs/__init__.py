"""Planted bugs over all kinds of models, written before any check of them; see `judge`.

Numbers follow the order of imports. Odd ones are open: rules may be mended on them. Even ones are held out and looked
at once.
"""

from studies.planted_bugs import (
    adapters,
    contrastive,
    detection,
    experts,
    generative,
    language,
    others,
    recurrent,
    vision,
)
from studies.planted_bugs.case import BUGS, Bug

FIRST_SET = len(BUGS)
from studies.planted_bugs import fresh  # noqa: E402

SECOND_SET = len(BUGS)
from studies.planted_bugs import third  # noqa: E402

THIRD_SET = len(BUGS)
from studies.planted_bugs import fourth  # noqa: E402

FOURTH_SET = len(BUGS)
from studies.planted_bugs import fifth  # noqa: E402

FIFTH_SET = len(BUGS)
from studies.planted_bugs import sixth  # noqa: E402

__all__ = [
    "BUGS",
    "FIFTH_SET",
    "FIRST_SET",
    "FOURTH_SET",
    "SECOND_SET",
    "THIRD_SET",
    "Bug",
    "adapters",
    "contrastive",
    "detection",
    "experts",
    "fifth",
    "fourth",
    "fresh",
    "generative",
    "language",
    "others",
    "recurrent",
    "sixth",
    "third",
    "vision",
]

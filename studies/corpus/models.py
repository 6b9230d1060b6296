"""All models of the corpus."""

from __future__ import annotations

from functools import cache

from studies.corpus import constructs, further_constructs, further_packages, packages
from studies.corpus.case import Case


@cache
def all_cases() -> tuple[Case, ...]:
    return (*constructs.cases(), *packages.cases(), *further_constructs.cases(), *further_packages.cases())

"""All models of the corpus."""

from __future__ import annotations

from functools import cache

from studies.corpus import (
    constructs,
    fifth_networks,
    fifth_sequences,
    fourth_constructs,
    fourth_packages,
    further_constructs,
    further_packages,
    packages,
    third_constructs,
    third_packages,
)
from studies.corpus.case import Case


@cache
def all_cases() -> tuple[Case, ...]:
    sets = (constructs, packages, further_constructs, further_packages, third_constructs, third_packages)
    sets = (*sets, fourth_constructs, fourth_packages, fifth_sequences, fifth_networks)
    return tuple(case for found in sets for case in found.cases())

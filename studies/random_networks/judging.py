"""Whether fresh initializations contradict a row that is better than a guess."""

from __future__ import annotations

import warnings
from typing import Any

import torch

import sigprop as sp
from studies.corpus.judging import compared
from studies.corpus.witness import witnessed
from studies.random_networks.networks import Case, network


def contradicted(number: int, seeds: int = 16) -> set[tuple[str, str, str]]:
    """Rows better than `assumed` that are off by a fifth and five standard errors, twice, on different seeds."""
    case = network(number)
    torch.manual_seed(number)
    given: Any = case.make() if case.as_module else case.make
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        profile = sp.predict(given, case.batch, loss=case.loss)
        found = _wrong_rows(profile, case, seeds, 90_000)
        return found & _wrong_rows(profile, case, 3 * seeds, 95_000) if found else found


def _wrong_rows(profile: sp.Profile, case: Case, seeds: int, first: int) -> set[tuple[str, str, str]]:
    loss = None if case.loss == "noise" else case.loss
    rows = compared(profile, witnessed(case.make, case.batch, loss, seeds, first))
    return {
        (name, column, status)
        for name, column, error, spread, status, _ in rows
        if status != "assumed" and (error is None or abs(error) > max(0.2, 5 * spread))
    }

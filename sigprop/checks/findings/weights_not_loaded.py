"""Weights of a checkpoint folder that did not get into the model."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.registry import check, say
from sigprop.checks.subject import Subject
from sigprop.inputs import loading_of
from sigprop.results.report import Datum, Finding, Prescription


@check(
    "weights_not_loaded",
    "draw",
    "tensors of a checkpoint folder are missing, unknown to the model, or of another shape",
)
def weights_not_loaded(subject: Subject) -> Iterator[Finding]:
    loading = loading_of(subject.model)
    if loading is None:
        return
    fresh = (*loading.missing, *loading.reshaped)
    if fresh:
        yield say(
            "problem",
            f"{len(fresh)} parameters were not loaded from {loading.folder}, {fresh[0]} first",
            f"{len(loading.missing)} names are not in the folder and {len(loading.reshaped)} have another shape there; "
            "these parameters are newly initialized, and the report is about them.",
            parameters=fresh,
            evidence=(
                Datum("names that the folder lacks", len(loading.missing), "weights", expected=0),
                Datum("names of another shape", len(loading.reshaped), "weights", expected=0),
                Datum("names that the model lacks", len(loading.unexpected), "weights", expected=0),
            ),
            prescription=Prescription("load the folder that belongs to this config, or rename its tensors"),
        )
    elif loading.unexpected:
        yield say(
            "warning",
            f"{loading.folder} has {len(loading.unexpected)} tensors that the model lacks, "
            f"{loading.unexpected[0]} first",
            "The config names another class than the one that was saved, or other settings.",
            evidence=(Datum("names that the model lacks", len(loading.unexpected), "weights", expected=0),),
            prescription=Prescription("compare `architectures` and the sizes in config.json with the saved model"),
        )

"""All reproductions by id, one file each, in the order of their papers."""

from __future__ import annotations

import importlib

from sigprop.errors import UnknownNameError
from studies.reproduction import Reproduction

FILES = (
    "component_accuracy",
    "stack_accuracy",
    "dslm_depth_width",
    "dslm_figure5",
    "dslm_figure6",
    "dslm_table4",
    "dslm_table5",
    "dslm_table7",
    "dslm_table8",
    "dslm_table9",
    "dslm_table10",
    "dslm_table11",
    "dslm_table12",
    "dslm_table13",
    "dslm_figures7_10",
    "dslm_table24",
    "dslm_query_key",
    *(f"apjn_figure{number}" for number in range(1, 11)),
    "apjn_figure11",
    "apjn_figure12",
    "apjn_figure4_trained",
    "apjn_figure5_trained",
    "preln_gradients",
    "preln_warmup",
    "effective_slopes",
    "effective_vit",
    "effective_spans",
    "abc_slopes",
    "abc_alignment",
    "abc_transfer",
    "mup_rates",
    "completep_depth",
    "entropy_collapse",
)


def reproductions() -> dict[str, Reproduction]:
    """Every item by its id."""
    items = [importlib.import_module(f"studies.{name}").REPRODUCTION for name in FILES]
    return {item.id: item for item in items}


def reproduction(name: str) -> Reproduction:
    """One item; an unknown id is named with its nearest."""
    known = reproductions()
    if name not in known:
        raise UnknownNameError("reproduction", name, known, "See `sigprop research reproduce list`.")
    return known[name]

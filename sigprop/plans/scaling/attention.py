r"""Scores that scale as 1/d: once queries and keys align, q.k grows like the head size, not like its root.

Where a model's heads grow with its width, the scores must be multiplied by `kappa = (1/d_head) / (its own
scale)` relative to the base. The traces of model and base say what the queries are linear in, and which scale the model
has of its own (none in GPT-Neo, 1/d already in a muP model). In order of preference, with kappa on

    what only the queries are linear in    their projection, or the gain of a norm on them
    what only the keys are linear in       likewise
    one projection of queries and keys     sqrt(kappa), the scores having two of them
    one of queries, keys and values        sqrt(kappa), and the map that reads the mixed values divided by it
    the number of the module               that the trace has found between `q . k` and the softmax

All but the last are exact moves that leave nothing but weights. Without a base, heads of half the reference width are
the reference, and larger ones are scaled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import nn

from sigprop.errors import UnsupportedError
from sigprop.plans.rows import ScalePlan
from sigprop.plans.scaling.model_and_base import ModelAndBase
from sigprop.sites import ROOT, modules_of
from sigprop.structure import Scores, Structure

SAME = 1e-9


@dataclass
class AttentionScales:
    """Forward scales, gauge factors by parameter name, what they do to the outputs of modules,
    the ratio of head sizes by module, and the modules whose scores have a bias beside `q . k`."""

    scales: list[ScalePlan] = field(default_factory=list)
    gauges: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, float] = field(default_factory=dict)
    heads: dict[str, float] = field(default_factory=dict)
    biased: set[str] = field(default_factory=set)
    owners: dict[str, str] = field(default_factory=dict)


def attention_scales(model: nn.Module, pair: ModelAndBase) -> AttentionScales:
    """What every attention of the model needs beside the base's; nothing where the head size is that of the base."""
    found = AttentionScales()
    for own, partner in pair.scores():
        ratio = own.head_width / partner.head_width
        found.heads[own.module] = ratio
        found.biased |= {own.module} if own.biased else set()
        known = own.scale is not None and partner.scale is not None
        _scale(found, model, own, 1.0 / ratio / (own.scale / partner.scale if known else ratio**-0.5))  # type: ignore[operator]
    return found


def reference_attention_scales(model: nn.Module, structure: Structure, width: int) -> AttentionScales:
    """Beside heads of half the reference width, for attentions with the usual scale."""
    found = AttentionScales()
    for own in structure.scores:
        usual = own.scale is not None and math.isclose(own.scale, own.head_width**-0.5, rel_tol=1e-6)
        _scale(found, model, own, min(1.0, (width / 2 / own.head_width) ** 0.5) if usual else 1.0)
    return found


def _scale(found: AttentionScales, model: nn.Module, own: Scores, kappa: float) -> None:
    if math.isclose(kappa, 1.0, rel_tol=SAME):
        return
    query, key, value = set(own.query if own.shift == 0.0 else ()), set(own.key), set(own.value)
    if query and not query & (key | value):
        _gauge(found, model, own, kappa, query)
    elif key and not key & (set(own.query) | value):
        _gauge(found, model, own, kappa, key)
    elif query and query == key and not query & value:
        _gauge(found, model, own, kappa**0.5, query)
    elif query and query == key == value and own.mixer:
        _gauge(found, model, own, kappa**0.5, query)
        found.gauges |= dict.fromkeys(own.mixer, 1.0 / math.sqrt(kappa))
        found.owners |= dict.fromkeys(own.mixer, own.module)
    else:
        found.scales.append(
            ScalePlan(_plain(own.module), kappa, f"attribute:{_number_of(model, own)}", "scores as 1/d")
        )


def _gauge(found: AttentionScales, model: nn.Module, own: Scores, factor: float, names: set[str]) -> None:
    found.gauges |= dict.fromkeys(names, factor)
    found.owners |= dict.fromkeys(names, own.module)
    modules = modules_of(model)
    owners = {name.rpartition(".")[0] for name in names}
    found.outputs |= {owner: factor for owner in owners if not any(modules[owner].children()) and owner != own.module}


def _number_of(model: nn.Module, own: Scores) -> str:
    """The attribute of the attention's module that holds the scale of its scores."""
    module = modules_of(model)[_plain(own.module)]
    for name, value in vars(module).items():
        if isinstance(value, float) and own.scale is not None and math.isclose(value, own.scale, rel_tol=1e-6):
            return name
    raise UnsupportedError(
        f"{own.module or type(model).__name__}: the head size grows, and nothing was found to carry the 1/d: nothing "
        'that queries or keys are linear in, no number that scales scores; scale them yourself, pass attention="keep"'
    )


def _plain(module: str) -> str:
    return "" if module == ROOT else module

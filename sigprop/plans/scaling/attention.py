r"""Scores that scale as 1/d: once queries and keys align, q.k grows like the head size, not like its root.

Where a model's heads grow with its width, the scores must be multiplied by `kappa = (1/d_head) / (its own
scale)` relative to the base. In order of preference: the parameters that the queries are linear in (`W_q, b_q`, or the
gain of a norm on the queries) times kappa; a fused projection (`W_qkv, b_qkv` times sqrt(kappa), the output weight
divided by it, since the output is linear in the values); the module's own scale number. The first two are exact gauge
moves that leave nothing but weights. Attentions are read from the traces of model and base, which also tell the scale
that the model itself has (none in GPT-Neo, 1/d already in a muP model); by names only where there is no trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from sigprop.errors import InputError
from sigprop.plans.scaling.dimensions import Dimensions, pattern
from sigprop.plans.scaling.model_and_base import ModelAndBase
from sigprop.results import ScalePlan
from sigprop.results.application import plain_name, unwrap

HEAD_SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size", "dim_head", "d_head", "d_kv")
HEAD_COUNTS = ("num_heads", "num_attention_heads", "heads", "n_heads", "n_head", "nhead")
SCALES = ("scaling", "scale", "softmax_scale", "scale_factor")
QUERIES = ("q_proj", "query", "q", "wq", "to_q", "q_lin", "query_proj", "q_linear")
FUSED = ("qkv", "c_attn", "query_key_value", "qkv_proj", "in_proj", "Wqkv", "to_qkv", "wqkv")
OUTPUTS = ("out_proj", "o_proj", "output", "c_proj", "proj", "dense", "wo", "Wo", "o", "to_out", "out_lin", "out")


@dataclass
class AttentionScales:
    """Forward scales, gauge factors by parameter name, what they do to the outputs of modules,
    the ratio of head sizes by module, and the modules whose scores have a bias beside `q . k`."""

    scales: list[ScalePlan] = field(default_factory=list)
    gauges: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, float] = field(default_factory=dict)
    heads: dict[str, float] = field(default_factory=dict)
    biased: set[str] = field(default_factory=set)


def attention_scales(
    model: nn.Module, base: nn.Module, dims: list[Dimensions], pair: ModelAndBase | None = None
) -> AttentionScales:
    """What every attention module of the model needs; nothing where the head size is that of the base."""
    if pair is not None and pair.scores():
        return _traced_scales(model, base, {item.name: item for item in dims}, pair)
    partners = {pattern(plain_name(name)): module for name, module in reversed(list(unwrap(base).named_modules()))}
    by_name = {item.name: item for item in dims}
    found = AttentionScales()
    for raw, module in unwrap(model).named_modules():
        name = plain_name(raw)
        partner = partners.get(pattern(name))
        if partner is None:
            continue
        ratio = _head_ratio(name, module, partner, by_name)
        if ratio is not None:
            found.heads[name] = ratio
        if ratio is not None and ratio != 1.0:
            _scale(found, name, module, partner, ratio, by_name)
    return found


def _traced_scales(
    model: nn.Module, base: nn.Module, dims: Mapping[str, Dimensions], pair: ModelAndBase
) -> AttentionScales:
    found = AttentionScales()
    modules, others = (
        {plain_name(name): module for name, module in unwrap(each).named_modules()} for each in (model, base)
    )
    assert pair.model is not None
    for own, partner in pair.scores():
        ratio = own.head_width / partner.head_width
        found.heads[own.module] = ratio
        found.biased |= {own.module} if own.biased else set()
        if ratio == 1.0:
            continue
        known = own.scale is not None and partner.scale is not None
        kappa = 1.0 / ratio / (own.scale / partner.scale if known else ratio**-0.5)  # type: ignore[operator]
        if math.isclose(kappa, 1.0, rel_tol=1e-9):
            continue
        fused = any(pair.model.parameters[name].parts for name in own.query if name in pair.model.parameters)
        if own.query and not fused and own.shift == 0.0:
            _gauge(found, dims, kappa, *own.query)
            found.outputs |= {name.rpartition(".")[0]: kappa for name in own.query}
        else:
            _scale(found, own.module, modules[own.module], others[partner.module], ratio, dims, kappa)
    return found


def _head_ratio(name: str, module: nn.Module, partner: nn.Module, dims: Mapping[str, Dimensions]) -> float | None:
    """Head size of the model over that of the base; None when the module is no attention."""
    projection = _child(module, QUERIES) or _child(module, FUSED)
    scale = _own_scale(module)
    if projection is None and scale is None and not isinstance(module, nn.MultiheadAttention):
        return None
    for attribute in HEAD_SIZES:
        size, other = getattr(module, attribute, None), getattr(partner, attribute, None)
        if isinstance(size, int) and isinstance(other, int):
            return size / other
    for attribute in HEAD_COUNTS:
        count, other = getattr(module, attribute, None), getattr(partner, attribute, None)
        if isinstance(count, int) and isinstance(other, int) and projection is not None:
            weight = dims.get(f"{name}.{projection}.weight")
            return weight.fan_out / (count / other) if weight is not None else None
    return None


def _scale(
    found: AttentionScales,
    name: str,
    module: nn.Module,
    partner: nn.Module,
    ratio: float,
    dims: Mapping,
    known: float | None = None,
) -> None:
    attribute = _own_scale(module)
    own = getattr(module, attribute) / getattr(partner, attribute) if attribute is not None else ratio**-0.5
    kappa = float(1.0 / ratio / own) if known is None else known
    normed = any("norm" in child for child, _ in module.named_children())
    query, fused, output = (_child(module, names) for names in (QUERIES, FUSED, OUTPUTS))
    if query is not None and not normed:
        _gauge(found, dims, kappa, f"{name}.{query}.weight", f"{name}.{query}.bias")
        found.outputs[f"{name}.{query}"] = kappa
    elif fused is not None and output is not None:
        _gauge(found, dims, kappa**0.5, f"{name}.{fused}.weight", f"{name}.{fused}.bias")
        found.outputs[f"{name}.{fused}"] = kappa**0.5
        _gauge(found, dims, kappa**-0.5, f"{name}.{output}.weight")
    elif isinstance(module, nn.MultiheadAttention):
        _gauge(found, dims, kappa**0.5, f"{name}.in_proj_weight", f"{name}.in_proj_bias")
        _gauge(found, dims, kappa**-0.5, f"{name}.out_proj.weight")
    elif attribute is not None:
        why = f"head size x{ratio:g}: scores scale as 1/d; nothing that queries are linear in was found to carry it"
        found.scales.append(ScalePlan(name, kappa, f"attribute:{attribute}", why))
    else:
        raise InputError(
            f"{name} ({type(module).__name__}): head size grows x{ratio:g} but no scale number, query or fused "
            'projection was found to carry the 1/d; scale it yourself and pass attention="keep"'
        )


def _gauge(found: AttentionScales, dims: Mapping, kappa: float, *names: str) -> None:
    for name in names:
        if name.lstrip(".") in dims:
            found.gauges[name.lstrip(".")] = kappa


def _own_scale(module: nn.Module) -> str | None:
    """The module's score scale, for modules that also know a head size."""
    if not any(isinstance(getattr(module, name, None), int) for name in HEAD_SIZES):
        return None
    return next((name for name in SCALES if isinstance(getattr(module, name, None), float)), None)


def _child(module: nn.Module, names: tuple[str, ...]) -> str | None:
    children = dict(module.named_children())
    return next((name for name in names if getattr(children.get(name), "weight", None) is not None), None)

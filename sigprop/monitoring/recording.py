"""Taking the numbers of one pass: `measure`'s recorder with what only a running training has to tell.

A tensor in a narrow format has lost already what was too small or too large for it. What can still be seen is the share
of entries in the subnormal range, where bits go missing, the share that has become infinite, and how near the largest
entry is to the largest number. Of attention a few queries of every head are read, evenly spread: all scores would take
as much memory as fused attention exists to save, and a query's numbers need no other query.

The cosine of two tokens is taken about the mean of the whole tensor, which one rank does not know while it holds its
part. About `c + e` instead of `c` the inverse length of a token is the generating function of Legendre's polynomials,

    |x_t - c - e|^-1 = |x_t - c|^-1 sum_n P_n(z_t) (e sqrt(d) / |x_t - c|)^n,

with `z_t` the cosine between `x_t - c` and the vector of ones. So the sum of unit vectors is a power series in `e`, the
distance of two means, and the series of its squared length is all that has to be sent; terms above `ORDER` are left
out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigprop.compat import BatchNorm
from sigprop.measurement.functions import (
    ADDITIONS,
    SOFTMAXES,
    FunctionWatch,
    is_attention,
    multi_head_scores,
    sdpa_scores,
    skip_and_branch,
)
from sigprop.measurement.layout import TokenLayout
from sigprop.measurement.recorder import Recorder, Site
from sigprop.score_masks import allowed_scores, score_summary


def spread_type() -> type | tuple[()]:
    """DTensor, once somebody has imported it; before that there can be none."""
    module = sys.modules.get("torch.distributed.tensor")
    return () if module is None else getattr(module, "DTensor", ())


def is_spread(x: Any) -> bool:
    return isinstance(x, spread_type())


def whole(x: Any) -> Tensor:
    """All of the tensor, gathered where it is spread."""
    return x.full_tensor() if is_spread(x) else x


def local(x: Any) -> Tensor:
    """What this process holds."""
    return x.to_local() if is_spread(x) else x


def copies(x: Any, world: int) -> float:
    """How many processes of the world hold the same entries: all, unless the tensor is sharded."""
    if not is_spread(x):
        return float(world)
    shards = 1
    for size, placement in zip(x.device_mesh.shape, x.placements, strict=True):
        shards *= size if placement.is_shard() else 1
    return max(world / shards, 1.0)


NARROW = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def losses(x: Tensor, signal: bool) -> dict[str, Tensor]:
    """Shares lost at both ends, and the largest entry as a share of the largest number; empty for wide formats."""
    if x.dtype not in NARROW:
        return {}
    prefix = "" if signal else "grad_"
    limits = torch.finfo(x.dtype)
    size = x.abs()
    small = (size > 0) & (size < limits.tiny)
    return {
        f"{prefix}{NARROW[x.dtype]}_underflow": small.float().mean(),
        f"{prefix}{NARROW[x.dtype]}_overflow": size.isinf().float().mean(),
        f"{prefix}{NARROW[x.dtype]}_headroom": size.float().amax() / limits.max,
    }


QUERIES = 64
ENTRIES = 1 << 22


def scores_of(function: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
    """Scores (..., some queries, keys) of a call that is attention; None for any other call."""
    if function is F.scaled_dot_product_attention:
        return _fused(*args, **kwargs)
    if function is F.multi_head_attention_forward:
        return _multi_head(*args, **kwargs)
    if function in SOFTMAXES and is_attention(*args, **kwargs):
        return _explicit(args[0])
    return None


def summary(scores: Tensor) -> dict[str, Tensor | float]:
    """What `measure` says of scores, the largest score, and the entropy that equal weights would have."""
    found: dict[str, Tensor | float] = dict(score_summary(scores))
    with torch.no_grad():
        allowed = allowed_scores(scores)
        keys = allowed.sum(-1)
        open_queries = keys > 0
        found["largest_score"] = torch.where(allowed, scores.detach(), -torch.inf).amax()
        found["uniform_entropy"] = torch.where(open_queries, keys.clamp_min(1).log(), 0.0).sum() / open_queries.sum()
        found["entries"] = allowed.sum()
    return found


def _chosen(heads_and_examples: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """Evenly spread queries, the last among them: that one sees every key of a causal model."""
    count = min(queries, QUERIES, max(1, ENTRIES // max(1, heads_and_examples * keys)))
    return torch.linspace(queries - 1, 0, count, device=device).round().long().flip(0)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    with torch.no_grad():
        queries, keys = query.shape[-2], key.shape[-2]
        rows = _chosen(query.numel() // max(1, queries * query.shape[-1]), queries, keys, query.device)
        if is_causal:
            attn_mask = torch.arange(keys, device=query.device) <= rows[:, None]
        elif attn_mask is not None and attn_mask.dim() >= 2 and attn_mask.shape[-2] == queries:
            attn_mask = attn_mask[..., rows, :]
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return sdpa_scores(query[..., rows, :], key, value, attn_mask, scale=scale, enable_gqa=enable_gqa)


def _multi_head(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    heads = kwargs["num_heads"] if "num_heads" in kwargs else args[1]
    examples = query.shape[1] if query.dim() == 3 else 1
    rows = _chosen(heads * examples, len(query), len(key), query.device)
    mask = kwargs.get("attn_mask")
    if mask is not None:
        kwargs = {**kwargs, "attn_mask": mask[..., rows, :]}
    return multi_head_scores(query[rows], key, value, *args, **kwargs)


def _explicit(scores: Tensor) -> Tensor:
    queries, keys = scores.shape[-2:]
    rows = _chosen(scores.numel() // max(1, queries * keys), queries, keys, scores.device)
    return scores.detach()[..., rows, :]


NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, BatchNorm)
GiveUp = Callable[[Exception], None]


def is_norm(module: nn.Module | None) -> bool:
    """A norm of torch, or one that calls itself so."""
    return isinstance(module, NORMS) or (module is not None and type(module).__name__.endswith("Norm"))


class PassRecorder(Recorder):
    """A failure never reaches the user.

    `shifts` holds, for the noise of the gradient, what one example contributes to the gradient of a shift of a norm's
    output: the sum over examples and the sum of squares.
    """

    def __init__(self, modules: Mapping[str, nn.Module], layout: TokenLayout, for_ranks: bool, give_up: GiveUp):
        super().__init__(modules, layout, None)
        self.for_ranks = for_ranks
        self.give_up = give_up
        self.shifts: dict[str, tuple[Tensor, Tensor, int]] = {}

    def _module_output(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        try:
            super()._module_output(name, module, inputs, output)
        except Exception as error:
            self.give_up(error)

    def _gradient(self, ticket: int, gradient: Tensor | None) -> None:
        try:
            super()._gradient(ticket, gradient)
        except Exception as error:
            self.give_up(error)

    def _take(self, ticket: int, tensor: Tensor, signal: bool) -> None:
        super()._take(ticket, whole(tensor.detach()), signal)

    def _note_more(self, site: Site, values: Tensor, mask: Tensor | None, signal: bool) -> None:
        known: dict[str, Any] = site.values
        with torch.no_grad():
            if signal:
                known["entries"] = values.numel() if mask is None else mask.sum() * values.shape[2]
                known["sequences"] = values.shape[0]
                known["shared"] = values.shape[0] == 1 < (self.layout.examples or 1)
            known |= losses(values, signal)
            if signal and self.for_ranks and values.shape[1] > 1:
                known |= correlation_about(values, mask)
            if not signal and is_norm(site.module):
                shift = values.float().sum(1)
                self.shifts[site.name] = shift.sum(0), shift.square().sum(), shift.shape[0]


class PassFunctions(FunctionWatch):
    """Residual junctions with the mean squares of both operands, and attention scores of some queries."""

    recorder: PassRecorder

    def __init__(self, recorder: PassRecorder):
        super().__init__(recorder, junctions=True, scores=True)

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        if self.recorder.phase != "forward":
            return func(*args, **kwargs)
        operands = self._tried(_operands, func, args)
        output = func(*args, **kwargs)
        if operands is not None:
            self._tried(self._junction, output, operands)
        self._tried(self._scores, func, args, kwargs)
        return output

    def _tried(self, work: Callable[..., Any], *given: Any) -> Any:
        try:
            return work(*given)
        except Exception as error:
            self.recorder.give_up(error)
            return None

    def _junction(self, output: Tensor, operands: dict[str, Tensor]) -> None:
        self.recorder.record(self._name("add"), output)
        self.recorder.sites[-1].values |= operands

    def _scores(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        scores = scores_of(func, args, kwargs)
        if scores is not None:
            self.recorder.note(self._name("scores"), summary(whole(scores)))  # type: ignore[arg-type]


def _operands(func: Any, args: tuple) -> dict[str, Tensor] | None:
    """Mean squares of skip and branch, taken before an addition that may overwrite one of them."""
    found = skip_and_branch(*args[:2]) if func in ADDITIONS else None
    if found is None:
        return None
    with torch.no_grad():
        skip, branch = (whole(x).detach() for x in found)
        wide = torch.promote_types(skip.dtype, torch.float32)
        sizes = [torch.linalg.vector_norm(x, dtype=wide).double().square() for x in (skip, branch)]
    return {"skip": sizes[0] / skip.numel(), "branch": sizes[1] / skip.numel()}


ORDER = 5


def correlation_about(x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Coefficients `about_0` ... in `e` of the correlation summed over sequences, and how many these are."""
    x = x.double()
    valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
    x = x.masked_fill(~valid[:, :, None], 0.0)
    channels = x.shape[2]
    centre = x.sum() / (valid.sum() * channels)
    sums, squares = x.sum(2), x.square().sum(2)
    distance = torch.where(valid, squares - 2.0 * centre * sums + channels * centre.square(), 0.0)
    directed = distance > 1e-12 * distance.amax()
    weights = _inverse_length(torch.where(directed, distance, 1.0), sums - channels * centre, channels)
    weights = torch.where(directed[:, None], weights, 0.0)
    totals = weights.sum(2, keepdim=True)
    shifted = torch.cat((torch.zeros_like(totals[:, :1]), totals[:, :-1]), dim=1)
    series = torch.bmm(weights, x) - centre * totals - shifted
    products = torch.bmm(series, series.mT)
    number = directed.sum(1)
    pairs = (number * (number - 1)).double()
    share = torch.where(pairs > 0, 1.0 / pairs.clamp_min(1.0), 0.0)
    products[:, 0, 0] -= number
    kept = (products * share[:, None, None]).sum(0).flip(1)
    found = {f"about_{power}": kept.diagonal(ORDER - power).sum() for power in range(ORDER + 1)}
    return {**found, "centre": centre, "sequences": (pairs > 0).sum()}


def _inverse_length(distance: Tensor, along: Tensor, channels: int) -> Tensor:
    """(sequences, ORDER + 1, tokens): coefficients of the powers of `e`, by the recursion of Legendre's polynomials."""
    ones = along / (distance * channels).sqrt()
    unit = (channels / distance).sqrt()
    terms = [torch.ones_like(ones), ones]
    for n in range(1, ORDER):
        terms.append(((2 * n + 1) * ones * terms[n] - n * terms[n - 1]) / (n + 1))
    return torch.stack([term * unit**n for n, term in enumerate(terms)], dim=1) * distance.rsqrt()[:, None]

"""Attention and routers that see what they should not, are near one-hot, or cannot tell apart what they choose."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sigprop.checks.calls import MadeBy
from sigprop.checks.registry import check, say, told
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results import SiteRow
from sigprop.results.report import Datum, Finding, Prescription


@check("attention_masks", "tokens", "attention to the future only, to nothing, or along the wrong axis")
def attention_masks(subject: Subject) -> Iterator[Finding]:
    """Masks and softmaxes as they are given."""
    seen = subject.observed
    turned = [*(name for name, item in seen.softmaxes.items() if item.places), *seen.across]
    if seen.future:
        yield told(
            "problem",
            f"{seen.future[0]} attends to itself and to the future, never to what came before",
            "Its mask hides every earlier position and shows every later one: the mask is transposed or inverted.",
            "transpose the mask, or invert it (tril, not triu; True means shown in scaled_dot_product_attention)",
            seen.future,
        )
    if seen.unseen:
        name = max(seen.unseen, key=seen.unseen.__getitem__)
        yield told(
            "problem",
            f"{name} may see no key at all in {seen.unseen[name]} sequences",
            "Its `key_padding_mask` hides every token of them: it is inverted, or the sequences are empty.",
            "invert the mask (`~mask`): True means hidden in `key_padding_mask`",
            list(seen.unseen),
        )
    if turned:
        yield told(
            "problem",
            f"the softmax of {turned[0]} runs along another axis than the keys",
            "Weights of one query do not sum to one: queries (or heads) compete for each key instead.",
            "take the softmax along the last axis, dim=-1",
            turned,
        )


@check("attention_saturated", "tokens", "scores so large that attention is near one-hot")
def attention_saturated(subject: Subject) -> Iterator[Finding]:
    """Scores of variance s2 over n keys have an entropy of about ln(n) - s2 / 2 while s2 is below ln(n)."""
    rows = [row for row in subject.scores if math.isfinite(row.variance)]
    bad = [row for row in rows if row.variance > limit("scores_large") and _is_sharp(subject, row)]
    if bad:
        worst = max(bad, key=lambda row: row.variance)
        site, weight = worst.name.removesuffix(".scores"), worst.extras["largest_weight"]
        yield _saturated(
            subject,
            [row.name for row in bad],
            f"attention scores of {site}",
            site,
            worst.variance,
            weight,
        )
    known = {row.name.removesuffix(".scores") for row in subject.scores}
    hard = {
        name: item
        for name, item in subject.observed.softmaxes.items()
        if name not in known and item.variance > limit("scores_large") and item.largest > limit("one_hot")
    }
    if hard:
        site = max(hard, key=lambda name: hard[name].variance)
        yield _saturated(
            subject,
            list(hard),
            f"the logits of the softmax in {site}{_made_by(hard[site].source, site)}",
            site,
            hard[site].variance,
            hard[site].largest,
        )


def _made_by(source: MadeBy | None, site: str) -> str:
    return f", which {source.site} makes," if source is not None and source.site != site else ""


def _is_sharp(subject: Subject, row: SiteRow) -> bool:
    """Whether the weights show what the scores let expect: a ramp over positions (ALiBi) has a large variance and
    leaves weight to many keys."""
    by_position = subject.observed.fixed.get(row.name.removesuffix(".scores"), 0.0) > limit("fixed_scores")
    return row.extras["largest_weight"] > limit("attention_saturated" if by_position else "attention_sharp")


def _saturated(subject: Subject, sites: list[str], what: str, site: str, variance: float, weight: float) -> Finding:
    fixed = subject.observed.fixed.get(site, 0.0)
    constant = (
        f"{fixed:.0%} of the variance of these scores is the same for another input: a bias that is added to them "
        "(positions, a mask, ALiBi slopes) sets them, not what is read. "
        if fixed > limit("fixed_scores")
        else ""
    )
    return say(
        "problem" if weight > limit("attention_saturated") else "warning",
        f"{what} have variance {variance:.3g}: the largest weight is {weight:.2f} on average",
        f"{constant}A saturated softmax is nearly one-hot: it passes little gradient to what it reads, and a large one "
        "to single tokens, which grows with depth.",
        "Zhai et al. 2023, 'Stabilizing Transformer training'; dslm, B.7",
        sites=tuple(sites),
        evidence=(
            Datum("score variance", variance, subject.source),
            Datum("largest weight", weight, subject.source),
        ),
        prescription=Prescription("give the bias that is added to the scores a smaller std, or the other sign")
        if constant
        else None,
    )


NOTHING = 1e-6
"""Score variance below which float16 sees equal weights; ordinary initializations give 1e-3 to 1."""


@check("attention_uniform", "tokens", "scores so small that attention is exactly uniform")
def attention_uniform(subject: Subject) -> Iterator[Finding]:
    """A problem where every attention is uniform and no queries are zero on purpose: by training such models end 13 to
    32 % above (docs/evidence/severity.md)."""
    rows = [row for row in subject.scores if math.isfinite(row.variance) and row.variance < NOTHING]
    if not rows:
        return
    zeros = any(row.variance == 0 for row in rows)
    everywhere = len(rows) == len(subject.scores) and not zeros and not subject.trained
    yield say(
        "problem" if everywhere else "note",
        f"attention is uniform in {len(rows)} of {len(subject.scores)} layers: score variance {rows[0].variance:.2g}",
        "Queries or keys start at zero. Zero queries are a scheme of muP; the gradient of the keys is zero until they "
        "move."
        if zeros
        else "Every key gets the same weight: queries and keys, or what they read, are small, or the tokens are nearly "
        "identical. Gradients of both are as small, and attention tells tokens apart only once scores have grown.",
        "Yang et al. 2022, App. D.2",
        sites=tuple(row.name for row in rows),
        depths=(rows[0].depth, rows[-1].depth),
        evidence=(Datum("score variance", rows[0].variance, subject.source),),
        prescription=Prescription("initialize the queries with std 1 / sqrt(fan_in) if this is not meant"),
    )


@check("router_collapse", "tokens", "routers that send all tokens to the same few experts")
def router_collapse(subject: Subject) -> Iterator[Finding]:
    """Of `options`, as many as take nine tenths of all choices; choices among what is no expert are left out."""
    experts = subject.expert_counts
    found = {
        name: item
        for name, item in subject.observed.routings.items()
        if item.options in experts and item.busy <= max(item.chosen, limit("busy_options") * item.options)
    }
    if not found:
        return
    worst = min(found, key=lambda name: found[name].busy / found[name].options)
    item = found[worst]
    yield say(
        "problem" if item.busy <= item.chosen else "warning",
        f"{item.busy} of {item.options} experts take nine tenths of all tokens in {worst}",
        "The others get no gradient, and balance has to come from an auxiliary loss alone.",
        "Fedus et al. 2022, section 2.2",
        sites=tuple(found),
        evidence=(Datum(f"experts that take nine tenths in {worst}", item.busy, "measured"),),
        prescription=Prescription(
            "initialize the router with small random weights, without a bias, and balance its load"
        ),
    )

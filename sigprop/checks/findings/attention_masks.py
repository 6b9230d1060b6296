"""Attention that sees what it should not, or weighs along the wrong axis."""

from __future__ import annotations

from collections.abc import Iterator

from sigprop.checks.registry import check
from sigprop.checks.subject import Subject
from sigprop.checks.thresholds import limit
from sigprop.results.report import Datum, Finding, Prescription


@check("attention_masks", "tokens", "attention to the future only, to the answer, or along the wrong axis")
def attention_masks(subject: Subject) -> Iterator[Finding]:
    """Masks as they are given; and, where each target is the next token, whether earlier outputs see the last one."""
    seen = subject.observed
    turned = [name for name, item in seen.softmaxes.items() if item.places]
    if seen.future:
        yield _finding(
            subject, seen.future, "problem",
            f"{seen.future[0]} attends to itself and to the future, never to what came before",
            "Its mask hides every earlier position and shows every later one: the mask is transposed or inverted.",
            "transpose the mask, or invert it (tril, not triu; True means shown in scaled_dot_product_attention)",
        )  # fmt: skip
    if seen.unseen:
        name = max(seen.unseen, key=seen.unseen.__getitem__)
        yield _finding(
            subject, list(seen.unseen), "problem", f"{name} may see no key at all in {seen.unseen[name]} sequences",
            "Its `key_padding_mask` hides every token of them: it is inverted, or the sequences are empty.",
            "invert the mask (`~mask`): True means hidden in `key_padding_mask`",
        )  # fmt: skip
    if turned:
        yield _finding(
            subject, turned, "problem", f"the softmax of {turned[0]} runs along another axis than the keys",
            "Weights of one query do not sum to one: queries (or heads) compete for each key instead.",
            "take the softmax along the last axis, dim=-1",
        )  # fmt: skip
    if not seen.future and seen.leak > limit("leak"):
        yield _finding(
            subject, turned, "problem", "outputs see the token that they are to predict",
            f"Another last token changes {seen.leak:.2g} of the outputs before it, and each target is the next token: "
            "the loss can be learned by copying.", "hide later positions in every attention (causal mask)",
        )  # fmt: skip


def _finding(subject: Subject, sites: list[str], severity: str, title: str, cause: str, fix: str) -> Finding:
    return Finding(
        "attention_masks", "tokens", severity, title, cause, sites=tuple(sites), depths=subject.depths_of(sites),
        evidence=(Datum("attentions of this kind", max(len(sites), 1), "measured", expected=0),),
        prescription=Prescription(fix),
    )  # fmt: skip

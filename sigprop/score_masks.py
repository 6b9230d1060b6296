"""Attention scores in numbers, and which of them a mask forbids: minus infinity, or one so low that nothing is left.

Both what is measured and what is predicted leave those out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

HIDDEN_ROW = 1e8
"""Below minus this a score is hidden even where all scores of its query are: models mask with -1e9 and beyond."""
OUT_OF_REACH = (5000.0, 50.0)
"""How far below the largest score of its query masks put one, looked for in this order: -1e4, and Swin's -100."""
MASKS = 4
"""How many masks may be added to one score."""


PIECE = {"cpu": 1 << 18}
LARGE_PIECE = 1 << 24
"""Scores converted to float64 at once: what a CPU's cache holds; elsewhere few kernels count."""


def allowed_scores(scores: Tensor) -> Tensor:
    """True where no mask has lowered the score out of reach; not-a-number counts as a score."""
    scores, lowest = scores.detach(), max(torch.finfo(scores.dtype).min / 2, -HIDDEN_ROW)
    if scores.device.type == "cpu" and scores.numel():  # elsewhere the answer would be waited for
        low, high = map(float, scores.aminmax())
        if low >= lowest and low >= high - min(OUT_OF_REACH):
            return torch.ones_like(scores, dtype=torch.bool)
    hidden = scores < lowest
    for reach in OUT_OF_REACH:
        hidden = hidden | _masked(scores, hidden, reach)
    return ~hidden


def _masked(scores: Tensor, hidden: Tensor, reach: float) -> Tensor:
    """Scores that a finite mask has put further than `reach` below the largest one of their query.

    It is told from scores that differ by as much: in every row it leaves a gap that is wider than what the scores above
    it span, and not much narrower than what those below it do.
    """
    low = ~hidden & (scores < scores.amax(-1, keepdim=True) - reach)
    if low.device.type == "cpu" and not bool(low.any()):
        return low
    (above, top), (bottom, below) = _ends(scores, ~(hidden | low)), _ends(scores, low)
    gap = (above - below).amin()
    return low & (gap > (top - above).amax()) & (MASKS * gap > (below - bottom).amax())


def _ends(scores: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest of the chosen scores of each row; infinities of the other sign where there are none."""
    return torch.where(chosen, scores, math.inf).amin(-1), torch.where(chosen, scores, -math.inf).amax(-1)


def score_summary(scores: Tensor) -> dict[str, Tensor]:
    """Mean and variance of the allowed scores; entropy and largest weight, averaged over queries.

    With `z` a score less the largest one of its query, and `Z = sum e^z`, the entropy is `log Z - sum z e^z / Z`.
    """
    with torch.no_grad():
        allowed = allowed_scores(scores)
        count, queries = allowed.sum(), allowed.any(-1).sum()
        mean = _summed(lambda x, known: torch.where(known, x, 0.0).sum(), scores, allowed) / count

        def sums(x: Tensor, known: Tensor) -> Tensor:
            square = torch.where(known, (x - mean).square_(), 0.0).sum()
            exponents, powers, total = _exponentials(x, known)
            entropy = total.log() - (exponents * powers).sum(-1) / total
            seen = known.any(-1)
            return torch.stack([square, *(torch.where(seen, item, 0.0).sum() for item in (entropy, 1.0 / total))])

        square, entropy, largest = _summed(sums, scores, allowed)
        return {
            "mean": mean,
            "variance": square / count,
            "entropy": entropy / queries,
            "largest_weight": largest / queries,
        }


def score_gradient_square(scores: Tensor, gradient: Tensor) -> Tensor:
    """Mean square of the score gradient over allowed scores."""
    allowed = allowed_scores(scores)
    return _summed(lambda x, known: torch.where(known, x.square(), 0.0).sum(), gradient, allowed) / allowed.sum()


def gradient_square_behind_output(scores: Tensor, value: Tensor, grad_output: Tensor) -> Tensor:
    """The same from the gradient at the output of attention without dropout: `P * (G - sum(G * P))` with
    `G = grad_output value^T`."""
    allowed = allowed_scores(scores)
    value = value.detach().double()

    def square(x: Tensor, known: Tensor, arriving: Tensor, values: Tensor) -> Tensor:
        _, powers, total = _exponentials(x, known)
        weights = powers.div_(total[..., None])
        passed = arriving @ values.mT
        passed -= (passed * weights).sum(-1, keepdim=True)
        return torch.where(known, passed.mul_(weights).square_(), 0.0).sum()

    return _summed(square, scores, allowed, grad_output, whole=value) / allowed.sum()


def _exponentials(x: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`z`, `e^z` and `Z`; what a mask hides has neither."""
    exponents = torch.where(known, x - torch.where(known, x, -math.inf).amax(-1, keepdim=True), 0.0)
    powers = torch.where(known, exponents.exp(), 0.0)
    return exponents, powers, powers.sum(-1)


def _summed(reduce: Callable[..., Tensor], *rows: Tensor, whole: Tensor | None = None) -> Tensor:
    """Sum of what comes of pieces of tensors `[..., query, number]`, in float64; `whole` is not cut by queries."""
    lead = torch.broadcast_shapes(*(item.shape[:-2] for item in rows))
    cut, uncut = (
        [item.detach().expand(*lead, *item.shape[-2:]).reshape(math.prod(lead), *item.shape[-2:]) for item in items]
        for items in (rows, [] if whole is None else [whole])
    )
    stacks, queries, keys = cut[0].shape
    fitting = max(1, PIECE.get(cut[0].device.type, LARGE_PIECE) // max(1, keys))
    step, found = max(1, fitting // max(1, queries)), None
    for first in range(0, max(1, stacks), step):
        beside = [item[first : first + step] for item in uncut]
        for start in range(0, max(1, queries), fitting):
            pieces = [item[first : first + step, start : start + fitting] for item in cut]
            made = reduce(*(item if item.dtype == torch.bool else item.double() for item in pieces), *beside)
            found = made if found is None else found + made
    assert found is not None
    return found

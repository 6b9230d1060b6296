"""Attention scores in numbers, and which of them a mask forbids: minus infinity, or one so low that nothing is left.

Both what is measured and what is predicted leave those out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

HIDDEN_ROW = 1e8
"""Below minus this a score is hidden even where all scores of its query are: models mask with -1e9 and beyond."""
OUT_OF_REACH = (5000.0, 50.0)
"""How far below the largest score of its query masks put one, looked for in this order: -1e4, and Swin's -100."""
MASKS = 4
"""How many masks may be added to one score."""


def allowed_scores(scores: Tensor) -> Tensor:
    """True where no mask has lowered the score out of reach; not-a-number counts as a score."""
    scores = scores.detach()
    hidden = scores < max(torch.finfo(scores.dtype).min / 2, -HIDDEN_ROW)
    for reach in OUT_OF_REACH:
        hidden = hidden | _masked(scores, hidden, reach)
    return ~hidden


def _masked(scores: Tensor, hidden: Tensor, reach: float) -> Tensor:
    """Scores that a finite mask has put further than `reach` below the largest one of their query.

    It is told from scores that differ by as much: in every row it leaves a gap that is wider than what the scores above
    it span, and not much narrower than what those below it do.
    """
    low = ~hidden & (scores < scores.amax(-1, keepdim=True) - reach)
    (above, top), (bottom, below) = _ends(scores, ~(hidden | low)), _ends(scores, low)
    gap = (above - below).amin()
    return low & (gap > (top - above).amax()) & (MASKS * gap > (below - bottom).amax())


def _ends(scores: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest of the chosen scores of each row; infinities of the other sign where there are none."""
    return torch.where(chosen, scores, math.inf).amin(-1), torch.where(chosen, scores, -math.inf).amax(-1)


def score_summary(scores: Tensor) -> dict[str, Tensor]:
    """Mean and variance of the allowed scores; entropy and largest weight, averaged over queries."""
    with torch.no_grad():
        allowed = allowed_scores(scores)
        count = allowed.sum()
        exact = torch.where(allowed, scores.detach().double(), 0.0)
        mean = exact.sum() / count
        weights = attention_weights(scores)
        entropy = -torch.special.xlogy(weights, weights).sum(-1)
        queries = allowed.any(-1)
        return {
            "mean": mean,
            "variance": torch.where(allowed, (exact - mean).square(), 0.0).sum() / count,
            "entropy": torch.where(queries, entropy, 0.0).sum() / queries.sum(),
            "largest_weight": torch.where(queries, weights.amax(-1), 0.0).sum() / queries.sum(),
        }


def attention_weights(scores: Tensor) -> Tensor:
    """Softmax in float64; zero for a query that may look nowhere."""
    allowed = allowed_scores(scores)
    weights = torch.where(allowed, scores.detach().double(), -math.inf).softmax(-1)
    return torch.where(allowed.any(-1, keepdim=True), weights, 0.0)

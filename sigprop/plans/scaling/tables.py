r"""The rate of a table of tokens, from how often its rows are seen.

Adam steps the entries of a row by its rate, divided by the root of how often the row is seen; a batch of `B` tokens
holds `n = B p` copies of a token of frequency `p`. One token's gradient agrees with the average one by a share
`kappa`, so that `n` of them agree by `min(1, kappa sqrt(n))`: what a row travels in its own direction, step by step,
is that share of its rate, rare rows included (a row that is seen with probability `n` per step steps by `1 / sqrt(n)`
when it is). Averaged over tokens as they come,

    A = sum_v p_v min(1, kappa sqrt(B p_v))

A hidden matrix at the rate of response one (`suggestion.py`) moves what it puts out by `kappa` in the direction of one
token, whose output it shares with all others. The table keeps up with it where one step changes a row by the share

    step = min(1/2, kappa / A)        of the row's size,

at most a half: a row that is changed by all of itself forgets what it has learned. With kappa = 1/4 and batches of a
few thousand tokens that is a third for bytes and a half for large vocabularies, at any width: relative to hidden
matrices, whose rate falls like the fan-in, the table's rate grows like the width. (Hayou and Liu 2025 find the root of
the width for the best ratio at large vocabularies; Kalra and Barkeshli 2026 that this rate is most of muP's benefit.)
kappa was set on stored runs of 256 to 16,384 tokens, width 128, 1,024 tokens a batch, whose best steps were a half.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sigprop.errors import require

AGREEMENT = 0.25
LARGEST_STEP = 0.5


def zipf(vocabulary: int) -> Tensor:
    """Frequencies that fall like one over the rank."""
    require(vocabulary >= 1, "vocabulary", vocabulary, "one token or more")
    weights = 1.0 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    return weights / weights.sum()


def frequencies_in(batch: Any, vocabulary: int) -> Tensor:
    """Counted from the ids of a batch that holds as many tokens as the vocabulary; else a Zipf law."""
    given = list(batch.values()) if isinstance(batch, Mapping) else list(batch) if isinstance(batch, tuple) else [batch]
    for ids in given:
        if isinstance(ids, Tensor) and not ids.is_floating_point() and vocabulary <= ids.numel():
            seen = ids.flatten().cpu()
            inside = seen[(seen >= 0) & (seen < vocabulary)].long()
            counts = torch.bincount(inside, minlength=vocabulary).double()
            if len(inside) >= vocabulary and int((counts > 0).sum()) > 1:
                return counts / counts.sum()
    return zipf(vocabulary)


def table_step(frequencies: Tensor, tokens: int) -> float:
    """The share of its size by which one step changes a row, for a batch of so many tokens."""
    require(tokens >= 1, "tokens of a batch", tokens, "one or more")
    agreement = (AGREEMENT * (tokens * frequencies).sqrt()).clamp_max(1.0)
    return min(LARGEST_STEP, AGREEMENT / float((frequencies * agreement).sum()))

"""What a language model is asked: the next token, hidden tokens, or hidden spans.

Each objective takes passages of token ids and a generator, and returns the batch that Hugging Face models take:
`input_ids` and `labels`, with -100 where no answer is wanted. `loss` is for models that return logits only.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from sigprop.errors import InputError, require
from sigprop.losses import described, first_signal

IGNORED = -100


class TextObjective(Protocol):
    def __call__(self, ids: Tensor, generator: torch.Generator) -> dict[str, Tensor]: ...

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor: ...


def _at_labels(output: Any, batch: dict[str, Tensor], shift: int = 0) -> Tensor:
    """Cross entropy of the logits with the labels `shift` positions later."""
    logits = first_signal(output)
    if logits is None or logits.dim() != 3:
        raise InputError(f"the model returned {described(output)}: needs logits (passages, tokens, vocabulary)")
    kept = logits[:, : logits.shape[1] - shift].float()
    return F.cross_entropy(kept.flatten(0, 1), batch["labels"][:, shift:].flatten(), ignore_index=IGNORED)


@dataclass(frozen=True)
class Causal:
    """Every token is predicted from those before it; the model shifts the labels."""

    def __call__(self, ids: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        return {"input_ids": ids, "labels": ids}

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        return _at_labels(output, batch, shift=1)


@dataclass(frozen=True)
class Masked:
    """BERT's objective: of the chosen tokens 80 % become the mask, 10 % a random token, 10 % stay.

    Reference: Devlin et al. 2019, section 3.1.
    """

    mask: int
    vocabulary: int
    share: float = 0.15

    def __post_init__(self) -> None:
        require(0 < self.share < 1, "share", self.share, "between 0 and 1")

    def __call__(self, ids: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        chosen = torch.rand(ids.shape, generator=generator) < self.share
        fate = torch.rand(ids.shape, generator=generator)
        random = torch.randint(self.vocabulary, ids.shape, generator=generator)
        shown = torch.where(chosen & (fate < 0.8), self.mask, ids)
        shown = torch.where(chosen & (fate >= 0.8) & (fate < 0.9), random, shown)
        return {"input_ids": shown, "labels": torch.where(chosen, ids, IGNORED)}

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        return _at_labels(output, batch)


@dataclass(frozen=True)
class Spans:
    """T5's objective: spans are replaced by sentinels, and asked for behind the same sentinels.

    All passages lose the same number of tokens in the same number of spans, so that batches have one shape. Sentinels
    count down from `sentinel`. Reference: Raffel et al. 2020, section 3.1.4.
    """

    sentinel: int
    share: float = 0.15
    length: float = 3.0

    def __post_init__(self) -> None:
        require(0 < self.share < 1, "share", self.share, "between 0 and 1")
        require(self.length >= 1, "length", self.length, "at least 1")

    def __call__(self, ids: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        tokens = ids.shape[1]
        hidden = min(max(round(tokens * self.share), 1), tokens - 1)
        spans = min(max(round(hidden / self.length), 1), hidden, tokens - hidden)
        rows = [self._row(passage, hidden, spans, generator) for passage in ids]
        shown, asked = zip(*rows, strict=True)
        return {"input_ids": torch.stack(shown), "labels": torch.stack(asked)}

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        return _at_labels(output, batch)

    def _row(self, ids: Tensor, hidden: int, spans: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        kept = _partition(len(ids) - hidden, spans, generator)
        gone = _partition(hidden, spans, generator)
        pieces = ids.split([size for pair in zip(kept, gone, strict=True) for size in pair])
        marks = [ids.new_tensor([self.sentinel - number]) for number in range(spans)]
        shown = [part for number in range(spans) for part in (pieces[2 * number], marks[number])]
        asked = [part for number in range(spans) for part in (marks[number], pieces[2 * number + 1])]
        return torch.cat(shown), torch.cat(asked)


@dataclass(frozen=True)
class Restored:
    """Another objective's answers written by the decoder of an encoder-decoder, one token behind what it reads.

    `start` is the token before the first answer.
    """

    inner: TextObjective
    start: int

    def __call__(self, ids: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        batch = self.inner(ids, generator)
        asked = batch["labels"]
        before = torch.cat((torch.full_like(asked[:, :1], self.start), asked[:, :-1]), dim=1)
        return {"tokens": batch["input_ids"], "target_tokens": before, "labels": asked}

    def loss(self, output: Any, batch: dict[str, Tensor]) -> Tensor:
        return self.inner.loss(output, batch)


def _partition(total: int, parts: int, generator: torch.Generator) -> list[int]:
    """`parts` positive numbers that sum to `total`, every such list equally likely."""
    cuts = torch.randperm(total - 1, generator=generator)[: parts - 1].sort().values + 1
    edges = [0, *cuts.tolist(), total]
    return [after - before for before, after in itertools.pairwise(edges)]

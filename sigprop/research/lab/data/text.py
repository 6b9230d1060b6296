"""Text as a stream of tokens, and batches of passages of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sigprop.errors import InputError, require
from sigprop.losses import LossFunction
from sigprop.research.lab.data.objectives import Causal, TextObjective


def generator_at(seed: int, place: int) -> torch.Generator:
    """A generator for step or epoch `place` of the run `seed`; nearby pairs give unrelated numbers."""
    state = np.random.SeedSequence([seed, place]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


@dataclass(frozen=True)
class TextBatches:
    """Passages at random places of one stream of tokens: `batches(step)` is the same whenever it is asked for."""

    tokens: Tensor = field(repr=False)
    passages: int
    length: int
    seed: int = 0
    objective: TextObjective = field(default_factory=Causal)

    def __post_init__(self) -> None:
        require(self.passages > 0, "passages", self.passages, "at least 1")
        require(self.length > 1, "length", self.length, "at least 2")
        if len(self.tokens) < self.length:
            raise InputError(f"the text has {len(self.tokens)} tokens: a passage needs {self.length}")

    def __call__(self, step: int) -> dict[str, Tensor]:
        generator = generator_at(self.seed, step)
        starts = torch.randint(len(self.tokens) - self.length + 1, (self.passages, 1), generator=generator)
        return self.objective(self.tokens[starts + torch.arange(self.length)].long(), generator)

    @property
    def loss(self) -> LossFunction:
        """For models that return logits only."""
        return self.objective.loss


def tokens_of(text: str, tokenizer: Any = None) -> Tensor:
    """Token ids of a text: its bytes, or what a `tokenizers.Tokenizer` (or anything with its `encode`) makes of it."""
    if tokenizer is None:
        return torch.from_numpy(np.frombuffer(text.encode("utf-8"), dtype=np.uint8).copy())
    return torch.tensor(tokenizer.encode(text).ids, dtype=torch.int32)


def trained_bpe(texts: Iterable[str], vocabulary: int, special: Iterable[str] = ()) -> Any:
    """A byte-level BPE tokenizer trained on texts; needs the package `tokenizers`."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise InputError("a BPE tokenizer needs the package tokenizers: pip install 'sigprop[lab]'") from error
    require(vocabulary >= 256, "vocabulary", vocabulary, "at least 256, one token for every byte")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return made


def zipf_tokens(count: int, vocabulary: int, exponent: float = 1.0, seed: int = 0) -> Tensor:
    """Independent tokens; the one of rank `r` has probability proportional to `r^-exponent`."""
    require(count > 0, "count", count, "at least 1")
    require(vocabulary > 1, "vocabulary", vocabulary, "at least 2")
    weights = torch.arange(1, vocabulary + 1, dtype=torch.float64) ** -exponent
    return torch.multinomial(weights, count, replacement=True, generator=generator_at(seed, 0)).int()

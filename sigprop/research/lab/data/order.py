"""Random numbers that belong to one step: resuming at a step needs nothing but its number."""

from __future__ import annotations

import numpy as np
import torch


def generator_at(seed: int, place: int) -> torch.Generator:
    """A generator for step or epoch `place` of the run `seed`; nearby pairs give unrelated numbers."""
    state = np.random.SeedSequence([seed, place]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))

"""What one draw of the weights leaves open: parameters as other laws, which the same numbers allow, would have them.

A matrix of 96 entries tells its variance to 15 %: it is made larger or smaller by so much. A few numbers may be a
formula or a draw: they are drawn anew. Structured weights (a low rank, training) stay as they are in all draws: their
rows and columns change places and signs, which leaves their spectrum and takes away what they have to do with others.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from sigprop.distributions.distribution import STRUCTURED, Distribution

NEGLIGIBLE = 0.02
Shake = Callable[[Tensor, int], Tensor]


def shaking(parameter: Tensor, law: Distribution, stays: bool, name: str) -> Shake | None:
    """How a parameter is shaken, by its values and the number of the draw; None where nothing is in doubt."""
    if law.variance == 0.0:
        return None
    if stays and law.kind == STRUCTURED:
        return _displaced(name) if parameter.dim() > 1 and not _few_numbers(parameter) else None
    if stays:
        return lambda values, number: independent(values.shape, law, _generator(name, number))
    if law.uncertainty <= NEGLIGIBLE:
        return None
    return lambda values, number: _resized(values, law, _generator(name, number))


def independent(shape: torch.Size, law: Distribution, generator: torch.Generator) -> Tensor:
    """Independent entries with the moments of a law."""
    values = law.quantiles
    if len(values) < 2 or not float(values.std()):
        return law.mean + math.sqrt(law.variance) * torch.randn(shape, generator=generator, dtype=torch.float64)
    scale = math.sqrt(law.variance) / float(values.std(correction=0))
    return law.mean + (law.draw(shape, generator) - values.mean()) * scale


def _resized(values: Tensor, law: Distribution, generator: torch.Generator) -> Tensor:
    sign = 2 * int(torch.randint(2, (1,), generator=generator)) - 1
    return law.mean + (values - law.mean) * math.sqrt(max(1.0 + sign * law.uncertainty, 0.1))


def _displaced(name: str) -> Shake:
    def shake(values: Tensor, number: int) -> Tensor:
        generator = _generator(name, number)
        made = values.detach().clone()
        for axis in (0, 1):
            size = made.shape[axis]
            signs = 2.0 * torch.randint(2, (size,), generator=generator) - 1.0
            shape = [size if n == axis else 1 for n in range(made.dim())]
            made = made.index_select(axis, torch.randperm(size, generator=generator)) * signs.to(made.dtype).view(shape)
        return made

    return shake


def _few_numbers(parameter: Tensor) -> bool:
    """An identity, a mask: a formula, and not one of many draws."""
    values = parameter.detach().flatten()[:4096]
    values = values[values != 0]
    return 2 * len(values.unique()) < len(values)


def _generator(name: str, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()) + 7_919 * number)

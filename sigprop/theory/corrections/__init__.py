"""What goes beyond the limit of infinite width and of gradients that know nothing of the signal, one file each.

| correction | what it is |
|---|---|
| `finite_width` | squared norms fluctuate over channels; gradients below a norm go across the signal |
| `pairs` | products of two tokens fluctuate, and with them what was made from them |
| `along_signal` | the part of a gradient that is a linear function of the signal |
| `gates` | gradients that came through a function of the very signal they belong to |

`kurtosis`, channels that are not Gaussian together, is switched with `pairs`.

Every file states equation, assumption and reference. All are on by default; `correcting(names)` leaves the others out:
then the states carry nothing of them. What each one earns: docs/evidence/compositions.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sigprop.errors import UnknownNameError

NAMES = ("finite_width", "pairs", "along_signal", "gates")
ACTIVE: ContextVar[frozenset[str]] = ContextVar("corrections", default=frozenset(NAMES))
"""Those that are on."""


@contextmanager
def correcting(names: Iterable[str] | None = None) -> Iterator[None]:
    """With these corrections only; all of them when None."""
    chosen = NAMES if names is None else tuple(names)
    for name in chosen:
        if name not in NAMES:
            raise UnknownNameError("correction", name, NAMES)
    before = ACTIVE.set(frozenset(chosen))
    try:
        yield
    finally:
        ACTIVE.reset(before)

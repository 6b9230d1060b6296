"""What a sink is: it gets flat dictionaries of numbers, and findings in words."""

from __future__ import annotations

from typing import Any, Protocol


class Sink(Protocol):
    """One place that a run is written to. A sink that raises is left out from then on, with a warning."""

    name: str

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """The numbers of one sampled step; keys are bounded, see `folding.py`."""
        ...

    def tell(self, step: int, finding: Any) -> None:
        """One finding, once."""
        ...

    def close(self) -> None: ...

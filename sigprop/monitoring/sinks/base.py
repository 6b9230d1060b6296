"""What a sink is: it gets flat dictionaries of numbers, and findings in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from sigprop.registry import Registry


class Sink(Protocol):
    """One place that a run is written to. A sink that raises is left out from then on, with a warning."""

    name: str

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """The numbers of one sampled step; keys are bounded, see `scalars.py`."""
        ...

    def tell(self, step: int, finding: Any) -> None:
        """One finding, once."""
        ...

    def close(self) -> None: ...


SINKS: Registry[Any] = Registry("sink", __package__ or "")


def sink(kind: Any) -> Any:
    """Decorator: a class that is opened by its `name`, with the folder of the run."""
    SINKS.add(kind.name, kind)
    return kind


def open_sink(chosen: str | Sink, folder: str | Path) -> Sink:
    """A sink by its name, or one that the user has opened already."""
    return SINKS[chosen](folder) if isinstance(chosen, str) else chosen

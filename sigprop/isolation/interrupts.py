"""Ctrl-C and other signals, held back while something is set up or put back.

Python runs signal handlers in the main thread, between any two instructions. So an exception that a handler raises may
hit the line before a `try`, or the `finally` block itself. While signals are held they are noted only; they are passed
on where `let_through` allows it, at most one, and at the end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupts:
    """Stands in for the signal handlers that were there before."""

    def __init__(self) -> None:
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._waiting: list[int] = []
        self._open = False

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Inside, the first signal acts at once, and holds back the next; so what follows is sure to run."""
        self._open = True
        try:
            self._deliver()
            yield
        finally:
            self._open = False

    def hold(self) -> None:
        """Handlers written in Python are replaced; the others end or ignore, and cannot raise."""
        for number in sorted(signal.valid_signals()):
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                signal.signal(number, self._arrived)

    def release(self) -> None:
        """Put the handlers back, unless somebody else has set another, and pass on what waits."""
        for number, handler in reversed(self._before.items()):
            if signal.getsignal(number) == self._arrived:
                signal.signal(number, handler)
        self._open = True
        self._deliver()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self._waiting.append(number)
        if self._open:
            self._deliver(frame)

    def _deliver(self, frame: FrameType | None = None) -> None:
        while self._waiting and self._open:
            number = self._waiting.pop(0)
            self._open = False
            self._before[number](number, frame)
            self._open = True


@contextmanager
def interrupts_held() -> Iterator[Interrupts]:
    """Signals wait, except inside `let_through`; only the main thread receives any."""
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    try:
        interrupts.hold()
        yield interrupts
    finally:
        interrupts.release()

"""Losses of every step without waiting for a GPU: they are copied in the background and read when they have come."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor


class LossReader:
    """Takes a loss per step and gives back those that are known by now."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Tensor, Any]] = deque()

    def take(self, step: int, loss: Any) -> None:
        if not isinstance(loss, Tensor):
            self._waiting.append((step, torch.tensor(float(loss)), None))
            return
        loss = loss.detach()
        if loss.device.type != "cuda":
            self._waiting.append((step, loss.clone(), None))
            return
        copied = loss.to("cpu", non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(loss.device))
        self._waiting.append((step, copied, event))

    def known(self, wait: bool = False) -> list[tuple[int, float]]:
        """In order; with `wait` all that were given."""
        found = []
        while self._waiting:
            step, value, event = self._waiting[0]
            if event is not None:
                if wait:
                    event.synchronize()
                elif not event.query():
                    break
            self._waiting.popleft()
            found.append((step, float(value.float().mean())))
        return found

"""One planted bug: a model with it, the correct twin, and, written before any check of it, what a right answer says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn


class Setting(NamedTuple):
    """A model, a batch for it, and the loss where the model returns none."""

    model: nn.Module
    batch: Any
    loss: Any = None


@dataclass(frozen=True)
class Bug:
    """`make(True)` has the bug, `make(False)` is correct. The rest are regular expressions, case aside: `at` is a name
    that a right finding must hold, `cause` and `fix` what its explanation and its fix must say.
    `mend` is the right local fix."""

    title: str
    kind: str
    at: str
    cause: str
    fix: str
    make: Callable[[bool], Setting]
    mend: Callable[[Any], Any]

    def setting(self, buggy: bool, mended: bool = False) -> Setting:
        torch.manual_seed(0)
        setting = self.make(buggy)
        if mended:
            torch.manual_seed(1)
            with torch.no_grad():
                self.mend(setting.model)
        return setting


BUGS: list[Bug] = []


def bug(
    kind: str, title: str, *, at: str, cause: str, fix: str, mend: Callable[[Any], Any]
) -> Callable[[Callable[[bool], Setting]], Callable[[bool], Setting]]:
    """Decorator: register a function that makes the model, with the bug or without."""

    def add(make: Callable[[bool], Setting]) -> Callable[[bool], Setting]:
        BUGS.append(Bug(title, kind, at, cause, fix, make, mend))
        return make

    return add

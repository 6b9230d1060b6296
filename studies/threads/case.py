"""One public thread: the question, a model that has its problem, the call that asks, and what a right answer says."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from typer.testing import CliRunner

import sigprop as sp
from sigprop.cli.app import app
from sigprop.results.report_text import report_text


@dataclass
class Answer:
    """What is printed, and the fixes in it that can be run, with a fresh model for them."""

    text: str
    codes: tuple[str, ...] = ()
    fresh: Callable[[], nn.Module] | None = None

    def mended(self) -> list[nn.Module]:
        """A fresh model for each printed fix, with it."""
        found = []
        for code in self.codes if self.fresh is not None else ():
            assert self.fresh is not None
            model = self.fresh()
            names = {"model": model, "torch": torch, "nn": nn, "init": nn.init, "math": math, "sp": sp}
            with torch.no_grad():
                exec(code, names)
            found.append(model)
        return found


@dataclass(frozen=True)
class Thread:
    """`row`: of the list of threads. `says`: regular expressions that a right answer holds, all of them; `never`: what
    would be wrong. `works`: whether a model with the printed fix is right, where a fix is part of the answer."""

    row: int
    place: str
    question: str
    ask: Callable[[], Answer]
    says: tuple[str, ...]
    never: tuple[str, ...] = ()
    works: Callable[[Any], bool] | None = None

    def judged(self) -> dict[str, Any]:
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer = self.ask()
        except Exception as error:
            answer = Answer(f"no answer: {type(error).__name__}: {error}")
        plain = " ".join(answer.text.split())
        holds = [re.search(item, plain, re.IGNORECASE) is not None for item in self.says]
        wrong = [item for item in self.never if re.search(item, plain, re.IGNORECASE)]
        return {
            "row": self.row, "thread": self.place, "question": self.question,
            "missing": [item for item, held in zip(self.says, holds, strict=True) if not held], "wrong": wrong,
            "fixes": list(answer.codes), "works": self._works(answer), "text": answer.text,
        }  # fmt: skip

    def _works(self, answer: Answer) -> bool | None:
        """Whether the first printed fix that can be run does what it should; None where none is asked for."""
        if self.works is None:
            return None
        try:
            return any(self.works(model) for model in answer.mended())
        except Exception:
            return False


THREADS: list[Thread] = []


def thread(
    row: int,
    place: str,
    question: str,
    *says: str,
    never: tuple[str, ...] = (),
    works: Callable[[Any], bool] | None = None,
) -> Callable[[Callable[[], Answer]], Callable[[], Answer]]:
    def add(ask: Callable[[], Answer]) -> Callable[[], Answer]:
        THREADS.append(Thread(row, place, question, ask, says, never, works))
        return ask

    return add


def checked(make: Callable[[], nn.Module], batch: Any = None, verbose: bool = False, **options: Any) -> Answer:
    """`sigprop check`, as it prints."""

    def fresh() -> nn.Module:
        torch.manual_seed(0)
        return make()

    report = sp.check(fresh(), batch, **options)
    told = [item for item in report.findings if item.prescription is not None and item.severity != "note"]
    codes = [getattr(item.prescription, "code", "") for item in told]
    return Answer(report_text(report, verbose), tuple(code for code in codes if code), fresh)


def command(*arguments: str) -> Answer:
    """A command line, as it prints."""
    return Answer(CliRunner().invoke(app, list(arguments)).output)


def differing(first: nn.Module, second: nn.Module) -> Answer:
    """`sigprop diff`, as it prints."""
    return Answer(str(sp.diff(first, second)))  # type: ignore[attr-defined]

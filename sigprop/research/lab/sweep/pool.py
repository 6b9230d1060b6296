"""Local processes that share the trials of a sweep among themselves; no queue, no master that could die."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from sigprop.errors import require
from sigprop.research.lab.sweep.folder import ResultFolder
from sigprop.research.lab.sweep.sheet import Trial
from sigprop.research.lab.sweep.trial import run_trial

LIVES = 3
"""Lost workers that are replaced."""
Work = Callable[[Trial], dict[str, Any]]


def run_locally(
    trials: list[Trial],
    folder: str | Path,
    workers: int = 1,
    work: Work = run_trial,
    progress: Callable[[int], None] | None = None,
) -> list[Trial]:
    """Run all trials that have no result; returns those that still have none: they raised, or their workers died."""
    require(workers > 0, "workers", workers, "at least 1")
    results = ResultFolder(folder)
    results.start(trials)
    if workers == 1:
        _walk(trials, folder, work, progress)
        return results.missing(trials)
    context = multiprocessing.get_context("spawn")

    def start() -> BaseProcess:
        process = context.Process(target=_walk, args=(trials, folder, work))
        process.start()
        return process

    running, lives = [start() for _ in range(workers)], LIVES
    try:
        while running:
            time.sleep(0.2)
            if progress is not None:
                progress(len(trials) - len(results.missing(trials)))
            lost = [process for process in running if process.exitcode not in (None, 0)]
            running = [process for process in running if process.exitcode is None]
            for _ in lost[:lives]:
                running.append(start())
            lives -= min(len(lost), lives)
    finally:
        for process in running:
            process.terminate()
    return results.missing(trials)


def _walk(trials: list[Trial], folder: str | Path, work: Work, progress: Callable[[int], None] | None = None) -> None:
    """Run every trial that nobody else runs or has run."""
    results = ResultFolder(folder)
    while _ran_one(results.open(trials), results, work):
        if progress is not None:
            progress(len(trials) - len(results.missing(trials)))


def _ran_one(trials: list[Trial], results: ResultFolder, work: Work) -> bool:
    for trial in trials:
        with results.claimed(trial) as mine:
            if mine:
                results.begin(trial)
                try:
                    result = work(trial)
                except Exception as error:
                    results.fail(trial, error)
                else:
                    results.put(trial, result)
                return True
    return False

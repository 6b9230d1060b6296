"""Trials run in processes of this machine or on a cluster."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from sigprop.errors import InputError, require
from sigprop.research.lab.sweep.folder import ResultFolder
from sigprop.research.lab.sweep.spec import Trial, identity, run_trial

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


AHEAD = 2
"""Trials on the cluster for every one of its processors."""
PATIENCE = 5.0
"""Seconds in which a cluster must answer."""
PAUSE = 0.5
"""Seconds between looks at a trial that somebody else runs."""


def run_on_ray(
    trials: list[Trial],
    folder: str | Path,
    work: Work = run_trial,
    progress: Callable[[int], None] | None = None,
    **resources: Any,
) -> list[Trial]:
    """Run all trials that have no result; returns those that still have none: they raised, or their workers died.

    resources: what one trial needs, as for `ray.remote` (`num_cpus=2`, `num_gpus=0.25`).
    """
    ray = _connected()
    results = ResultFolder(Path(folder).resolve())
    results.start(trials)
    with tempfile.NamedTemporaryFile(dir=results.path, prefix=".starter-") as mark:
        return _Sweep(ray, results, work, mark.name, resources).run(trials, progress)


class _Sweep:
    def __init__(self, ray: Any, results: ResultFolder, work: Work, mark: str, resources: dict[str, Any]):
        self.ray, self.results, self.work, self.mark = ray, results, work, mark
        self.task = ray.remote(**{"max_retries": 0, "num_cpus": 1, **resources})(_computed)
        self.most = AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        self.is_shared = ray.get(ray.remote(num_cpus=0)(os.path.exists).remote(mark))
        self.running: dict[Any, tuple[Trial, ExitStack]] = {}
        self.lost: Counter[str] = Counter()

    def run(self, trials: list[Trial], progress: Callable[[int], None] | None) -> list[Trial]:
        while True:
            under_way = {identity(trial) for trial, _ in self.running.values()}
            for trial in self.results.open(trials):
                name = identity(trial)
                if len(self.running) < self.most and name not in under_way and self.lost[name] < LIVES:
                    self._submit(trial)
            if not self.running:
                return self.results.missing(trials)
            for reference in self.ray.wait(list(self.running), num_returns=1)[0]:
                trial, claim = self.running.pop(reference)
                with claim:
                    self._take(reference, trial)
            if progress is not None:
                progress(len(trials) - len(self.results.missing(trials)))

    def _submit(self, trial: Trial) -> None:
        with ExitStack() as claim:
            if self.is_shared or claim.enter_context(self.results.claimed(trial)):
                if not self.is_shared:
                    self.results.begin(trial)
                reference = self.task.remote(self.work, trial, str(self.results.path), self.mark)
                self.running[reference] = trial, claim.pop_all()

    def _take(self, reference: Any, trial: Trial) -> None:
        """Write a result that was brought here, or down why there is none."""
        errors = self.ray.exceptions
        try:
            found = self.ray.get(reference)
        except errors.RayTaskError as error:
            self.results.fail(trial, error.cause)
        except errors.RayError as error:
            name = identity(trial)
            self.lost[name] += 1
            if self.lost[name] == LIVES:
                reason = str(error).splitlines()[0]
                self.results.fail(trial, InputError(f"lost {LIVES} times with its worker: {reason}"))
        else:
            if found is not None:
                self.results.put(trial, found)


def _computed(work: Work, trial: Trial, folder: str, mark: str) -> dict[str, Any] | None:
    """On a worker: run a trial and write its result; where the folder is not to be seen, bring it back instead."""
    if not os.path.exists(mark):
        return work(trial)
    results = ResultFolder(folder)
    while not results.is_done(trial):
        with results.claimed(trial) as mine:
            if mine:
                results.begin(trial)
                results.put(trial, work(trial))
                return None
        time.sleep(PAUSE)
    return None


def _connected() -> Any:
    """Ray, on the cluster that is there."""
    try:
        import ray  # pyright: ignore[reportMissingImports]
        import ray.exceptions  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("a sweep on a cluster needs Ray: pip install 'sigprop[ray]'") from error
    if not ray.is_initialized():
        try:
            _knock(os.environ.get("RAY_ADDRESS", ""))
            ray.init(address="auto", log_to_driver=False)
        except (OSError, RuntimeError) as error:
            reason = (str(error).splitlines() or ["no answer"])[0]
            raise InputError(f"no Ray cluster found: start one with `ray start --head` ({reason})") from error
    return ray


def _knock(address: str) -> None:
    """See that somebody answers at `host:port`: Ray itself waits for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=PATIENCE).close()
        except OSError as error:
            raise ConnectionError(f"RAY_ADDRESS is {address}: {error}") from error

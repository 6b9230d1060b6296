"""The same sweep on a Ray cluster that the user has started: `ray start`, or `ray.init()` in the program.

Workers compute, this process claims trials and writes results, so that no shared disk is needed and a second start on
the same folder neither loses nor repeats a trial.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sigprop.errors import InputError
from sigprop.lab.sweep.folder import ResultFolder
from sigprop.lab.sweep.pool import LIVES, Work
from sigprop.lab.sweep.sheet import Trial, identity
from sigprop.lab.sweep.trial import run_trial

AHEAD = 2
"""Trials on the cluster for every one of its processors."""
PATIENCE = 5.0
"""Seconds in which a cluster must answer."""


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
    results = ResultFolder(folder)
    results.start(trials)
    task = ray.remote(**{"max_retries": 0, "num_cpus": 1, **resources})(work)
    room = AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)
    running: dict[Any, tuple[Trial, ExitStack]] = {}
    lost: Counter[str] = Counter()

    def submit(trial: Trial) -> None:
        with ExitStack() as claim:
            if claim.enter_context(results.claimed(trial)):
                results.begin(trial)
                running[task.remote(trial)] = trial, claim.pop_all()

    while True:
        for trial in results.open(trials):
            if len(running) < room and lost[identity(trial)] < LIVES:
                submit(trial)
        if not running:
            return results.missing(trials)
        for reference in ray.wait(list(running), num_returns=1)[0]:
            trial, claim = running.pop(reference)
            with claim:
                _take(ray, reference, trial, results, lost)
        if progress is not None:
            progress(len(trials) - len(results.missing(trials)))


def _take(ray: Any, reference: Any, trial: Trial, results: ResultFolder, lost: Counter[str]) -> None:
    """Write a result, or down why there is none."""
    try:
        found = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        results.fail(trial, error.cause)
    except ray.exceptions.RayError as error:
        lost[identity(trial)] += 1
        if lost[identity(trial)] == LIVES:
            results.fail(trial, InputError(f"lost {LIVES} times with its worker: {str(error).splitlines()[0]}"))
    else:
        results.put(trial, found)


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

"""The same sweep on a Ray cluster that the user has started: `ray start`, or `ray.init()` in the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sigprop.errors import InputError
from sigprop.lab.sweep.folder import ResultFolder
from sigprop.lab.sweep.pool import LIVES, Work
from sigprop.lab.sweep.sheet import Trial
from sigprop.lab.sweep.trial import run_trial


def run_on_ray(
    trials: list[Trial],
    folder: str | Path,
    work: Work = run_trial,
    progress: Callable[[int], None] | None = None,
    **resources: Any,
) -> list[Trial]:
    """Run all trials that have no result; results come back here and are written here, so no shared disk is needed.

    resources: what one trial needs, as for `ray.remote` (`num_cpus=2`, `num_gpus=0.25`).
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("a sweep on a cluster needs Ray: pip install 'sigprop[ray]'") from error
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except ConnectionError as error:
            raise InputError("no Ray cluster found: start one with `ray start --head`, or call ray.init()") from error
    results = ResultFolder(folder)
    task = ray.remote(**{"max_retries": LIVES, "num_cpus": 1, **resources})(work)
    waiting = {task.remote(trial): trial for trial in results.missing(trials)}
    while waiting:
        done, _ = ray.wait(list(waiting), num_returns=1)
        for reference in done:
            trial = waiting.pop(reference)
            try:
                results.put(trial, ray.get(reference))
            except ray.exceptions.WorkerCrashedError:
                continue
        if progress is not None:
            progress(len(trials) - len(waiting))
    return results.missing(trials)

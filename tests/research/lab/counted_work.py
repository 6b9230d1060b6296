"""A trial that leaves a line in a log when it begins and ends, for tests that kill sweeps."""

import os
import sys
import time

from sigprop.research.lab.sweep import run_locally, run_on_ray
from sigprop.research.lab.sweep.spec import identity


def work(trial):
    log = trial["data"]["log"]
    _note(log, "begin", trial)
    if trial["data"].get("deadly"):
        os._exit(9)
    if trial["data"].get("wrong"):
        raise ValueError("no such recipe")
    time.sleep(trial["data"]["seconds"])
    _note(log, "end", trial)
    return {"last": float(trial["data"]["number"]), "losses": []}


def _note(log, event, trial):
    with open(log, "a") as file:
        file.write(f"{event} {identity(trial)} {os.getpid()}\n")


def trials(log, count, seconds, **more):
    return [{"data": {"number": number, "log": str(log), "seconds": seconds, **more}} for number in range(count)]


def main(folder, log, count, seconds, where):
    made = trials(log, int(count), float(seconds))
    if where == "ray":
        from tests.research.lab import counted_work

        run_on_ray(made, folder, counted_work.work)
    else:
        run_locally(made, folder, int(where), work)


if __name__ == "__main__":
    main(*sys.argv[1:])

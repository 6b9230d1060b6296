"""A trial that leaves a line in a log when it begins and ends, for tests that kill sweeps."""

import os
import sys
import time

from sigprop.lab.sweep import run_locally
from sigprop.lab.sweep.sheet import identity


def work(trial):
    log = trial["data"]["log"]
    _note(log, f"begin {identity(trial)}")
    if trial["data"].get("deadly"):
        os._exit(9)
    time.sleep(trial["data"]["seconds"])
    _note(log, f"end {identity(trial)}")
    return {"last": float(trial["data"]["number"]), "losses": []}


def _note(log, text):
    with open(log, "a") as file:
        file.write(text + "\n")


def trials(log, count, seconds, **more):
    return [{"data": {"number": number, "log": str(log), "seconds": seconds, **more}} for number in range(count)]


if __name__ == "__main__":
    folder, log, count, seconds, workers = sys.argv[1:]
    run_locally(trials(log, int(count), float(seconds)), folder, int(workers), work)

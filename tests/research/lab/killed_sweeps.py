"""Sweeps killed with kill -9 at random moments: `python -m tests.research.lab.killed_sweeps [--kills 10] [--out FILE]`.

The starter of the sweep (with all its processes) or one of its workers is killed, at random; a dead starter is started
again. Counted are results that changed or went away, trials that ran again although their result was there, and
whether the store could be read after every kill. Once with local processes, once on a Ray cluster of this machine.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

from sigprop.research.lab.sweep import ResultFolder, query

ROOT = Path(__file__).parents[3]
LONGEST = 120.0
"""Seconds without any trial beginning after which a sweep counts as stuck."""


def killed_sweep(
    folder: Path, where: str, kills: int, count: int, seconds: float, seed: int = 0, **environment
) -> dict:
    """Figures of one sweep that was killed so often and then left to end."""
    return _Killed(folder, where, count, seconds, random.Random(seed), environment).run(kills)


class _Killed:
    def __init__(self, folder, where, count, seconds, chance, environment):
        self.out, self.log, self.seconds, self.count = folder / "out", folder / "log", seconds, count
        self.command = [sys.executable, "-m", "tests.research.lab.counted_work"]
        self.command += [str(self.out), str(self.log), str(count), str(seconds), where]
        self.environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
        self.chance, self.killed = chance, Counter()
        self.kept: dict[str, str] = {}
        self.lost, self.begun_before = 0, Counter()

    def run(self, kills):
        process = self._start()
        for number in range(kills):
            if process.poll() is not None:
                break
            self._wait_for_a_trial(process)
            time.sleep(self.chance.random() * 2 * self.seconds)
            if number % 2 and self._kill_a_worker():
                self.killed["worker"] += 1
            elif process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self.killed["starter"] += 1
            self._look()
            if process.poll() is not None:
                process = self._start()
        process.wait()
        self._look()
        return self._figures()

    def _start(self):
        return subprocess.Popen(self.command, cwd=ROOT, env=self.environment, start_new_session=True)

    def _lines(self, event):
        lines = self.log.read_text().splitlines() if self.log.is_file() else []
        return [line.split()[1:] for line in lines if line.startswith(event)]

    def _wait_for_a_trial(self, process):
        before, begun = len(self._lines("begin")), time.monotonic()
        while process.poll() is None and len(self._lines("begin")) == before:
            assert time.monotonic() - begun < LONGEST, f"{self.command} is stuck"
            time.sleep(0.02)

    def _kill_a_worker(self):
        ended = {tuple(line) for line in self._lines("end")}
        for line in reversed(self._lines("begin")):
            if tuple(line) not in ended:
                with suppress(ProcessLookupError):
                    os.kill(int(line[1]), signal.SIGKILL)
                    return True
        return False

    def _look(self):
        """The store after a kill: readable, every result that was there still there and unchanged."""
        now = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.out.glob("*.json")}
        self.lost += sum(now.get(name) != was for name, was in self.kept.items())
        begun = Counter(name for name, _ in self._lines("begin"))
        for name in now.keys() - self.kept.keys():
            self.begun_before[name] = begun[name]
        self.kept = now
        if now:
            assert query(self.out, "select count(*) as n from trials")[0]["n"] == len(ResultFolder(self.out).results())

    def _figures(self):
        begun = Counter(name for name, _ in self._lines("begin"))
        ended = Counter(name for name, _ in self._lines("end"))
        return {
            "trials": self.count,
            "kills": dict(self.killed),
            "results": len(ResultFolder(self.out).results()),
            "results lost or changed": self.lost,
            "trials run again although their result was there": sum(
                begun[name] > count for name, count in self.begun_before.items()
            ),
            "trials cut short and run again": sum(begun.values()) - sum(ended.values()),
            "trials killed between their end and their file": sum(ended.values()) - len(ended),
        }


@contextmanager
def ray_cluster(processors: int = 2):
    """The address of a cluster on this machine, stopped at the end."""
    with socket.socket() as probe, tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
        command += [f"--num-cpus={processors}", "--include-dashboard=false", f"--temp-dir={folder}"]
        command += ["--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": ""}
        with open(Path(folder) / "head.log", "w") as log:
            head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            while not _answers(port):
                assert head.poll() is None, "ray start ended"
                time.sleep(0.2)
            yield f"127.0.0.1:{port}"
        finally:
            head.terminate()
            head.wait(60)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sizes = {"kills": options.kills, "count": options.trials, "seconds": options.seconds}
    command = f"python -m tests.research.lab.killed_sweeps --kills {options.kills} --trials {options.trials}"
    found = {"command": f"{command} --seconds {options.seconds}", "date": time.strftime("%Y-%m-%d"), "seed": 0}
    with tempfile.TemporaryDirectory() as folder:
        found["local"] = killed_sweep(Path(folder), "2", **sizes)
        print(json.dumps({"local": found["local"]}, indent=1), flush=True)
    try:
        import ray
    except ImportError:
        print("ray is not installed: pip install 'sigprop[ray]'")
    else:
        found["ray version"] = ray.__version__
        with tempfile.TemporaryDirectory() as folder, ray_cluster() as address:
            found["ray"] = killed_sweep(Path(folder), "ray", **sizes, RAY_ADDRESS=address)
        print(json.dumps({"ray": found["ray"]}, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

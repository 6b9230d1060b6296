"""A process that is interrupted again and again while it works, and says whether anything was left behind.

Run by `test_interrupts.py` as `python -m tests.robustness.interrupted KIND COUNT SEED FOLDER`. A timer sends the signal
SIGINT at a random moment of each call. After each call the model, the process and the files are compared with before.
"""

import json
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import sigprop as sp
from sigprop.models import build
from sigprop.monitoring.history import read_samples
from sigprop.plans.scaling import coord_check
from tests.measurement.test_untouched import fingerprint
from tests.robustness.test_threads import process_state

IDS = torch.arange(16).reshape(2, 8) % 29
SMALL = {"vocabulary": 29, "context": 8, "width": 16, "depth": 2, "heads": 2}


class Counting(nn.Module):
    """Norm statistics, dropout, a buffer that grows, a kept state, a large weight that it writes to, old gradients."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU()) for _ in range(4))
        self.dropout = nn.Dropout(0.1)
        self.large = nn.Parameter(torch.full((1500, 12), 0.1))
        self.register_buffer("seen", torch.zeros(2))
        self.state = None

    def forward(self, x):
        for layer in self.layers:
            with torch.autocast("cpu", enabled=False):
                x = self.dropout(layer(x))
        self.seen = torch.cat([self.seen, x.detach().mean(1)[:1]])
        self.state = x
        with torch.no_grad():
            self.seen = self.seen * 1.0
            self.large.mul_(1.5)
        return x * self.large[:5]


def coordinates(width):
    return build("transformer", **{**SMALL, "width": width})


def prepared(kind):
    torch.manual_seed(0)
    model = Counting() if kind.startswith("counting") else build("transformer", **SMALL)
    batch = torch.linspace(-1, 1, 60).reshape(5, 12) if kind.startswith("counting") else IDS
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model, batch


def work(kind, model, batch, folder):
    """The call that is interrupted."""
    if kind.endswith("measure"):
        sp.measure(model, batch, junctions=True, scores=True)
    elif kind.endswith("seeds"):
        sp.measure(None, batch, build=Counting, seeds=2)
    elif kind.endswith("predict"):
        sp.predict(model, batch, verify=2)
    elif kind.endswith("plan"):
        sp.plan(model, "xavier", batch=batch).to_json(folder / "plan.json")
    elif kind.endswith("apply"):
        sp.plan(model, "lecun", batch=batch).apply_(model, torch.Generator().manual_seed(0))
    elif kind.endswith("check"):
        sp.check(model, batch, prescription=kind == "check")
    elif kind.endswith("diff"):
        sp.diff(model, model, batch)  # a second one would be built from the random state that is compared
    elif kind.endswith("coordcheck"):
        coord_check(coordinates, [8, 16], batch=batch, plan=None, steps=1, seeds=1)
    elif kind.endswith("criticality"):
        sp.check_criticality(model, batch, probes=1)
    elif kind.endswith("trace"):
        sp.trace(model, batch)
    elif kind.endswith("jacobian"):
        sp.jacobian_profile(model, batch, probes=1)
    elif kind.endswith("file"):
        sp.measure(model, batch).to_json(folder / "profile.json")
    elif kind.endswith("watch"):
        watched(model, batch, folder)
    elif kind.endswith("kernels"):
        sp.kernels(perceptron, torch.linspace(-1, 1, 24).reshape(4, 6))


def watched(model, batch, folder):
    """Two sampled steps whose rate is zero: they leave every bit of the weights. Gradients are the caller's."""
    for parameter in model.parameters():
        parameter.grad = None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with sp.Watch(model, optimizer, every=1, folder=folder / "run") as watch:
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
            loss.backward()
            optimizer.step()
            watch.step(loss)


def perceptron():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def seconds(kind, model, batch, folder):
    start = time.perf_counter()
    work(kind, model, batch, folder)
    return time.perf_counter() - start


def damage(kind, model, before, process, folder):
    found = []
    if kind.endswith("apply"):
        if fingerprint(model) not in before:
            found.append("a plan applied in part")
    elif fingerprint(model) not in before:
        found.append("the model, its gradients or random states")
    if process_state() != process:
        found.append("the process")
    if torch._C._len_torch_function_stack():
        found.append("a function mode")
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        found.append("the signal handler")
    if (folder / "run").exists():
        read_samples(folder / "run")
        shutil.rmtree(folder / "run")
    for path in folder.glob("*"):
        try:
            json.loads(path.read_text())
        except ValueError:
            found.append(f"{path.name} written in part")
        if path.suffix != ".json":
            found.append(f"{path.name} left behind")
    return found


def give_back(model, gradients):
    """What the loop of a watched training has replaced."""
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient


def main(kind, count, seed, folder):
    model, batch = prepared(kind)
    drawn = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad for parameter in model.parameters()]
    torch.manual_seed(0)
    states = [fingerprint(model)]
    work(kind, model, batch, folder)  # warm, and the other state that an applied plan may leave
    give_back(model, gradients)
    states.append(fingerprint(model))
    damage(kind, model, states, process_state(), folder)  # without what that has written
    for path in folder.glob("*"):
        path.unlink()
    length = min(seconds(kind, model, batch, folder) for _ in range(3))  # on a busy machine one may be far too long
    process = process_state()
    moments = random.Random(seed)
    found, interrupted = [], 0
    for number in range(count):
        if kind.endswith("apply"):  # the same objects: a fingerprint has their identities
            model.load_state_dict(drawn)
            torch.manual_seed(0)
        delay = max(1e-6, moments.random() * length * 1.1)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                work(kind, model, batch, folder)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        give_back(model, gradients)
        for what in damage(kind, model, states, process, folder):
            found.append(f"{kind} {number}, after {delay:.6f} s: {what}")
        if found:
            break
    print(json.dumps({"interrupted": interrupted, "damage": found}))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))

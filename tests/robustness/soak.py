"""Many checks in one process: memory stays flat and nothing is left. `python -m tests.robustness.soak COUNT`."""

import gc
import json
import os
import sys
import threading

import torch
from torch import nn

import sigprop as sp
from sigprop.models import build
from tests.robustness.test_threads import IDS, IMAGES, SMALL, Convolutional, perceptron, process_state, seeded

SETTLED, FLAT, EVERY = 0.2, 1.05, 10


def megabytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def models():
    """A perceptron, a Transformer, and a convolutional network in training mode, with their batches."""
    x = torch.linspace(-1, 1, 48).reshape(4, 12)
    small = {**SMALL, "depth": 1}
    return [
        (seeded(perceptron), x),
        (seeded(lambda: build("transformer", **small)), IDS),
        (seeded(Convolutional).train(), IMAGES),
        (seeded(lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))), (x, torch.arange(4) % 3)),
    ]


def left(model):
    """Hooks, modes and gradients of a model, and what the process has open."""
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = sum(len(getattr(module, name)) for module in model.modules() for name in tables)
    gradients = sum(parameter.grad is not None for parameter in model.parameters())
    training = sum(module.training for module in model.modules())
    return hooks, gradients, training


def main(count):
    kinds = models()
    before = [left(model) for model, _ in kinds]
    memory, state, around = [], None, None
    for number in range(count):
        model, batch = kinds[number % len(kinds)]
        sp.check(model, batch, prescription=number % 100 < len(kinds))
        if number % EVERY == EVERY - 1 or number == count - 1:
            memory.append(megabytes())
        if number == len(kinds):  # what is imported by the first calls stays
            state, around = process_state(), (threading.active_count(), len(os.listdir("/proc/self/fd")))
    start = max(memory[: int(SETTLED * len(memory)) + 1])
    found = {
        "checks": count,
        "megabytes": [round(start, 1), round(max(memory), 1)],
        "flat": max(memory) <= FLAT * start,
        "process": process_state() == state,
        "models": [left(model) for model, _ in kinds] == before,
        "threads and files": (threading.active_count(), len(os.listdir("/proc/self/fd"))) == around,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))

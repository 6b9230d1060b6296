"""Trains the small model of test_trainer under torchrun: `kind folder stop`; the first rank prints its losses."""

import json
import sys

import torch
import torch.distributed as dist

from sigprop.models import build
from sigprop.research.lab import Settings, train
from sigprop.research.lab.data import TextBatches, zipf_tokens
from tests import gloo


class Stop(Exception):
    pass


def run(kind: str, folder: str, stop: int) -> list[float]:
    batches = TextBatches(zipf_tokens(2000, 20), passages=4, length=8)

    def some(step):
        if step == stop:
            raise Stop
        return batches(step)

    torch.manual_seed(0)
    model = build("transformer", kind="decoder", depth=2, width=16, heads=2, vocabulary=20, context=8)
    settings = Settings(steps=6, lr=0.01, parallel=kind, checkpoint_every=2)
    return train(model, some, settings, loss=batches.loss, folder=folder).losses


def main(kind: str, folder: str, stop: int) -> None:
    try:
        losses = run(kind, folder, stop)
    except Stop:
        return
    if dist.get_rank() == 0:
        print("LOSSES", json.dumps(losses))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    gloo.leave()

"""Trains the small model of test_trainer under torchrun: `kind folder stop`; the first rank prints its losses."""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn

from sigprop.lab import Settings, train
from sigprop.lab.data import TextBatches, zipf_tokens
from sigprop.models import build


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = build("transformer", kind="decoder", depth=2, width=16, heads=2, vocabulary=20, context=8)

    def forward(self, input_ids):
        return self.inner(input_ids)


def next_token(logits, batch):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


class Stop(Exception):
    pass


def main(kind: str, folder: str, stop: int) -> None:
    batches = TextBatches(zipf_tokens(2000, 20), passages=4, length=8)

    def some(step):
        if step == stop:
            raise Stop
        return batches(step)

    settings = Settings(steps=6, lr=0.01, parallel=kind, checkpoint_every=2)
    try:
        run = train(Named(), some, settings, loss=next_token, folder=folder)
    except Stop:
        return
    if not dist.is_initialized() or dist.get_rank() == 0:
        print("LOSSES", json.dumps(run.losses))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

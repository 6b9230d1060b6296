"""The rate of tables and zero starts, on text in tokens: `python -m studies.table_rates --text FOLDER --out FILE`.

Rules, written before the runs:
- Model: a decoder with rotary positions, query-key norm, relu squared, an untied readout and soft-capped logits; plan
  `unit` + `mup`, two layers, 300 steps of 1,024 tokens unless said, rate 2^-7 (AdamW) or 2^-6 (Muon), the last 40 % of
  the steps linear to zero, clip at 1, decay 0.1 times the hidden matrices' rate for all
  parameters. Byte-pair tokens are trained on the training text alone.
- `tables`: the table steps by the shares 1/32, 1/8, 1/2 and 2 of its rows' size. Settled by the stored runs of 256,
  1,024, 4,096 and 16,384 tokens at width 128: `AGREEMENT` in `sigprop/plans/scaling/tables.py`. Judged here, seen
  once: 512, 2,048 and 8,192 tokens; width 256; batches of 4,096. The rule passes a setting where the swept share
  nearest to the predicted one (in the logarithm) is best or within 1 % of the best loss.
- `zeros`: what starts at zero (nothing, readout, readout and branch ends), AdamW and Muon, three seeds. It becomes the
  default where the mean is lower by more than two standard errors of the paired difference.
Small runs on a CPU; the sizes and horizons of the speed-run table need a GPU (`--grid speedrun`, not run there yet).
"""

from __future__ import annotations

import argparse
import gzip
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sigprop as sp
from sigprop.plans.scaling.tables import table_step, zipf
from studies.stored import read, write

CONTEXT = 128
RATES = {"adamw": 2.0**-7, "muon:rms": 2.0**-6}


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        normed = F.rms_norm(x, (x.shape[-1],))
        split = [layer(normed).unflatten(-1, (self.heads, -1)) for layer in (self.query, self.key, self.value)]
        query, key = (F.rms_norm(rotated(each, turn), (each.shape[-1],)) for each in split[:2])
        query, key, value = (each.transpose(1, 2) for each in (query, key, split[2]))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (x.shape[-1],)))).square())


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * turn[0] + second * turn[1], second * turn[0] - first * turn[1]], -1)


class Decoder(nn.Module):
    """The architecture of the public speed-run."""

    def __init__(self, vocabulary: int, width: int, depth: int, context: int, head: int = 64):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, width // head) for _ in range(depth))
        self.readout = nn.Linear(width, vocabulary, bias=False)
        angles = torch.outer(torch.arange(context), 10000.0 ** (-torch.arange(0, head, 2) / head))[None, :, None]
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.rms_norm(self.table(ids), (self.table.embedding_dim,))
        cosine, sine = (self.get_buffer(name)[:, : ids.shape[1]] for name in ("cosine", "sine"))
        turn = cosine, sine
        for block in self.blocks:
            x = block(x, turn)
        return 15 * torch.tanh(self.readout(F.rms_norm(x, (x.shape[-1],))) / 15)


def tokens(folder: Path, cache: Path, vocabulary: int) -> dict[str, Tensor]:
    """Training and validation text as tokens; 256 are bytes."""
    kept = cache / f"tokens-{vocabulary}.pt"
    if kept.exists():
        return torch.load(kept)
    files = {part: folder / f"web-docs-{part}.txt.gz" for part in ("train", "valid")}
    text = {part: gzip.decompress(file.read_bytes()).decode() for part, file in files.items()}
    if vocabulary == 256:
        made = {part: torch.tensor(list(found[: 1 << 23].encode()), dtype=torch.int32) for part, found in text.items()}
    else:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        coder = Tokenizer(models.BPE())
        coder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        letters = pre_tokenizers.ByteLevel.alphabet()
        pieces = {part: [found[i : i + 100_000] for i in range(0, len(found), 100_000)] for part, found in text.items()}
        coder.train_from_iterator(
            pieces["train"], trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=letters, show_progress=False)
        )
        ids = {
            part: [code for each in coder.encode_batch(found) for code in each.ids] for part, found in pieces.items()
        }
        made = {part: torch.tensor(found, dtype=torch.int32) for part, found in ids.items()}
    cache.mkdir(parents=True, exist_ok=True)
    torch.save(made, kept)
    return made


def train(cell: dict[str, Any], data: dict[str, Tensor]) -> float:
    """The loss on the validation text after the cell's run."""
    torch.manual_seed(cell["seed"])
    model = Decoder(cell["vocabulary"], cell["width"], cell["depth"], CONTEXT, min(64, cell["width"] // 2))
    ids = data["train"][:CONTEXT].long()[None]
    plan = sp.plan(model, "unit", width="mup", optimizer=cell["optimizer"], batch=ids, zeros=cell["zeros"])
    plan.apply_(model, torch.Generator().manual_seed(cell["seed"]))
    rate = RATES[cell["optimizer"]]
    times = cell["step"] / rate  # rows have the size 1; rate times decay is the same for all, as in every plan
    rows = [replace(row, lr=times, weight_decay=1 / times) if row.role == "embedding" else row for row in plan]
    optimizers = replace(plan, parameters=rows).optimizers(model, rate, weight_decay=0.1)
    own = [[group["lr"] for group in each.param_groups] for each in optimizers]
    numbers, count = torch.Generator().manual_seed(1000 + cell["seed"]), cell["batch"] // CONTEXT
    for step in range(cell["steps"]):
        share = min(1.0, (cell["steps"] - step) / (0.4 * cell["steps"]))
        for each, lrs in zip(optimizers, own, strict=True):
            for group, lr in zip(each.param_groups, lrs, strict=True):
                group["lr"] = lr * share
        starts = torch.randint(0, len(data["train"]) - CONTEXT - 1, (count, 1), generator=numbers)
        batch = data["train"][starts + torch.arange(CONTEXT + 1)].long()
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in optimizers:
            each.step()
            each.zero_grad()
    with torch.no_grad():
        held = data["valid"][: 160 * (CONTEXT + 1)].long().view(-1, CONTEXT + 1)
        parts = [F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()) for x in held.split(16)]
    return float(torch.stack(parts).mean())


USUAL = {"vocabulary": 512, "width": 128, "depth": 2, "batch": 1024, "steps": 300, "seed": 0, "zeros": (),
         "optimizer": "adamw", "step": 0.5}  # fmt: skip
SHARES = (1 / 32, 1 / 8, 1 / 2, 2.0)


def cells(grid: str) -> list[dict[str, Any]]:
    """The runs of a grid."""
    if grid == "tables":
        settings = [{"vocabulary": size} for size in (512, 2048, 8192)]
        settings += [{"vocabulary": 256, "batch": 4096}, {"vocabulary": 2048, "width": 256}]
        return [USUAL | given | {"step": share} for given in settings for share in SHARES]
    if grid == "zeros":
        starts = ((), ("readout",), ("readout", "branch ends"))
        return [
            USUAL | {"optimizer": optimizer, "zeros": zeros, "seed": seed}
            for optimizer in RATES
            for seed in range(3)
            for zeros in starts
        ]
    if grid == "speedrun":
        sizes = ((4, 256), (8, 512), (12, 768), (24, 512), (36, 768))
        big = USUAL | {"vocabulary": 16384, "batch": 64 * 512, "optimizer": "muon:rms"}
        starts = ((), ("readout", "branch ends"))
        return [
            big | {"depth": depth, "width": width, "steps": steps, "zeros": zeros, "seed": seed}
            for depth, width in sizes for steps in (500, 2000) for zeros in starts for seed in range(3)
        ]  # fmt: skip
    return [USUAL | {"steps": 3}]


def predicted(cell: dict[str, Any], data: dict[str, Tensor]) -> dict[str, float]:
    """The share of the rule, from a Zipf law and from the text's own frequencies."""
    counts = torch.bincount(data["train"], minlength=cell["vocabulary"]).double()
    laws = {"zipf": zipf(cell["vocabulary"]), "counted": counts / counts.sum()}
    return {name: table_step(law, cell["batch"]) for name, law in laws.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("build/tokens"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--grid", default="smoke", choices=("smoke", "tables", "zeros", "speedrun"))
    asked = parser.parse_args()
    rows = read(asked.out, [])
    for cell in cells(asked.grid):
        if any(
            all(row[key] == (list(value) if key == "zeros" else value) for key, value in cell.items()) for row in rows
        ):
            continue
        data = tokens(asked.text, asked.cache, cell["vocabulary"])
        loss = train(cell, data)
        rows.append(
            cell | {"zeros": list(cell["zeros"]), "loss": round(loss, 4)} | {"predicted": predicted(cell, data)}
        )
        write(asked.out, rows)
        told = {key: value for key, value in cell.items() if value != USUAL[key]}
        print(told, round(loss, 4) if math.isfinite(loss) else loss, flush=True)


if __name__ == "__main__":
    main()

"""Does one prescription train well at every size? `python -m studies.prescription_training --help`.

Byte-level Hugging Face models on a text file (or ViT on a folder of Fashion-MNIST), AdamW, bf16 autocast on CUDA, clip
at 1, warm-up over the first tenth, then cosine to a tenth. One JSON line per cell: settings, first loss, mean loss of
the last tenth, milliseconds a step. On CUDA the whole step (batch, forward, backward, clipping, schedule, AdamW) is one
CUDA graph, so that the number of optimizer groups costs nothing; other optimizers step outside it. `--together` runs
of one process share the device, each on a stream of its own; `--processes` take turns on it, which only helps where
Python is what a step waits for. Without them, with `--spread`, cells run in the order given. With `--curve` a long run
that is cut leaves rows with fewer steps `done`.

A cell is `family,width,layers,scheme,rate,seed`, with the rate as a number or a power like 2^-7. `--grid` makes cells
of lists instead: `--grid "llama;128,256;4,16;default,mup,mup+linear,ours;-11:-5;0,1,2"` (rates are powers of two).
Schemes: `default` (the model's own draw, one rate), `mup` (base: width 128), `mup+linear` (base: width 128, 4 layers),
`ours` (unit with width rule mup), `unit` (no width rule), or any `recipe+width+depth`; with options: `ours:k=2`.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import math
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sigprop as sp

BASE_WIDTH, BASE_LAYERS, HEAD = 128, 4, 64
TOLD_EVERY, CURVE = 500, 50
Cell = tuple[str, int, int, str, float, int]
PLANS: dict[tuple[str, int, int, str], Any] = {}
"""The plan of each size and scheme: rates and seeds share it."""


# -- models


def build(family: str, width: int, layers: int, tokens: int) -> nn.Module:
    """A Hugging Face model of the family with heads of 64 and no dropout."""
    import transformers as hf

    hf.logging.set_verbosity_error()
    heads = max(width // HEAD, 1)
    shape: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    ends: dict[str, Any] = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
    gated = {**ends, "intermediate_size": int(8 * width / 3) // 8 * 8, "num_key_value_heads": heads, "use_cache": False}
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    gpt: dict[str, Any] = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": tokens, **ends, **still}
    quiet: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    makers: dict[str, Callable[[], nn.Module]] = {
        "llama": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**shape, **gated, max_position_embeddings=tokens, tie_word_embeddings=False)
        ),
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**gpt, use_cache=False)),
        "postln": lambda: hf.OpenAIGPTLMHeadModel(hf.OpenAIGPTConfig(**gpt)),
        "bert": lambda: hf.BertForMaskedLM(
            hf.BertConfig(
                **shape, **quiet, vocab_size=257, intermediate_size=4 * width, max_position_embeddings=tokens
            )
        ),
        "mixtral": lambda: hf.MixtralForCausalLM(
            hf.MixtralConfig(**shape, **gated, num_local_experts=4, num_experts_per_tok=2, pad_token_id=1)
        ),
        "vit": lambda: hf.ViTForImageClassification(
            hf.ViTConfig(
                **shape, **quiet, intermediate_size=4 * width, image_size=28, patch_size=4, num_channels=1,
                num_labels=10,
            )
        ),
    }  # fmt: skip
    return makers[family]()


# -- batches


class Batches:
    """All batches of a run, chosen beforehand; `take(place)` gives (inputs, targets) on the device."""

    def __init__(self, family: str, source: Path, steps: int, batch: int, tokens: int, seed: int, device: str):
        self.family = family
        generator = torch.Generator().manual_seed(1000 + seed)
        if family == "vit":
            pixels, labels = (_idx(next(source.glob(f"train-{kind}-*"))) for kind in ("images", "labels"))
            self.pixels = ((pixels.float() / 255 - 0.286) / 0.353)[:, None].to(device)
            self.labels = labels.long().to(device)
            self.starts = torch.randint(len(pixels), (steps, batch), generator=generator).to(device)
        else:
            self.text = torch.frombuffer(bytearray(_read(source)), dtype=torch.uint8).to(device)
            self.starts = torch.randint(len(self.text) - tokens - 1, (steps, batch), generator=generator).to(device)
            self.window = torch.arange(tokens, device=device)
            self.masked = (torch.rand((steps, batch, tokens), generator=generator) < 0.15).to(device)

    def take(self, place: Tensor) -> tuple[Tensor, Tensor]:
        starts = self.starts.index_select(0, place)[0]
        if self.family == "vit":
            return self.pixels[starts], self.labels[starts]
        ids = self.text[starts[:, None] + self.window].long()
        if self.family == "bert":
            masked = self.masked.index_select(0, place)[0]
            return ids.masked_fill(masked, 256), ids.masked_fill(~masked, -100)
        return ids, ids

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.family in ("vit", "bert"):
            return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())
        return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), targets[:, 1:].flatten())


def _read(path: Path, most: int = 30_000_000) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(most)


def _idx(path: Path) -> Tensor:
    raw = _read(path, 1 << 30)
    sizes = [int.from_bytes(raw[4 + 4 * place : 8 + 4 * place], "big") for place in range(raw[3])]
    return torch.frombuffer(bytearray(raw[4 + 4 * raw[3] :]), dtype=torch.uint8).reshape(sizes)


# -- schemes


def prescribe(scheme: str, model: nn.Module, family: str, layers: int, tokens: int, optimizer: str) -> Any:
    """The plan of a scheme; None for the model as it is."""
    name, _, rest = scheme.partition(":")
    options = {key: float(value) for key, value in (item.split("=") for item in rest.split(",") if item)}
    if name == "default":
        return None
    if name.startswith("mup"):
        depth = name.partition("+")[2] or "none"
        base = build(family, BASE_WIDTH, BASE_LAYERS if depth != "none" else layers, tokens)
        return sp.plan(model, "mup", base=base, depth=depth, optimizer=optimizer)
    recipe, width, depth = [*{"ours": "unit+mup"}.get(name, name).split("+"), "none", "none"][:3]
    batch: Any = (
        torch.randn(2, 1, 28, 28) if family == "vit" else {"input_ids": torch.randint(256, (1, min(tokens, 128)))}
    )
    return sp.plan(model, recipe, width=width, depth=depth, optimizer=optimizer, batch=batch, **options)


def groups_of(plan: Any, model: nn.Module, rate: float, decay: float) -> list[dict[str, Any]]:
    if plan is not None:
        return plan.param_groups(model, lr=rate, weight_decay=decay)
    return usual_groups(list(model.parameters()), rate, decay)


def usual_groups(parameters: list[nn.Parameter], rate: float, decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices decay, gains and biases do not."""
    matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
    return [{"params": matrices, "lr": rate, "weight_decay": decay}, {"params": vectors, "lr": rate, "weight_decay": 0}]


def optimizers_of(name: str, plan: Any, model: nn.Module, rate: float, decay: float) -> list[torch.optim.Optimizer]:
    """Optimizers other than AdamW: the plan's own; without a plan as people use them, at one rate for all."""
    if plan is not None:
        return plan.optimizers(model, lr=rate, weight_decay=decay)
    if name == "momentum":
        return [torch.optim.SGD(usual_groups(list(model.parameters()), rate, decay), momentum=0.9)]
    named: Any = model
    ends = [p for module in (named.get_input_embeddings(), named.get_output_embeddings()) for p in module.parameters()]
    kept = {id(p) for p in ends}
    inside = [p for p in model.parameters() if p.ndim == 2 and id(p) not in kept]
    chosen = {id(p) for p in inside}
    rest = usual_groups([p for p in model.parameters() if id(p) not in chosen], rate, decay)
    muon = torch.optim.Muon(inside, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, betas=(0.9, 0.95))]


# -- one run


class Trainer:
    """A step as a function of device tensors alone: `place` counts steps, `rates` follow the schedule.

    AdamW's update is part of the CUDA graph. Other optimizers (`others`) step outside it.
    """

    def __init__(self, model: nn.Module, batches: Batches, groups: list[dict[str, Any]], steps: int, device: str,
                 others: list[torch.optim.Optimizer] | None = None):  # fmt: skip
        self.model, self.batches, self.device = model, batches, device
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.losses = torch.zeros(steps, device=device)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        warm = max(steps // 10, 1)
        self.shape = [
            min((i + 1) / warm, 1.0) * (0.1 + 0.45 * (1 + math.cos(math.pi * i / steps))) for i in range(steps)
        ]
        self.inside = device == "cuda" and others is None
        if self.inside:
            self.schedule = torch.tensor(self.shape, device=device)
            self.peaks = torch.tensor([group["lr"] for group in groups], device=device)
            self.rates = torch.zeros_like(self.peaks)
            for place, group in enumerate(groups):
                group["lr"] = self.rates[place]
            others = [torch.optim.AdamW(groups, betas=(0.9, 0.95), capturable=True, fused=True)]
        self.optimizers = others or [torch.optim.AdamW(groups, betas=(0.9, 0.95))]
        self.groups = [(group, group["lr"]) for each in self.optimizers for group in each.param_groups]

    def gradients(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        inputs, targets = self.batches.take(self.place)
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(inputs).logits
        loss = self.batches.loss(logits, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.losses.index_copy_(0, self.place, loss.detach()[None])
        if self.inside:
            torch.mul(self.peaks, self.schedule.index_select(0, self.place), out=self.rates)
            self.optimizers[0].step()
        self.place.add_(1)

    def ready(self) -> None:
        """Capture the step as a CUDA graph, warmed up with all rates at zero; the plain step where that fails."""
        self.stream = torch.cuda.Stream() if self.device == "cuda" else None
        self.work = self._captured() if self.device == "cuda" else self.gradients

    def step(self, step: int) -> None:
        with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
            self.work()
            if not self.inside:
                for group, peak in self.groups:
                    group["lr"] = peak * self.shape[step]
                for each in self.optimizers:
                    each.step()

    def _captured(self) -> Callable[[], None]:
        """Warm-up, capture and replay happen on one stream, which no other run uses: so do cuBLAS's workspaces."""
        if self.inside:
            peaks = self.peaks.clone()
            self.peaks.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.gradients()
        torch.cuda.synchronize()
        graph: Any = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.gradients()
        except RuntimeError as error:
            print("no graph:", str(error).splitlines()[0], file=sys.stderr, flush=True)
            graph, self.stream = None, torch.cuda.Stream()
        torch.cuda.synchronize()
        if self.inside:
            for state in self.optimizers[0].state.values():
                for value in state.values():
                    value.zero_()
            self.peaks.copy_(peaks)
        self.place.zero_()
        torch.cuda.synchronize()
        return self.gradients if graph is None else graph.replay


def trainer_of(cell: Cell, args: argparse.Namespace) -> Trainer:
    family, width, layers, scheme, rate, seed = cell
    torch.manual_seed(seed)
    model = build(family, width, layers, args.tokens)
    key = (family, width, layers, scheme)
    if key not in PLANS:
        PLANS[key] = prescribe(scheme, model, family, layers, args.tokens, args.optimizer)
    plan = PLANS[key]
    torch.manual_seed(seed)
    if plan is not None:
        plan.apply_(model)
    model.to(args.device).train()
    others = None
    if args.optimizer != "adamw":
        others = optimizers_of(args.optimizer, plan, model, rate, args.decay)
    groups = groups_of(plan, model, rate, args.decay) if others is None else []
    batches = Batches(family, args.source, args.steps, args.batch, args.tokens, seed, args.device)
    trainer = Trainer(model, batches, groups, args.steps, args.device, others)
    trainer.ready()
    return trainer


def row_of(cell: Cell, trainer: Trainer, done: int, milliseconds: float, args: argparse.Namespace) -> dict[str, Any]:
    """What a run came to; `last` only when it is whole."""
    losses = trainer.losses[:done].tolist()
    tenth = max(args.steps // 10, 1)
    row = dict(zip(("family", "width", "layers", "scheme", "rate", "seed"), cell, strict=True))
    row |= {"optimizer": args.optimizer, "decay": args.decay, "steps": args.steps, "done": done}
    row |= {"batch": args.batch, "tokens": args.tokens, "first": losses[0], "groups": len(trainer.groups)}
    row |= {"parameters": sum(p.numel() for p in trainer.model.parameters()), "ms": round(milliseconds, 2)}
    if done == args.steps:
        row |= {"middle": sum(losses[done // 2 :][:tenth]) / tenth, "last": sum(losses[-tenth:]) / tenth}
    if args.curve:
        row["curve"] = [round(sum(losses[at : at + CURVE]) / CURVE, 4) for at in range(0, done - CURVE + 1, CURVE)]
    return row


def train(cells: list[Cell], args: argparse.Namespace) -> None:
    """Train cells side by side, step by step, and write a row for each."""
    trainers = {}
    for cell in cells:
        try:
            trainers[cell] = trainer_of(cell, args)
        except Exception as error:
            traceback.print_exc()
            write({"cell": cell, "error": f"{type(error).__name__}: {error}"[:300]}, args.out)
    begun = time.perf_counter()
    for step in range(args.steps):
        for trainer in trainers.values():
            trainer.step(step)
        if step + 1 == args.steps or (args.curve and (step + 1) % TOLD_EVERY == 0):
            if args.device == "cuda":
                torch.cuda.synchronize()
            took = 1000 * (time.perf_counter() - begun) / (step + 1)
            for cell, trainer in trainers.items():
                write(row_of(cell, trainer, step + 1, took, args), args.out)


def write(row: dict[str, Any], path: Path) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps({key: value for key, value in row.items() if key != "curve"}), flush=True)


# -- cells


def read_rate(text: str) -> float:
    return 2.0 ** float(text[2:]) if text.startswith("2^") else float(text)


def read_cell(text: str) -> Cell:
    family, width, layers, scheme, rate, seed = text.split(",")
    return family, int(width), int(layers), scheme, read_rate(rate), int(seed)


def read_grid(text: str) -> list[Cell]:
    families, widths, layers, schemes, powers, seeds = [part.split(",") for part in text.split(";")]
    if len(powers) == 1 and ":" in powers[0]:
        low, high = powers[0].split(":")
        powers = [str(power) for power in range(int(low), int(high) + 1)]
    made = itertools.product(families, map(int, layers), map(int, widths), schemes, powers, map(int, seeds))
    return [(f, w, n, scheme, 2.0 ** float(power), seed) for f, n, w, scheme, power, seed in made]


def cost(cell: Cell) -> float:
    return cell[2] * cell[1] ** 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="text file (may be .gz), or folder of Fashion-MNIST for vit")
    parser.add_argument("--cells", nargs="*", default=[], help="family,width,layers,scheme,rate,seed")
    parser.add_argument("--grid", action="append", default=[], help="families;widths;layers;schemes;powers;seeds")
    parser.add_argument("--out", type=Path, default=Path("prescription_training.jsonl"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "momentum", "muon:rms"))
    parser.add_argument("--spread", action="store_true", help="share out single runs instead of sizes: for long runs")
    parser.add_argument("--curve", action="store_true", help="keep means over 50 steps")
    parser.add_argument("--together", type=int, default=1, help="runs that share the device, on streams of their own")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--part", type=int, default=None, help="run every PROCESSES-th cell from this one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    cells = [read_cell(text) for text in args.cells] + [cell for text in args.grid for cell in read_grid(text)]
    cells = list(dict.fromkeys(cells))
    if args.processes > 1:
        cells.sort(key=cost, reverse=True)
    if args.part is None and args.processes > 1:
        command = [sys.executable, "-m", "studies.prescription_training", *sys.argv[1:], "--part"]
        parts = [subprocess.Popen([*command, str(part)]) for part in range(args.processes)]
        sys.exit(max(part.wait() for part in parts))
    keys = [cell if args.spread else cell[:4] for cell in cells]
    mine = list(dict.fromkeys(keys))[args.part or 0 :: args.processes]
    cells = [cell for key in mine for cell in cells if cell[: len(key)] == key]
    for start in range(0, len(cells), args.together):
        train(cells[start : start + args.together], args)
        if args.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

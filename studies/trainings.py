"""Trainings that claims are judged by: all learning rates and seeds of one method as one batched program."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.models import build
from sigprop.plans import Plan
from sigprop.plans.scaling import plan as prescribe
from sigprop.research.lab import Settings
from sigprop.research.lab.data import (
    Causal,
    ImageBatches,
    Masked,
    Restored,
    Spans,
    TextBatches,
    labelled_idx,
    tokens_of,
    trained_bpe,
)
from sigprop.research.lab.many import train_many
from sigprop.research.lab.trainer import Run
from sigprop.results import Init
from studies.reproduction import Setting, mean_and_spread

LETTERS = 3.3
"""A loss above this is no more than how frequent letters are: nothing was learned, and nothing can be compared."""
KEPT = 60
"""Points of a stored loss curve."""
BYTES, SENTINELS = 256, 32
SPANNED = BYTES + SENTINELS + 1
"""Bytes, marks of spans and the token before an answer."""
TOGETHER = 1_000_000_000
"""Parameters that are trained as one program."""
Cell = tuple[float, int]
"""A learning rate and a seed."""


def settings_on(device: str, steps: int, **options: Any) -> Settings:
    """A CUDA graph with products in bfloat16 on a GPU, plain float32 elsewhere."""
    fast = {"mode": "graph", "precision": "bfloat16"} if device == "cuda" else {}
    return Settings(steps=steps, device=device, **{**fast, **options})


def trained(
    network: Callable[[int], nn.Module],
    cells: Sequence[Cell],
    batches: Any,
    settings: Settings,
    plan: Plan | None = None,
    look: Callable[[nn.Module, Run], dict[str, Any]] = lambda model, run: {},
    validation: Any = None,
) -> list[dict[str, Any]]:
    """One row for each rate and seed; a loss that is not finite is None. `look`: what else is stored of a run."""
    size = sum(parameter.numel() for parameter in network(cells[0][1]).parameters())
    together, rows = max(TOGETHER // size, 1), []
    for start in range(0, len(cells), together):
        chunk = cells[start : start + together]
        models = [network(seed) for _, seed in chunk]
        runs = train_many(models, batches, [rate for rate, _ in chunk], settings, plan=plan, validation=validation)
        for (rate, seed), run, model in zip(chunk, runs, models, strict=True):
            row = {"rate": rate, "seed": seed, "last": _finite(run.last)}
            if validation is not None:
                row["held_out"] = _finite(run.evaluations[settings.steps - 1])
            rows.append(row | look(model, run))
    return rows


def cells_of(powers: Sequence[int], seeds: Sequence[int]) -> list[Cell]:
    return [(2.0**power, seed) for power in powers for seed in seeds]


@dataclass(frozen=True)
class Best:
    """The rate with the lowest mean loss over seeds; runs that broke count as infinite.

    Where some rates have more seeds than others, only the former are compared: one seed more is one chance more.
    """

    rate: float
    losses: list[float]

    @property
    def mean(self) -> float:
        return mean_and_spread(self.losses)[0]


def best_of(found: dict[str, Any]) -> Best:
    """Of one method: by held-out loss where the run has it."""
    by_rate: dict[float, list[float]] = {}
    for run in found["runs"]:
        loss = run.get("held_out", run["last"])
        by_rate.setdefault(run["rate"], []).append(math.inf if loss is None else loss)
    seeds = max(map(len, by_rate.values()))
    tried = [Best(rate, losses) for rate, losses in by_rate.items() if len(losses) == seeds]
    return min(tried, key=lambda best: best.mean)


def accuracies(item: dict[str, Any]) -> tuple[float, list[float]]:
    """The rate with the highest mean accuracy over seeds, and its accuracies."""
    by_rate: dict[float, list[float]] = {}
    for run in item["runs"]:
        by_rate.setdefault(run["rate"], []).append(run["accuracy"])
    rate = max(sorted(by_rate), key=lambda rate: mean_and_spread(by_rate[rate])[0])
    return rate, by_rate[rate]


# -- Transformers on text


@dataclass(frozen=True)
class Method:
    """One way to build and initialize a Transformer; `label` names it in tables.

    `scales`: of skip and branch, built into the network. `options`: of the recipe, by name. `table`: std of the
    embeddings in place of the recipe's.
    """

    label: str
    recipe: str
    placement: str
    depth: int
    width: int
    surgery: bool = False
    scales: tuple[float, float] = (1.0, 1.0)
    options: tuple[tuple[str, Any], ...] = ()
    table: float | None = None


PER_HEAD = (("per", "head"),)
"""The paper's Xavier: queries, keys and values by their head's width."""


@dataclass(frozen=True)
class Program:
    """What all methods of a study share. `objective`: bytes read causally, masked pieces, or restored spans."""

    powers: tuple[int, ...]
    seeds: tuple[int, ...]
    passages: int
    length: int
    steps: int
    warmup: float | int = 0.1
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.95)
    decay: str = "cosine"
    final: float = 0.1
    dropout: float = 0.0
    objective: str = "causal"
    vocabulary: int = BYTES
    head: int = 64

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(2.0**power for power in self.powers)

    def batches(self, setting: Setting, held_out: bool = False) -> TextBatches:
        """Of nine tenths of the text, or of the tenth that is held out where the objective has one."""
        tokens, objective = _tokens(setting.text(), self.objective, self.vocabulary)
        if self.objective == "masked":
            cut = len(tokens) * 9 // 10
            tokens = tokens[cut:] if held_out else tokens[:cut]
        return TextBatches(tokens, self.passages, self.length, objective=objective)

    def network(self, method: Method, seed: int) -> nn.Module:
        kind = {"causal": "decoder", "masked": "encoder", "spans": "encoder_decoder"}[self.objective]
        torch.manual_seed(seed)
        return build(
            "transformer", kind=kind, norm_placement=method.placement, depth=method.depth, width=method.width,
            heads=max(method.width // self.head, 1), context=self.length, activation="relu", dropout=self.dropout,
            vocabulary={"spans": SPANNED}.get(self.objective, self.vocabulary),
            skip_scale=method.scales[0], branch_scale=method.scales[1],
        )  # fmt: skip

    def plan(self, method: Method, batches: TextBatches) -> Plan:
        example = {key: value[:1] for key, value in batches(0).items() if key != "labels"}
        given: Any = example if len(example) > 1 else next(iter(example.values()))
        options: dict[str, Any] = {"surgery": method.surgery, **dict(method.options)}
        plan = prescribe(self.network(method, 0), method.recipe, batch=given, **options)
        if method.table is None:
            return plan
        rows = [
            replace(row, init=Init("normal", std=method.table)) if row.role in ("embedding", "positional") else row
            for row in plan
        ]
        return replace(plan, parameters=rows)

    def train(
        self,
        method: Method,
        setting: Setting,
        cells: Sequence[Cell] = (),
        look: Callable[[nn.Module, Run], dict[str, Any]] = lambda model, run: {},
        name: str = "",
    ) -> dict[str, Any]:
        """Losses of every rate and seed, or of the `cells` given; `name` of the part, where not the method's."""
        chosen = list(cells) or cells_of(self.powers, self.seeds)
        return setting.part(name or method.label, self._trained, method, chosen, setting, look)

    def search(self, method: Method, setting: Setting, **options: Any) -> dict[str, Any]:
        """The same, with two and four times the highest rate where that one is the best and learns, twice at most."""
        found = self.train(method, setting, **options)
        for _ in range(2):
            best, highest = best_of(found), max(run["rate"] for run in found["runs"])
            if best.rate < highest or best.mean > LETTERS:
                break
            cells = [(factor * highest, seed) for factor in (2, 4) for seed in self.seeds]
            found["runs"] += self.train(method, setting, cells, name=f"{method.label}, above {highest:.3g}", **options)[
                "runs"
            ]
        return found

    def _trained(self, method: Method, cells: list[Cell], setting: Setting, look: Any) -> dict[str, Any]:
        started, batches = time.perf_counter(), self.batches(setting)
        plan = self.plan(method, batches)
        options = {name: getattr(self, name) for name in ("warmup", "clip", "betas", "decay", "final")}
        settings = settings_on(setting.device, self.steps, weight_decay=0.01, **options)
        stride = max(self.steps // KEPT, 1)

        def network(seed: int) -> nn.Module:
            return plan.apply_(self.network(method, seed), torch.Generator().manual_seed(seed))

        def seen(model: nn.Module, run: Run) -> dict[str, Any]:
            curve = [_finite(value, 3) for value in run.losses[::stride]]
            return {"ended": run.ended, "curve": curve} | look(model, run)

        held = self.batches(setting, held_out=True) if self.objective == "masked" else None
        rows = trained(network, cells, batches, settings, plan, seen, held)
        named = self.network(method, 0).named_parameters()
        return {
            "label": method.label,
            "placement": method.placement,
            "layers": method.depth,
            "width": method.width,
            "parameters": sum(value.numel() for name, value in named if "embedding" not in name),
            "trained_s": round(time.perf_counter() - started, 1),
            "runs": rows,
        }

    def described(self, setting: Setting) -> dict[str, Any]:
        shared = {name: getattr(self, name) for name in ("steps", "warmup", "clip", "betas", "dropout", "seeds")}
        read = {"text": setting.text_name, "tokens": self.passages * self.length * self.steps}
        return {**read, **shared, "batch": [self.passages, self.length], "rates": self.rates}

    def record(self, methods: Sequence[Method], setting: Setting, **options: Any) -> dict[str, Any]:
        """Every method searched, with what they share."""
        found = [self.search(method, setting, **options) for method in methods]
        return {**self.described(setting), "methods": found}


@functools.lru_cache(maxsize=2)
def _tokens(text: str, objective: str, vocabulary: int) -> tuple[Tensor, Any]:
    if objective == "causal":
        return tokens_of(text), Causal()
    if objective == "spans":
        return tokens_of(text), Restored(Spans(SPANNED - 2, share=0.3), SPANNED - 1)
    if vocabulary == BYTES:
        return tokens_of(text), Masked(0, BYTES)
    coder = trained_bpe([text], vocabulary, ["[MASK]"])
    return tokens_of(text, coder), Masked(coder.token_to_id("[MASK]"), vocabulary)


def read_told(data: dict[str, Any]) -> str:
    """How much text a run read, and for each parameter."""
    count, parameters = data["tokens"], [item["parameters"] for item in data["methods"] if "parameters" in item]
    told = f"{count / 1e6:.1f} million tokens" if count >= 1e6 else f"{count / 1e3:.0f} thousand tokens"
    return f"{told}, {count / max(parameters):.2g} for each parameter" if parameters else told


def _finite(value: float, digits: int = 5) -> float | None:
    return round(value, digits) if math.isfinite(value) else None


# -- networks on Fashion-MNIST

COUNTED = 10_000
"""Images of the training set that an accuracy over a plane of settings is taken over."""
TRAINED = 0.6
"""Training accuracy from which a point counts as trained; chance is 0.1."""


def images_of(setting: Setting, batch: int, count: int | None = None) -> tuple[ImageBatches, tuple[Tensor, Tensor]]:
    """Training batches and the test set of Fashion-MNIST, on the device."""
    folder = setting.folder("fashion-mnist")
    images, labels = (values.to(setting.device) for values in labelled_idx(folder, count=count))
    tests, truths = (values.to(setting.device) for values in labelled_idx(folder, "t10k"))
    return ImageBatches(images, labels, batch), (tests, truths)


@torch.no_grad()
def accuracy_of(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    parts = zip(images.split(1000), labels.split(1000), strict=True)
    return float(sum((model(part).argmax(-1) == truth).sum() for part, truth in parts)) / len(labels)


def best_trained(
    network: Callable[[Any], nn.Module],
    points: Sequence[Any],
    rates: Sequence[float],
    batches: ImageBatches,
    settings: Settings,
    probe: int,
    together: int,
    seeds: Sequence[int] = (0,),
) -> dict[str, Any]:
    """Every rate at every point for `probe` steps; the best one of each point trained anew; mean accuracies."""

    def runs(cells: list[Any], steps: int) -> list[tuple[nn.Module, float]]:
        torch.set_float32_matmul_precision("high")
        found = []
        for start in range(0, len(cells), together):
            made = []
            for point, seed, _ in (chunk := cells[start : start + together]):
                torch.manual_seed(seed)
                with torch.device(settings.device):
                    made.append(network(point))
            trainings = train_many(made, batches, [rate for *_, rate in chunk], replace(settings, steps=steps))
            found += [(model, run.last) for model, run in zip(made, trainings, strict=True)]
        return found

    started = time.perf_counter()
    tried = [(point, seeds[0], rate) for point in points for rate in rates]
    losses = [loss for _, loss in runs(tried, probe)]
    rows = [losses[start : start + len(rates)] for start in range(0, len(losses), len(rates))]
    best = [min(reversed(range(len(rates))), key=row.__getitem__) for row in rows]
    ends = runs(
        [(point, seed, rates[place]) for point, place in zip(points, best, strict=True) for seed in seeds],
        settings.steps,
    )
    images, labels = batches.images[:COUNTED], batches.labels[:COUNTED]
    accuracy = [accuracy_of(model, images, labels) for model, _ in ends]
    return {
        "rate": [rates[place] for place in best],
        "accuracy": [round(value, 4) for value in _over(seeds, accuracy)],
        "loss": [_finite(value, 4) for value in _over(seeds, [loss for _, loss in ends])],
        "seconds": round(time.perf_counter() - started, 1),
    }


def _over(seeds: Sequence[int], values: Sequence[float]) -> list[float]:
    """Means of runs that lie seed by seed."""
    return [sum(values[at : at + len(seeds)]) / len(seeds) for at in range(0, len(values), len(seeds))]

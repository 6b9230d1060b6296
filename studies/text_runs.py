"""Decoders on English text, all learning rates and seeds of one method trained as one batched program."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sigprop.api import plan as prescribe
from sigprop.models import build
from sigprop.plans import Plan
from sigprop.research.lab.data import TextBatches, tokens_of
from sigprop.research.lab.many import train_many
from studies.rate_runs import Cell, best_of, rows_of, settings_on
from studies.reproduction import Setting

LETTERS = 3.3
"""A loss above this is no more than how frequent letters are: nothing was learned, and nothing can be compared."""
KEPT = 60
"""Points of a stored loss curve."""


@dataclass(frozen=True)
class Method:
    """One way to build and initialize a decoder; `label` names it in tables.

    `scales`: of skip and branch, built into the network. `options`: of the recipe, by name.
    """

    label: str
    recipe: str
    placement: str
    depth: int
    width: int
    surgery: bool = False
    scales: tuple[float, float] = (1.0, 1.0)
    options: tuple[tuple[str, Any], ...] = ()

    def network(self, seed: int, context: int) -> nn.Module:
        torch.manual_seed(seed)
        return build(
            "transformer", kind="decoder", norm_placement=self.placement, depth=self.depth, width=self.width,
            heads=max(self.width // 64, 1), context=context, activation="relu", skip_scale=self.scales[0],
            branch_scale=self.scales[1],
        )  # fmt: skip

    def drawn(self, seed: int, batches: TextBatches) -> nn.Module:
        """The network as the recipe draws it."""
        model = self.network(seed, batches.length)
        self.plan(batches).apply_(model, torch.Generator().manual_seed(seed))
        return model

    def plan(self, batches: TextBatches) -> Plan:
        if self not in _PLANS:
            network, batch = self.network(0, batches.length), batches(0)["input_ids"][:1]
            _PLANS[self] = prescribe(network, self.recipe, batch=batch, surgery=self.surgery, **dict(self.options))
        return _PLANS[self]


_PLANS: dict[Method, Plan] = {}


@dataclass(frozen=True)
class Program:
    """What all methods of a study share."""

    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    passages: int
    length: int
    steps: int
    warmup: float = 0.1
    clip: float = 1.0

    def batches(self, setting: Setting) -> TextBatches:
        return TextBatches(tokens_of(setting.text()), self.passages, self.length)

    def train(
        self,
        method: Method,
        batches: TextBatches,
        setting: Setting,
        cells: Sequence[Cell] = (),
        look: Callable[[nn.Module], dict[str, Any]] | None = None,
        name: str = "",
    ) -> dict[str, Any]:
        """Losses of every rate and seed, or of the `cells` (rate, seed) given; a run that broke has none.

        look: what else is stored of every trained network, under `seen`. name: of the part, where not the method's.
        """
        name = name or method.label
        chosen = list(cells) or [(rate, seed) for rate in self.rates for seed in self.seeds]
        found = setting.part(name, lambda: self._trained(method, chosen, batches, setting.device, look))
        best = best_of(found)
        print(f"{name}: best rate {best.rate:.3g}, loss {best.losses}, {found['trained_s']} s", flush=True)
        return found

    def search(self, method: Method, batches: TextBatches, setting: Setting, **options: Any) -> dict[str, Any]:
        """The same, with two and four times the highest rate where that one is the best and learns, twice at most."""
        found = self.train(method, batches, setting, **options)
        for _ in range(2):
            best, highest = best_of(found), max(run["rate"] for run in found["runs"])
            if best.rate < highest or best.mean > LETTERS:
                break
            cells = [(factor * highest, seed) for factor in (2, 4) for seed in self.seeds]
            name = f"{method.label}, above {highest:.3g}"
            found["runs"] += self.train(method, batches, setting, cells, name=name, **options)["runs"]
        return found

    def _trained(
        self,
        method: Method,
        cells: list[Cell],
        batches: TextBatches,
        device: str,
        look: Callable[[nn.Module], dict[str, Any]] | None,
    ) -> dict[str, Any]:
        started = time.perf_counter()
        plan = method.plan(batches)
        models = [method.drawn(seed, batches) for _, seed in cells]
        settings = settings_on(device, self.steps, warmup=self.warmup, clip=self.clip, weight_decay=0.01)
        ready = time.perf_counter()
        runs = train_many(models, batches, [rate for rate, _ in cells], settings, plan=plan)
        stride = max(self.steps // KEPT, 1)
        return {
            "label": method.label,
            "placement": method.placement,
            "layers": method.depth,
            "width": method.width,
            "parameters": sum(p.numel() for name, p in models[0].named_parameters() if "embedding" not in name),
            "prepared_s": round(ready - started, 1),
            "trained_s": round(time.perf_counter() - ready, 1),
            "runs": [
                row
                | {"ended": run.ended, "curve": _rounded(run.losses[::stride])}
                | ({} if look is None else {"seen": look(model)})
                for row, run, model in zip(rows_of(cells, runs), runs, models, strict=True)
            ],
        }

    def described(self, setting: Setting) -> dict[str, Any]:
        return {
            "text": setting.text_name,
            "tokens": self.passages * self.length * self.steps,
            "steps": self.steps,
            "batch": [self.passages, self.length],
            "warmup": self.warmup,
            "clip": self.clip,
            "rates": self.rates,
            "seeds": self.seeds,
        }

    def record(self, methods: list[Method], setting: Setting) -> dict[str, Any]:
        """Every method searched, with what they share."""
        batches = self.batches(setting)
        found = [self.search(method, batches, setting) for method in methods]
        return {**self.described(setting), "methods": found}


def bytes_told(count: int) -> str:
    """Of text that was read."""
    return f"{count / 1e6:.1f} million bytes" if count >= 1e6 else f"{count / 1e3:.0f} thousand bytes"


def _rounded(values: list[float]) -> list[float | None]:
    return [round(value, 3) if math.isfinite(value) else None for value in values]

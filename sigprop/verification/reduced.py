"""Models that are too large to be run: the same blocks at fewer layers and a smaller width are verified instead.

Theory and the real small model are compared row by row. What is disputed there is not to be trusted at full size: rows
of the same place, whatever the number of their layer, become `assumed` and show both small numbers. What agrees says so
in its reason and keeps theory's status, since only the small model was run.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sigprop.capture import predict as predict_by_theory
from sigprop.distributions import build
from sigprop.errors import UnsupportedError
from sigprop.inputs import made_up_batch
from sigprop.losses import LossChoice
from sigprop.results import Profile
from sigprop.verification import Simulation, verified

LAYERS, HEADS, WORDS, POSITIONS, EXPERTS = 2, 4, 1024, 128, 8
NARROWEST, MULTIPLE = 64, 16
LAYER_COUNTS = re.compile(r"^(num_(hidden_|encoder_|decoder_)?layers|n_layers?|(en|de)coder_layers)$")
LAYER_KINDS = ("layer_types", "layers_block_type", "mlp_layer_types", "block_types")
WIDTHS = re.compile(
    r"hidden_size|intermediate_size|hidden_dim|ffn_dim|d_model|d_ff|d_inner|n_inner|n_embd|embed_dim|embedding_size|rank$|^dim$"
)
HEAD_COUNTS = re.compile(r"heads$|^n_head$")
MAIN_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
TOKEN_IDS = re.compile(r"_token_id$|_token_index$")


@dataclass(frozen=True)
class Smaller:
    """A function that builds the small model, and what was changed, in words."""

    build: Callable[[], nn.Module]
    what: str


def smaller(model: nn.Module) -> Smaller:
    """The class of a model with a small config."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise UnsupportedError(
            f"{type(model).__name__} has no config that tells how to build it smaller. Predict the same code with "
            "fewer layers and a smaller width"
        )
    made = _changed(copy.deepcopy(config), 1.0)
    made.dtype = torch.float32
    kind: Any = type(model)
    training = model.training

    def build() -> nn.Module:
        return kind(copy.deepcopy(made)).train(training)

    return Smaller(build, _in_words(config, made))


def _changed(config: Any, factor: float) -> Any:
    settings = config.to_dict()
    heads = next((settings[key] for key in MAIN_HEADS if isinstance(settings.get(key), int)), 0)
    factor = max(heads / HEADS, 1.0) if heads else factor
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            _changed(getattr(config, name), factor)
    for key, value in _new_settings(settings, factor).items():
        with suppress(Exception):  # a setting that a config derives from others
            setattr(config, key, value)
    return config


def _new_settings(settings: dict[str, Any], factor: float) -> dict[str, Any]:
    kinds = [value for key, value in settings.items() if key in LAYER_KINDS and isinstance(value, list)]
    kept = _one_of_each(kinds[0]) if kinds else list(range(LAYERS))
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, list) and kinds and len(value) == len(kinds[0]):
            found[key] = [value[layer] for layer in kept]
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if LAYER_COUNTS.search(key):
            found[key] = min(value, len(kept))
        elif HEAD_COUNTS.search(key):
            found[key] = max(1, int(value / factor))
        elif "vocab" in key:
            found[key] = min(value, WORDS)
        elif key in ("max_position_embeddings", "n_positions"):
            found[key] = min(value, POSITIONS)
        elif "expert" in key and "per_tok" not in key and value > EXPERTS and not WIDTHS.search(key):
            found[key] = EXPERTS
        elif TOKEN_IDS.search(key) and value >= WORDS:
            found[key] = 0
        elif WIDTHS.search(key) and value > NARROWEST:
            found[key] = max(NARROWEST, MULTIPLE * round(value / factor / MULTIPLE))
    return found


def _one_of_each(kinds: list[Any]) -> list[int]:
    first = [number for number, kind in enumerate(kinds) if kind not in kinds[:number]]
    others = [number for number in range(len(kinds)) if number not in first]
    return sorted(first + others[: max(0, LAYERS - len(first))])


def _in_words(before: Any, after: Any) -> str:
    old, new = before.to_dict(), after.to_dict()
    changed = [
        f"{key} {new[key]} for {old[key]}"
        for key in new
        if isinstance(new[key], int) and new[key] != old.get(key) and (LAYER_COUNTS.search(key) or WIDTHS.search(key))
    ]
    return ", ".join(changed) or "fewer words"


TOKENS = 32
NUMBER = re.compile(r"\.\d+(?=\.|$)")
WORSE = {"disputed": 2, "simulated": 1, "verified": 0}


def verified_at_reduced_size(found: Profile, model: nn.Module, loss: LossChoice, seed: int, most: int) -> Profile:
    """The profile of a large model with what a small one of the same code says of its rows."""
    made = smaller(model)
    small = build(made.build)
    batch = made_up_batch(small, TOKENS)
    judged = verified(predict_by_theory(small, batch, loss=loss, seed=seed), Simulation(small, batch, loss, seed), most)
    note = judged.meta["verification"]
    for rows, judgements in ((found.sites, judged.sites), (found.parameters, judged.parameters)):
        _carry(rows, _by_place(judgements), made.what)
    found.meta["verification"] = {"reduced size": made.what, "batch": f"random, {TOKENS} tokens", **_mapping(note)}
    return found


def _mapping(note: Any) -> dict[str, Any]:
    return note if isinstance(note, dict) else {"note": note}


def _by_place(rows: list[Any]) -> dict[str, list[Any]]:
    found = defaultdict(list)
    for row in rows:
        found[NUMBER.sub(".*", row.name)].append(row)
    return found


def _carry(rows: list[Any], judgements: dict[str, list[Any]], what: str) -> None:
    for row in rows:
        judged = judgements.get(NUMBER.sub(".*", row.name), [])
        if not judged:
            continue
        worst = max(judged, key=lambda item: WORSE.get(item.status, -1))
        if worst.status == "disputed":
            row.status, row.reason = "assumed", f"disputed at reduced size ({what}): {worst.name}: {worst.reason}"
            row.stated_errors.clear()
        elif all(item.status == "verified" for item in judged):
            row.reason = "; ".join(filter(None, (row.reason, "verified at reduced size")))

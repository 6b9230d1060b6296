"""A run on disk: one safetensors file that holds tensors and, as its metadata, everything else. Written atomically."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sigprop.errors import InputError
from sigprop.results.files import write_whole

FORMAT = 1


def save_run(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer], facts: dict[str, Any]) -> None:
    """Parameters, buffers, the optimizers' states, random states and facts (step, losses, settings)."""
    tensors = {f"model.{name}": value for name, value in _tensors_of(model).items()}
    scalars: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers):
        for place, state in optimizer.state_dict()["state"].items():
            for key, value in state.items():
                name = f"optimizer.{number}.{place}.{key}"
                if isinstance(value, Tensor):
                    tensors[name] = value
                else:
                    scalars[name] = value
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    metadata = {"sigprop": json.dumps({"format": FORMAT, "facts": facts, "scalars": scalars})}
    kept = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    write_whole(path, save(kept, metadata))


def load_run(path: Path, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> dict[str, Any]:
    """Put everything back where it was; returns the facts."""
    header, tensors = _read(path)
    own = _tensors_of(model)
    saved = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    if missing := sorted(set(own) ^ set(saved)):
        raise InputError(f"{path} is of another model: {missing[0]!r} is not in both")
    with torch.no_grad():
        for name, value in own.items():
            if value.shape != saved[name].shape:
                shapes = f"{tuple(saved[name].shape)} there, {tuple(value.shape)} here"
                raise InputError(f"{path} is of another model: {name} is {shapes}")
            value.copy_(saved[name])
    for number, optimizer in enumerate(optimizers):
        state = _state(number, tensors, header["scalars"])
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return header["facts"]


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, shared ones once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _state(number: int, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **scalars}.items():
        if name.startswith(f"optimizer.{number}."):
            _, _, place, key = name.split(".", 3)
            state.setdefault(int(place), {})[key] = value
    return state


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a checkpoint that can be read: {error}") from error
    header = json.loads(metadata.get("sigprop", "{}"))
    if header.get("format") != FORMAT:
        raise InputError(f"{path} has format {header.get('format')!r}: this version reads {FORMAT}")
    return header, tensors

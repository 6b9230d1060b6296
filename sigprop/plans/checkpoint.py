"""A model's weights with the digest of the plan they were made by, in the metadata of a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_model
from torch import Tensor, nn

from sigprop.errors import InputError
from sigprop.plans.application import attached
from sigprop.sites import plain_name, unwrap

if TYPE_CHECKING:
    from sigprop.plans.plan import Plan

KEY = "sigprop_plan"


def save_weights(plan: Plan, model: nn.Module, path: str | Path) -> None:
    save_model(unwrap(model), str(path), metadata={KEY: plan.digest, "format": "pt"})


def load_weights(plan: Plan, model: nn.Module, path: str | Path) -> nn.Module:
    """Attach the plan and load the file, all of it or nothing; a file of another plan is refused."""
    metadata, values = _read(Path(path))
    found = metadata.get(KEY)
    if found != plan.digest:
        told = f"was saved with plan {found}" if found else "carries no plan"
        raise InputError(f"{path} {told}, this is plan {plan.digest}: load it with the plan it was saved with")
    with attached(plan, model) as saved:
        state = unwrap(model).state_dict(keep_vars=True)
        _require_fit(state, values, path)
        for name, value in values.items():
            saved.write(state[name], value)
    return model


def learned_values(source: str | Path | Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    """The values of learned scales, from a state dict, a file of safetensors, or a folder of such files."""
    if isinstance(source, Mapping):
        found = dict(source)
    else:
        folder = Path(source)
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
        found = {name: value for file in files for name, value in _read(file, names)[1].items()}
    found = {plain_name(name): value for name, value in found.items() if plain_name(name) in names}
    lacking = sorted(names - set(found))
    if lacking:
        raise InputError(
            f"the weights given hold no {', '.join(lacking[:4])}: these scales were learned; give the file"
        )
    return found


def _read(path: Path, names: set[str] | None = None) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a file (those of some names), or what is wrong with it."""
    try:
        with safe_open(str(path), framework="pt") as file:
            keys = [key for key in file.keys() if names is None or plain_name(key) in names]  # noqa: SIM118
            return dict(file.metadata() or {}), {key: file.get_tensor(key) for key in keys}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read as safetensors ({error}): save the weights again") from error


def _require_fit(state: Mapping[str, Any], values: Mapping[str, Tensor], path: str | Path) -> None:
    """Every tensor of the model has a value of its shape, under one of its names."""
    places = {(each.data_ptr(), each.shape) for name, each in state.items() if name in values and _is_real(each)}
    lacking = [n for n, each in state.items() if n not in values and (each.data_ptr(), each.shape) not in places]
    more = [name for name in values if name not in state]
    shapes = [name for name, value in values.items() if name in state and value.shape != state[name].shape]
    told = [f"no value for {', '.join(lacking[:4])}"] * bool(lacking)
    told += [f"another shape at {', '.join(shapes[:4])}"] * bool(shapes)
    told += [f"names that the model lacks: {', '.join(more[:4])}"] * bool(more)
    if told:
        raise InputError(f"{path} does not fit the model: {'; '.join(told)}. Nothing was loaded")


def _is_real(tensor: Tensor) -> bool:
    return not tensor.is_meta

"""The two sides of a comparison: a model in this process, or built by another interpreter or another version."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sigprop.checks.diff import elsewhere
from sigprop.checks.diff.matching import HeldParameter, entries_of
from sigprop.distributions.independence import constructed
from sigprop.errors import InputError, UnsupportedError
from sigprop.inputs import builder_of, open_source

TOKENS = 32
PATIENCE = 1200
"""Seconds that another interpreter, or pip, may take."""


@dataclass
class Side:
    """One initialization: its parameters, and the model itself where it lives in this process."""

    name: str
    entries: list[HeldParameter]
    buffers: dict[str, Tensor]
    model: nn.Module | None = None
    factory: Callable[[], nn.Module] | None = None
    moments: dict[str, list[float]] | None = None
    batch: Any = None
    loss: Any = None
    versions: dict[str, str] = field(default_factory=dict)
    not_run: str = ""


def here(what: Any, settings: dict[str, Any] | None, seed: int, meta: bool, name: str) -> Side:
    """A module as it is, or what a factory, a config, a path or a reference name makes."""
    batch = loss = factory = None
    if isinstance(what, nn.Module):
        if meta:
            raise InputError("meta: needs a function, class, config or file that builds the model, not a module")
        model = what
        if any(parameter.is_meta for parameter in model.parameters()):
            raise InputError(f"{name} is on the meta device: give the function that builds it, with meta=True")
    else:
        if isinstance(what, str):
            source = open_source(what, settings or {}, batch=1, tokens=TOKENS)
            if meta and source.fixed:
                raise InputError(f"meta: {what} has its weights already; needs a function, class or config that builds")
            make, batch, loss = source.build, source.batch, source.loss
        else:
            make = builder_of(what)
        factory = (lambda: elsewhere.filled_in(make)) if meta else make
        model = constructed(factory, seed)
        if not isinstance(model, nn.Module):
            raise InputError(f"{name} made {type(model).__name__}: needs a function that builds an nn.Module")
    told = elsewhere.described(model)
    entries = entries_of(told["parameters"])
    return Side(name, entries, told["buffers"], model, None if meta else factory, batch=batch, loss=loss)


def in_interpreter(
    python: str, what: Any, settings: dict[str, Any] | None, seed: int, meta: bool, name: str, batch: Any
) -> Side:
    """What another interpreter builds; it needs torch and what the model needs, not sigprop."""
    if not isinstance(what, (str, Path)):
        raise InputError("another interpreter needs the model as text: file.py:Model(width=256) or a config.json")
    with tempfile.TemporaryDirectory() as folder:
        order, result = Path(folder) / "order.json", Path(folder) / "result.pt"
        batch_file = Path(folder) / "batch.pt"
        if batch is not None:
            torch.save(_plain(batch), batch_file)
        given = {"model": str(what), "settings": settings or {}, "seed": seed, "meta": meta}
        order.write_text(json.dumps(given | {"batch": str(batch_file) if batch is not None else ""}))
        _call([python, elsewhere.__file__, str(order), str(result)], f"{python} could not build {what}")
        told = torch.load(result, weights_only=True)
    entries = entries_of(told["parameters"])
    return Side(
        name,
        entries,
        told["buffers"],
        moments=told.get("moments"),
        versions=told["versions"],
        not_run=told.get("not_run", ""),
    )


def interpreter_with(packages: list[str]) -> str:
    """An environment that has this one's packages, and the given versions of some; kept in the user's cache."""
    key = "-".join("".join(c if c.isalnum() or c in "._" else "_" for c in item) for item in sorted(packages))
    folder = Path.home() / ".cache" / "sigprop" / "versions" / f"{sys.version_info[0]}{sys.version_info[1]}-{key}"
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if (folder / ".ready").is_file():
        return str(python)
    venv.create(folder, system_site_packages=True, with_pip=True, clear=True)
    _see_packages_of_this(folder)
    _call(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
        f"pip could not install {' '.join(packages)}",
    )
    (folder / ".ready").touch()
    return str(python)


def _see_packages_of_this(folder: Path) -> None:
    """Where this process runs in a virtual environment of its own, its packages come after the new ones."""
    own = [item for item in sys.path if item.endswith("site-packages")]
    for site in folder.glob("lib*/**/site-packages"):
        (site / "sigprop_parent.pth").write_text("\n".join(own) + "\n")


def _call(command: list[str], failed: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except FileNotFoundError as error:
        raise InputError(f"no interpreter at {command[0]}") from error
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"{failed}: it took longer than {PATIENCE} seconds") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        told = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "no message")
        raise InputError(f"{failed}: {told}")


def _plain(batch: Any) -> Any:
    if hasattr(batch, "keys"):
        return {key: batch[key] for key in batch.keys()}  # noqa: SIM118
    return tuple(batch) if isinstance(batch, (tuple, list)) else batch

"""Sums in the arithmetic they were written for, whatever the user has allowed the model.

Torch has one setting for the whole process. On a CPU it is only read, and sums go to float64 where it allows less
than float32. On a GPU, where that would cost much, it is set for the time of the sums; `undisturbed` keeps other
threads out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Products of float32 numbers stay float32: no autocast, no TF32, no bfloat16 inside."""
    before = _matmul_precision(device)
    _set_matmul_precision(device, "ieee")
    try:
        with no_autocast(device):
            yield
    finally:
        _set_matmul_precision(device, before)


@contextmanager
def no_autocast(device: str) -> Iterator[None]:
    """Autocast, which belongs to the thread, switched off."""
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        yield


def _backend(device: str) -> Any:
    """Where torch keeps the setting; before torch 2.9 there is none for each device."""
    matmul = getattr(torch.backends.mkldnn if device == "cpu" else torch.backends.cuda, "matmul", None)
    return matmul if hasattr(matmul, "fp32_precision") else None


def _matmul_precision(device: str) -> str:
    backend = _backend(device)
    return torch.get_float32_matmul_precision() if backend is None else backend.fp32_precision


def _set_matmul_precision(device: str, precision: str) -> None:
    backend = _backend(device)
    if backend is None:
        torch.set_float32_matmul_precision("highest" if precision == "ieee" else precision)
    else:
        backend.fp32_precision = precision

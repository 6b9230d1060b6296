"""One call at a time, with everything that belongs to the process put back at its end."""

from __future__ import annotations

import gc
import random
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sigprop.compat import function_modes, leave_function_mode
from sigprop.isolation.interrupts import Interrupts, interrupts_held


def seed_of(purpose: str, seed: int) -> int:
    """For one purpose and the seed asked for. Of a seed torch's generator on a CPU reads 32 bits only: `(k << 32) + 3`
    draws the numbers of 3. So a purpose does not stand above them, it is mixed in."""
    return zlib.crc32(f"{purpose} {seed}".encode())


_LOCK = threading.RLock()


@contextmanager
def undisturbed(devices: Iterable[torch.device] = (), collected: bool = False) -> Iterator[Interrupts]:
    """Inside, no other thread runs a model for this library, signals wait, and garbage is not collected unless asked
    for, as by what makes many passes.

    Random states (also those of `devices`), gradient mode, autocast and function modes come back as they were,
    whatever the model does and whatever is raised. Let signals through around what may take long.
    """
    with _LOCK, interrupts_held() as interrupts:
        states = [_RandomStates(devices), _ThreadModes(), *([] if collected else [_Collector()])]
        try:
            yield interrupts
        finally:
            for state in states:
                state.restore()


def cuda_devices() -> list[torch.device]:
    """Devices whose random state `torch.manual_seed` changes."""
    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return [torch.device("cuda", index) for index in range(count)]


def seed_all(seed: int) -> None:
    """Seed every source that a model on a CPU may draw from; only inside `undisturbed`, which puts them back."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)


class _RandomStates:
    """Random states of Python, NumPy, the CPU and the devices in use."""

    def __init__(self, devices: Iterable[torch.device]):
        self.python = random.getstate()
        self.numpy: Any = np.random.get_state()  # noqa: NPY002
        self.cpu = torch.get_rng_state()
        self.cuda = {device: torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"}

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002
        torch.set_rng_state(self.cpu)
        for device, state in self.cuda.items():
            torch.cuda.set_rng_state(state, device)


class _ThreadModes:
    """What an interrupted `with` block of a model may leave behind: gradient mode, autocast, function modes."""

    DEVICES = ("cpu", "cuda")

    def __init__(self) -> None:
        self.gradients = torch.is_grad_enabled()
        self.functions = _function_modes()
        self.autocast = {
            name: (torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in self.DEVICES
        }
        self.cache = torch.is_autocast_cache_enabled()
        self.nesting = _autocast_nesting()

    def restore(self) -> None:
        torch.set_grad_enabled(self.gradients)
        while _function_modes() > self.functions:
            leave_function_mode()
        for name, (enabled, dtype) in self.autocast.items():
            torch.set_autocast_enabled(name, enabled)
            torch.set_autocast_dtype(name, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        while _autocast_nesting() > self.nesting:
            torch.autocast_decrement_nesting()


def _function_modes() -> int:
    return function_modes()


def _autocast_nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


class _Collector:
    """Garbage collection paused: it would walk all objects of a pass again and again."""

    def __init__(self) -> None:
        self.enabled = gc.isenabled()
        gc.disable()

    def restore(self) -> None:
        if self.enabled:
            gc.enable()

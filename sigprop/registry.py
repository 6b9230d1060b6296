"""The one registry: what is added by a file of its own stands here under its name.

Activations, rules of torch functions, recipes, width rules, findings, sinks and reference networks each have one. Where
a `package` is given, its files are imported when the registry is first read: a new file needs no second place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from threading import RLock
from typing import Any, TypeVar

from sigprop.errors import InputError, UnknownNameError

Entry = TypeVar("Entry")
Given = TypeVar("Given")


class Registry(Mapping[str, Entry]):
    """Entries by name, in alphabetical order; a name stands once."""

    def __init__(self, kind: str, package: str = "", hint: str = ""):
        self.kind, self.package, self.hint = kind, package, hint
        self._entries: dict[str, Entry] = {}
        self._read, self._reading = not package, RLock()

    def add(self, name: str, entry: Entry) -> None:
        if name in self._entries:
            raise InputError(f"{self.kind} {name!r} is already registered: choose another name")
        self._entries[name] = entry

    def register(self, *names: str) -> Callable[[Given], Given]:
        """Decorator: the function or class is the entry of these names."""

        def keep(entry: Given) -> Given:
            for name in names:
                self.add(name, entry)  # type: ignore[arg-type]
            return entry

        return keep

    def remove(self, name: str) -> None:
        """Take out what was registered at run time."""
        del self._entries[name]

    def __getitem__(self, name: str) -> Entry:
        if name not in self:
            raise UnknownNameError(self.kind, name, self, self.hint)
        return self._entries[name]

    def get(self, name: object, default: Any = None) -> Any:
        return self.entries().get(name, default)  # type: ignore[call-overload]

    def __contains__(self, name: object) -> bool:
        return name in self.entries()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.entries()))

    def __len__(self) -> int:
        return len(self.entries())

    def entries(self) -> dict[str, Entry]:
        """As they were registered, and will be from now on."""
        if not self._read:
            with self._reading:
                for module in iter_modules(import_module(self.package).__path__):
                    import_module(f"{self.package}.{module.name}")
                self._read = True
        return self._entries

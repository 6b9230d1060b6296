"""Results as files: written whole or not at all, and read with every field held against its dataclass.

A file may have been edited, cut short or made by somebody else. Whatever is wrong with it is one line of an
`InputError` that names the file, the place in it, what was needed and what came.
"""

from __future__ import annotations

import io
import json
import math
import os
import reprlib
import tempfile
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from sigprop.errors import InputError, UnknownNameError, WriteError
from sigprop.grid import Shown, clean
from sigprop.isolation import interrupts_held

if TYPE_CHECKING:
    from typing_extensions import Self

Row = TypeVar("Row")
INFINITE = {"inf": math.inf, "-inf": -math.inf}


def written(data: dict[str, Any] | list[Any], path: str | Path | None = None) -> str:
    """Strict JSON text: a missing number is null, an infinite one a string. Also written to `path` when given."""
    text = json.dumps(_strict(data), indent=1, allow_nan=False)
    if path is not None:
        write_whole(Path(path), text + "\n")
    return text


def write_whole(path: Path, content: str | bytes) -> None:
    """The file is the old one or the new one at every moment, also when the process is interrupted or the disk is full.

    Folders that are missing are made.
    """
    with _writing(path), interrupts_held():
        _replace(path, content.encode("utf-8") if isinstance(content, str) else content)


def append(path: Path, content: str) -> None:
    """Put at the end of a file, in a folder that is made where it is missing."""
    with _writing(path), open(path, "a", encoding="utf-8") as file:
        file.write(content)


def json_lines(path: Path) -> list[Any]:
    """What each line of a file holds; lines that a crash cut short are left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror or error}") from error


def write_figure(path: Path, figure: Any, dpi: int = 150) -> None:
    """A figure of matplotlib, written whole, in the format that the name ends in."""
    image = io.BytesIO()
    figure.savefig(image, dpi=dpi, format=path.suffix[1:] or None)
    write_whole(path, image.getvalue())


def _replace(path: Path, content: bytes) -> None:
    handle, waiting = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(waiting, path.stat().st_mode if path.exists() else 0o666 & ~_umask())
        os.replace(waiting, path)
    except BaseException:
        Path(waiting).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def named(rows: Iterable[Row], name: str, kind: str) -> Row:
    """The first row of this name."""
    known: list[Any] = list(rows)
    for row in known:
        if row.name == name:
            return row
    raise UnknownNameError(kind, name, [row.name for row in known])


UNSAVED = {"saved": False}
"""Metadata of a field that is not written."""


class Result(Shown):
    """A dataclass that is written as JSON and read again, field by field."""

    DOCUMENT: ClassVar[tuple[str, int]]
    """What it is called in errors, and the version of its fields."""

    def derived(self) -> dict[str, Any]:
        """What is written beside the fields, and not read."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": self.DOCUMENT[1], **self.derived(), **plain(self)}

    def to_json(self, path: str | Path | None = None) -> str:
        """Strict JSON text (a missing number is null); also written to `path` when given, whole or not at all."""
        return written(self.to_dict(), path)

    @classmethod
    def from_json(cls, source: str | Path) -> Self:
        """Read what `to_json` wrote, from a path or from the text itself."""
        document, hints = Document(source, *cls.DOCUMENT), get_type_hints(cls)
        names = [item.name for item in saved_fields(cls)]
        return cls(**{name: document.value(name, hints[name]) for name in names})


def saved_fields(kind: Any) -> list[Field[Any]]:
    return [item for item in fields(kind) if item.metadata.get("saved", True)]


def plain(value: Any) -> Any:
    """Dataclasses inside as dictionaries, of the fields that are saved."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in saved_fields(value)}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


class Document:
    """A JSON object read from a path or from the text itself."""

    def __init__(self, source: str | Path, kind: str, version: int):
        text, self.origin = _text(source, kind)
        self.data = self._object(_parsed(text, self.origin), "")
        found = self.data.get("schema_version")
        if found != version or isinstance(found, bool):
            raise InputError(f"{self.origin} has schema_version {shown(found)}; this version reads {version}")

    def value(self, key: str, wanted: Any) -> Any:
        """A field as its annotation wants it."""
        found = self._field(key)
        try:
            return self._value(found, wanted, key)
        except RecursionError as error:
            raise InputError(f"{self.origin}: {key} is nested too deeply") from error

    def _field(self, key: str) -> Any:
        if key not in self.data:
            raise InputError(f"{self.origin} has no {key!r}: needs what to_json writes")
        return self.data[key]

    def _object(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(where or "the document", "an object", value)
        return value

    def _row(self, kind: type[Row], value: Any, where: str) -> Row:
        given, needed = self._object(value, where), _needed(kind)
        unknown = [key for key in given if key not in needed]
        missing = [key for key, (_, required) in needed.items() if required and key not in given]
        if unknown or missing:
            wrong = f"an unknown field {shown(unknown[0])}" if unknown else f"no field {missing[0]!r}"
            raise InputError(f"{self.origin}: {where} has {wrong}: needs {', '.join(needed)}")
        read = {key: self._value(item, needed[key][0], f"{where}.{key}") for key, item in given.items()}
        try:
            return kind(**read)
        except InputError as error:
            raise InputError(f"{self.origin}: {where}: {error}") from error

    def _value(self, value: Any, wanted: Any, where: str) -> Any:
        """The value as the annotation wants it."""
        origin, inner = get_origin(wanted), get_args(wanted)
        if origin in (Union, types.UnionType):
            if value is None and type(None) in inner:
                return None
            return self._value(value, next(item for item in inner if item is not type(None)), where)
        if is_dataclass(wanted):
            return self._row(wanted, value, where)  # type: ignore[arg-type]
        if origin in (tuple, list) and isinstance(value, list):
            return origin(self._value(item, inner[0], f"{where}[{number}]") for number, item in enumerate(value))
        if origin is dict and isinstance(value, dict):
            return {key: self._value(item, inner[1], f"{where}[{key}]") for key, item in value.items()}
        if wanted is float:
            return self._number(value, where)
        if wanted is Any or (wanted in (str, int, bool) and type(value) is wanted):
            return value
        raise self._wrong(where, _WORDS.get(wanted, _WORDS.get(origin, str(wanted))), value)

    def _number(self, value: Any, where: str) -> float:
        if value is None or (isinstance(value, str) and value in INFINITE):
            return math.nan if value is None else INFINITE[value]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(where, "a number", value)
        try:
            return float(value)
        except OverflowError as error:
            raise self._wrong(where, "a number that fits a float", value) from error

    def _wrong(self, where: str, needed: str, value: Any) -> InputError:
        return InputError(f"{self.origin}: {clean(where)} is {shown(value)}: needs {needed}")


_WORDS = {str: "text", int: "a whole number", bool: "true or false", tuple: "a list", list: "a list", dict: "an object"}


def shown(value: Any) -> str:
    """A value in an error: short, on one line, with nothing that a terminal would act on."""
    return ascii(value) if isinstance(value, (int, float)) and len(str(value)) < 40 else reprlib.repr(value)


@cache
def _needed(kind: type) -> dict[str, tuple[Any, bool]]:
    """The fields of a dataclass: what they hold, and whether they must be there."""
    hints = get_type_hints(kind)
    return {
        item.name: (hints[item.name], item.default is MISSING and item.default_factory is MISSING)
        for item in fields(kind)  # type: ignore[arg-type]
    }


def _text(source: str | Path, kind: str) -> tuple[str, str]:
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return source, f"the text of a {kind}"
    origin = f"{kind} {clean(source)}"
    try:
        return Path(source).read_text(encoding="utf-8"), origin
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise InputError(f"{origin} cannot be read: {reason}") from error


def _parsed(text: str, origin: str) -> Any:
    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not a number in JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise InputError(f"{origin} is not JSON of a result: it is nested too deeply") from error
    except ValueError as error:
        raise InputError(f"{origin} is not JSON: {error}") from error


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value

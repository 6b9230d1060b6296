"""`file.py:name` and `file.py:Name(width=256)`: objects in a user's own file, and errors told by its lines."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from sigprop.errors import InputError, UnknownNameError, UserCodeError

IMPORTED: set[Path] = set()
"""Files of the user that were imported; an error that a line of theirs raised is told by that line."""


@dataclass(frozen=True)
class UserObject:
    """What `file.py:name(...)` names, the file as a module, and the arguments that were written with it."""

    path: Path
    name: str
    value: Any
    module: ModuleType
    arguments: tuple[Any, ...] = ()
    settings: dict[str, Any] | None = None

    def call(self, *arguments: Any, **settings: Any) -> Any:
        """Call the object; an error inside the user's file is told by its line."""
        with user_code(self.path):
            return self.value(*self.arguments, *arguments, **{**(self.settings or {}), **settings})


def is_user_object(text: str) -> bool:
    return ".py:" in text


def names_in(path: Path) -> list[str]:
    """Classes and functions of a file, read without running it."""
    try:
        body = ast.parse(path.read_text()).body
    except (SyntaxError, UnicodeDecodeError):
        return []
    return [item.name for item in body if isinstance(item, (ast.ClassDef, ast.FunctionDef))]


def read_user_object(text: str) -> UserObject:
    """Import the file and find the object; its arguments must be plain values."""
    file, _, expression = text.partition(".py:")
    path = Path(f"{file}.py")
    name, arguments, settings = _parsed(text, expression)
    module = _imported(path)
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise UnknownNameError(f"name in {path}", name, own)
    return UserObject(path, name, getattr(module, name), module, arguments, settings)


def _parsed(text: str, expression: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    try:
        tree = ast.parse(expression, mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, (), {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            arguments = tuple(ast.literal_eval(item) for item in tree.args)
            settings = {str(item.arg): ast.literal_eval(item.value) for item in tree.keywords if item.arg}
            return tree.func.id, arguments, settings
    except (SyntaxError, ValueError):
        pass
    raise InputError(f"{text!r} is not allowed: needs file.py:name or file.py:Name(width=256) with plain values")


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"no file at {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as if the file were run: its neighbours can be imported
    sys.modules.setdefault(path.stem, module)
    IMPORTED.add(path.resolve())
    with user_code(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def user_code(path: Path) -> Iterator[None]:
    """Errors that leave the block become one line that names the user's file and line."""
    try:
        yield
    except UserCodeError:
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(told(error, path)) from error


def told(error: BaseException, path: Path) -> str:
    """`model.py, line 12, in forward: RuntimeError: shapes do not match`, on one line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(Path(error.filename))}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return f"{place(error, path)}: {what}".rstrip(": ")


def place(error: BaseException, path: Path) -> str:
    """The deepest line of the file that an error passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _same(frame.filename, path)]
    return f"{_shown(path)}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else _shown(path)


def _same(filename: str, path: Path) -> bool:
    return os.path.exists(filename) and os.path.samefile(filename, path)


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def read_activation(text: str) -> str | Callable[[Tensor], Tensor]:
    """The name itself, or the function that `file.py:function` names, tried once so that its errors name its lines."""
    if not is_user_object(text):
        if text.endswith(".py"):
            raise InputError(f"{text} is a file: needs the name of a function in it, {text}:function")
        return text
    found = read_user_object(text)
    made = found.arguments or found.settings or isinstance(found.value, type)
    function = found.call() if made else found.value
    if not callable(function):
        raise InputError(f"{text} is a {type(function).__name__}: needs a function of a tensor")
    with user_code(found.path):
        function(torch.linspace(-2.0, 2.0, 5, dtype=torch.float64))
    return cast(Callable[[Tensor], Tensor], function)

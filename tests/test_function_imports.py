"""Imports inside functions hide cycles: their number may only fall."""

import ast
from pathlib import Path

import sigprop

ROOT = Path(sigprop.__file__).parent
ALLOWED = {"trace": 17, "structure": 0, "theory": 0, "recipes": 0, "measure": 0}


def inside_functions(path: Path) -> list[int]:
    """Lines of imports of sigprop that stand in a function."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = [item for item in ast.walk(node) if isinstance(item, ast.ImportFrom)]
            found += [item.lineno for item in inner if (item.module or "").startswith("sigprop")]
    return sorted(set(found))


def count(room: str) -> int:
    return sum(len(inside_functions(path)) for path in (ROOT / room).rglob("*.py"))


def test_no_new_import_inside_a_function():
    found = {room: count(room) for room in ALLOWED}
    assert all(found[room] <= ALLOWED[room] for room in ALLOWED), f"{found}, allowed {ALLOWED}"


def test_one_is_seen(tmp_path):
    path = tmp_path / "hidden.py"
    path.write_text("def f():\n    from sigprop.trace import predict\n\n    return predict\n")
    assert inside_functions(path) == [2]

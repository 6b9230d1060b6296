"""Imports point from later rooms to earlier ones."""

import ast
from pathlib import Path

import pytest

import sigprop

ROOT = Path(sigprop.__file__).parent
BASE = {"process", "compat", "errors", "grid", "losses", "results", "score_masks", "sites"}
ALLOWED = {
    "process": {"compat"},
    "errors": set(),
    "compat": {"errors"},
    "losses": {"errors", "process"},
    "grid": {"errors"},
    "score_masks": set(),
    "sites": set(),
    "results": {"compat", "errors", "grid", "process"},
    "theory": BASE,
    "initialization": BASE,
    "blueprints": BASE | {"theory"},
    "trace": BASE | {"theory", "initialization"},
    "measure": BASE,
    "simulate": BASE | {"initialization", "measure"},
    "reduced": BASE | {"initialization", "trace", "simulate", "sources"},
    "long_contexts": BASE | {"trace", "simulate"},
    "prediction": BASE | {"initialization", "trace", "simulate", "reduced", "long_contexts"},
    "models": BASE,
    "sources": BASE | {"models"},
    "structure": BASE | {"theory", "trace", "sources"},
    "infinite_width": BASE | {"theory", "blueprints", "initialization"},
    "recipes": BASE | {"theory", "blueprints", "trace", "structure", "measure", "sources"},
    "scaling": BASE | {"theory", "blueprints", "trace", "structure", "measure", "sources", "recipes"},
    "check": BASE | {"theory", "initialization", "trace", "structure", "measure", "sources", "recipes"},
    "lab": BASE | {"measure", "models", "sources", "scaling", "api"},
    "report": BASE,
    "explorer": BASE | {"blueprints", "check", "report"},
    "watch": BASE | {"measure", "report"},
    "integrations": BASE | {"watch"},
}


def imports(path: Path) -> set[str]:
    """Rooms of sigprop that a file imports, at any level."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "sigprop":
                names = [f"sigprop.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("sigprop.")}
    return rooms


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_rooms_import_only_earlier_rooms(room):
    files = [ROOT / f"{room}.py"] if (ROOT / f"{room}.py").exists() else sorted((ROOT / room).rglob("*.py"))
    for path in files:
        wrong = imports(path) - ALLOWED[room] - {room}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_every_room_is_known():
    rooms = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert rooms <= set(ALLOWED) | {"cli"}


def test_the_walk_sees_a_wrong_arrow(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("from sigprop.measure import measure\nimport sigprop.trace.capture\n")
    assert imports(path) == {"measure", "trace"}


def test_no_file_loads_the_slowest_part_of_scipy():
    """`scipy.stats` takes as long to import as half of torch; `scipy.special` has its distributions."""
    for path in ROOT.rglob("*.py"):
        assert "scipy.stats" not in path.read_text(), path.relative_to(ROOT)

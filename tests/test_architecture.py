"""Imports point from later packages to earlier ones, and within a room they go round in no circle."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sigprop

ROOT = Path(sigprop.__file__).parent
BASE = {"batches", "isolation", "compat", "errors", "grid", "losses", "registry", "results", "score_masks", "sites"}
ALLOWED = {
    "isolation": {"compat"},
    "errors": set(),
    "compat": {"errors"},
    "batches": {"errors", "isolation"},
    "losses": {"batches", "errors", "isolation"},
    "grid": {"errors"},
    "score_masks": set(),
    "sites": set(),
    "registry": {"errors"},
    "results": {"compat", "errors", "grid", "isolation"},
    "theory": BASE,
    "distributions": BASE,
    "graph": BASE | {"theory", "distributions"},
    "blueprints": BASE | {"theory", "graph"},
    "capture": BASE | {"theory", "distributions", "graph"},
    "measurement": BASE,
    "models": BASE,
    "inputs": BASE | {"models"},
    "verification": BASE | {"distributions", "capture", "measurement", "inputs"},
    "prediction": BASE | {"distributions", "capture", "verification"},
    "structure": BASE | {"theory", "distributions", "graph", "capture", "inputs"},
    "plans": BASE | {"theory", "distributions", "graph", "blueprints", "capture", "structure", "measurement", "inputs"},
    "checks": BASE
    | {"theory", "distributions", "graph", "capture", "structure", "measurement", "inputs", "plans", "prediction"}
    | {"verification"},
    "report": BASE,
    "monitoring": BASE | {"measurement", "report"},
    "api": BASE | {"blueprints", "capture", "inputs", "prediction", "theory"},
    "integrations": BASE | {"monitoring", "api", "checks", "distributions", "inputs", "plans"},
}
DRAWN = {"results/report.py": {"report"}}
"""Files with a method that draws a result and imports it when called."""
ALLOWED["research"] = {*ALLOWED}
"""Packages and what they import beside themselves. The command line alone imports research."""


def module_name(path: Path, root: Path = ROOT) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def imported(path: Path, types: bool = True) -> Iterator[tuple[str, bool]]:
    """Modules of sigprop that a file imports, and whether inside a function; `types`: also for annotations alone."""
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text()), False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names if alias.name.startswith("sigprop."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sigprop":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in FILES or node.module == "sigprop" else str(node.module)), inside
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]


def packages_of(path: Path) -> set[str]:
    """Packages of sigprop that a file imports, at any level."""
    return {name.split(".")[1] for name, _ in imported(path)}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_packages_import_only_earlier_ones(package):
    files = [ROOT / f"{package}.py"] if (ROOT / f"{package}.py").exists() else sorted((ROOT / package).rglob("*.py"))
    for path in files:
        wrong = packages_of(path) - ALLOWED[package] - {package} - DRAWN.get(path.relative_to(ROOT).as_posix(), set())
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_every_package_is_known():
    packages = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert packages <= set(ALLOWED) | {"cli"}


def test_the_walk_sees_a_wrong_arrow(tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("from sigprop.measurement import measure\nimport sigprop.capture.capture\n")
    assert packages_of(path) == {"measurement", "capture"}


# -- circles


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """A way along the arrows that ends where it began; empty where there is none."""
    left = {name: set(targets) & set(arrows) - {name} for name, targets in arrows.items()}
    while True:
        ends = {name for name, targets in left.items() if not targets}
        if not ends:
            break
        left = {name: targets - ends for name, targets in left.items() if name not in ends}
    way: list[str] = []
    name = min(left, default="")
    while name and name not in way:
        way.append(name)
        name = min(left[name])
    return way[way.index(name) :] if name else []


def test_modules_import_each_other_in_no_circle():
    """The figures of a result are drawn by a method of it, which imports them when it is called."""
    arrows = {
        name: {
            target
            for target, inside in imported(path, types=False)
            if not (inside and (target.endswith(".figures") or target.startswith("sigprop.report.")))
            and target != "sigprop"
        }
        for name, path in FILES.items()
        if name != "sigprop"
    }
    assert circle(arrows) == []


def test_the_interpreter_has_none_even_for_annotations():
    arrows = {
        name: {t for t, _ in imported(path)} for name, path in FILES.items() if name.startswith("sigprop.capture")
    }
    assert circle(arrows) == []


def test_a_circle_is_seen():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


# -- layers of the interpreter


def layers() -> dict[str, int]:
    """For each module of the interpreter the layer that the tour in its docstring puts it in."""
    tour = ast.get_docstring(ast.parse((ROOT / "capture" / "__init__.py").read_text())) or ""
    rows = re.split(r"\n\d+\. ", tour)[1:]
    named = [(name, row) for row, cell in enumerate(rows) for name in re.findall(r"`(\w+/?)`", cell)]
    assert len({name for name, _ in named}) == len(named), "a file is named twice"
    found = {}
    for name, row in named:
        inside = f"sigprop.capture.{name.rstrip('/')}"
        members = [module for module in FILES if module == inside or module.startswith(f"{inside}.")]
        assert members, f"the tour names {name}, which is not there"
        found |= dict.fromkeys(members, row)
    return found


def test_the_tour_of_the_interpreter_names_every_file():
    inside = {name for name in FILES if name.startswith("sigprop.capture.")}
    assert set(layers()) == inside


def test_layers_of_the_interpreter_import_only_earlier_ones():
    rows = layers()
    for name, row in rows.items():
        late = [target for target, _ in imported(FILES[name]) if rows.get(target, row) > row]
        assert not late, f"{name} imports {late}, which the tour lists after it"


def test_the_rule_of_another_function_is_asked_for_by_its_name():
    """Files of rules share how a result is made; none imports what is bound to a torch function."""
    rules = {name: path for name, path in FILES.items() if name.startswith("sigprop.capture.rules.")}
    bound = {name: _bound(path) for name, path in rules.items()}
    assert any(bound.values())
    for name, path in rules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in rules:
                assert not bound[node.module] & {alias.name for alias in node.names}, name


def _bound(path: Path) -> set[str]:
    """Functions of a file that are rules."""
    functions = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))
    return {
        node.name for node in functions if any(ast.unparse(mark).startswith("rule(") for mark in node.decorator_list)
    }


# -- names

SAME_THING = ({"models", "blueprints", "theory"}, {"integrations"})
"""Packages that say one thing for different readers: a network, its blueprint and its op; the callback of a trainer."""


def test_a_class_name_stands_twice_only_for_the_same_thing():
    places: dict[str, set[str]] = {}
    for name, path in FILES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, set()).add(name.removeprefix("sigprop."))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    confusing = {
        name: found
        for name, found in twice.items()
        if not any({place.split(".")[0] for place in found} <= packages for packages in SAME_THING)
    }
    assert confusing == {}


def test_no_file_loads_the_slowest_part_of_scipy():
    """`scipy.stats` takes as long to import as half of torch; `scipy.special` has its distributions."""
    for path in ROOT.rglob("*.py"):
        assert "scipy.stats" not in path.read_text(), path.relative_to(ROOT)

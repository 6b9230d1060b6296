"""Imports inside functions hide cycles: each that is there is there by intent."""

import ast
from pathlib import Path

import sigprop

ROOT = Path(sigprop.__file__).parent
OPTIONAL = {"PIL", "matplotlib", "datasets", "pandas", "ray", "torch.utils.tensorboard"}
"""Packages that the rest works without."""
SLOW = {"rich.console", "rich.progress", "torch.distributed.fsdp", "torch.distributed.tensor"}
"""What takes long to load and is seldom used."""
PLOTS = {"plans/plan.py"} | {f"results/{name}.py" for name in ("comparison", "coordinates", "profile", "report")}
"""Results that draw themselves; matplotlib is loaded when they do."""


def inside_functions(path: Path) -> list[tuple[int, str]]:
    """Lines and modules of the imports that stand in a function."""
    found = set()
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for item in ast.walk(function):
                if isinstance(item, ast.Import):
                    found |= {(item.lineno, alias.name) for alias in item.names}
                elif isinstance(item, ast.ImportFrom):
                    found.add((item.lineno, item.module or ""))
    return sorted(found)


def is_by_intent(file: str, module: str) -> bool:
    if file.startswith("cli/"):  # help and completion need no torch
        return True
    if file == "compat.py":  # nothing private is taken before it is needed
        return module in ("numpy", "torch")
    if file == "integrations/pytest.py":  # a plugin is loaded in every test session, used in few
        return module.startswith("sigprop.")
    if module in ("sigprop.results.figures", "sigprop.report.html"):
        return file in PLOTS
    return module in SLOW or any(module == name or module.startswith(f"{name}.") for name in OPTIONAL)


def test_no_import_inside_a_function_but_by_intent():
    found = [
        f"{file}:{line} imports {module}"
        for path in sorted(ROOT.rglob("*.py"))
        for file in [path.relative_to(ROOT).as_posix()]
        for line, module in inside_functions(path)
        if not is_by_intent(file, module)
    ]
    assert found == []


def test_one_is_seen(tmp_path):
    path = tmp_path / "hidden.py"
    path.write_text("def f():\n    from sigprop.capture import predict\n\n    return predict\n")
    assert inside_functions(path) == [(2, "sigprop.capture")]
    assert not is_by_intent("capture/hidden.py", "sigprop.capture")

"""The notebooks run from top to bottom, and what a cell ends in shows itself as HTML or as a picture."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def run(path: Path) -> list[object]:
    """What the cells end in, as a notebook would show it."""
    names: dict[str, object] = {"__name__": "notebook"}
    shown = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), path.name, "eval"), names))
    return shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = run(path)
    assert shown
    rich = [item for item in shown if hasattr(item, "_repr_html_") or hasattr(item, "_repr_png_")]
    assert rich
    for item in rich:
        if hasattr(item, "_repr_png_"):
            assert item._repr_png_().startswith(b"\x89PNG")
        else:
            assert item._repr_html_().count("<") == item._repr_html_().count(">")
    if path.stem == "check":
        assert shown[-1].healthy, "the fix of the notebook leaves findings"
    stored = json.loads(path.read_text())
    assert all(not cell.get("outputs") for cell in stored["cells"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_its_link_to_colab(path):
    first = "".join(json.loads(path.read_text())["cells"][0]["source"])
    assert first.startswith("# ")
    assert f"https://colab.research.google.com/github/sigprop/sigprop/blob/main/notebooks/{path.name})" in first


def test_one_notebook_for_every_headline_task():
    assert {path.stem for path in NOTEBOOKS} == {"check", "predict", "plan", "scale", "diff", "watch"}

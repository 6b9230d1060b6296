"""Everything private of torch stands in one file, and is there in the installed release."""

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import sigprop
from sigprop import compat

ROOT = Path(sigprop.__file__).parent
PRIVATE_USE = re.compile(
    r"\b(?:torch|nn)(?:\.\w+)*\._(?!_)\w+|from torch(?:\.\w+)*\._\w+ import|from torch[\w.]* import \(?[^\n]*\b_\w+"
)


@pytest.mark.parametrize("name", sorted(compat.PRIVATE))
def test_private_names_are_there(name):
    assert getattr(compat, name) is not None


FILES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(ROOT.rglob("*.py"))}


def test_no_other_file_takes_private_names_of_torch():
    found = {
        f"{file}: {match[0]}"
        for file, text in FILES.items()
        if file != "compat.py"
        for match in PRIVATE_USE.finditer(text)
    }
    assert not found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(text: str) -> set[str]:
    """Names that a file gives to functions, classes, variables and attributes of `self`."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id == "self" else set()
    return found


def foreign_attributes(text: str, own: set[str]) -> set[str]:
    """Private attributes that are asked of others than `self`, which `own` does not name."""
    asked = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    asked = [node for node in asked if not (isinstance(node.value, ast.Name) and node.value.id == "self")]
    return {node.attr for node in asked if is_private(node.attr)} - own


def test_no_other_file_asks_for_private_attributes_of_others():
    """What sigprop itself names with an underscore may be asked for; `sys._getframe` is documented."""
    theirs = {*vars(nn.Module()), *dir(torch.Tensor)}
    own = {"_getframe"}.union(*map(own_names, FILES.values())) - theirs
    found = {file: foreign_attributes(text, own) for file, text in FILES.items() if file != "compat.py"}
    assert {file: names for file, names in found.items() if names} == {}
    assert foreign_attributes("module._parameters.clear()", own) == {"_parameters"}


def test_what_is_gone_says_what_is_lost(monkeypatch):
    monkeypatch.setitem(
        compat.PRIVATE, "BatchNorm", ("torch.nn.modules.batchnorm", "_Gone", "norms are not recognized")
    )
    with pytest.raises(ImportError, match=r"torch .* has no torch.nn.modules.batchnorm._Gone, so norms are not recogn"):
        _ = compat.BatchNorm
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = compat.nonsense

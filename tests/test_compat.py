"""Everything private of torch stands in one file, and is there in the installed release."""

import re
from pathlib import Path

import pytest

import sigprop
from sigprop import compat

ROOT = Path(sigprop.__file__).parent
PRIVATE_USE = re.compile(
    r"\btorch(?:\.\w+)*\._(?!_)\w+|from torch(?:\.\w+)*\._\w+ import|from torch[\w.]* import \(?[^\n]*\b_\w+"
)


@pytest.mark.parametrize("name", sorted(compat.PRIVATE))
def test_private_names_are_there(name):
    assert getattr(compat, name) is not None


def test_no_other_file_takes_private_names_of_torch():
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in ROOT.rglob("*.py")
        if path.name != "compat.py"
        for match in PRIVATE_USE.finditer(path.read_text())
    }
    assert not found


def test_what_is_gone_says_what_is_lost(monkeypatch):
    monkeypatch.setitem(
        compat.PRIVATE, "BatchNorm", ("torch.nn.modules.batchnorm", "_Gone", "norms are not recognized")
    )
    with pytest.raises(ImportError, match=r"torch .* has no torch.nn.modules.batchnorm._Gone, so norms are not recogn"):
        _ = compat.BatchNorm
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = compat.nonsense

"""The tour of the code is true: what it names is there, and every package is named."""

import re
from pathlib import Path

import sigprop

ROOT = Path(sigprop.__file__).parent
TOUR = (Path(__file__).parents[1] / "docs" / "learn" / "tour.md").read_text()


def test_every_package_is_named():
    packages = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("__")]
    files = [path for path in ROOT.glob("*.py") if not path.name.startswith("__")]
    missing = [path.name for path in packages if f"{path.name}/" not in TOUR]
    missing += [path.name for path in files if path.name not in TOUR]
    assert missing in ([], ["errors.py"])


def test_files_and_functions_are_there():
    sources = {path: path.read_text() for path in ROOT.rglob("*.py")}
    for name in set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", TOUR)) - {"test_architecture.py"}:
        assert any(path.name == name for path in sources), name
    names = "builder_of|as_batch|open_source|Evaluation|SiteRow|ParameterRow|Field|Weight"
    for name in re.findall(rf"`({names})`", TOUR):
        assert any(re.search(rf"(class|def) {name}\b", text) for text in sources.values()), name

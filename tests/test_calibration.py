"""The page of calibration says what its data say."""

import re
from pathlib import Path

import pytest

from sigprop.results.stated_errors import BY_STATUS
from studies.engine_code import engine_code
from studies.stored import read, replaced

ROOT = Path(__file__).parents[1]
DATA, PAGE = ROOT / "docs/data/calibration.json.gz", ROOT / "docs/evidence/calibration.md"


def test_the_page_is_made_from_the_data():
    pytest.importorskip("transformers", reason="the study names classes of transformers")
    from studies.calibration_page import tables

    for name, lines in tables(read(DATA)).items():
        assert replaced(PAGE.read_text(), name, ["", *lines, ""]) == PAGE.read_text(), name


def test_the_engine_has_a_fingerprint():
    """Of packages that are there: one that has moved is named."""
    assert re.fullmatch(r"[0-9a-f]{8}", engine_code())


def test_what_is_judged_is_what_is_stated_today():
    """A change of the stated errors asks for the study to be run again."""
    found = 0
    for entry in read(DATA)["entries"]:
        if entry["way"] == "theory":
            for rows in entry.get("numbers", {}).values():
                found += len(rows)
                assert {row[2] for row in rows} <= {None, *BY_STATUS.values()}, entry["model"]
    assert found > 5000

"""Plan and profile files that were cut, edited or made up are refused in one line, or read as what they say."""

import json
import math
import random

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.errors import SigpropError
from sigprop.models import build
from sigprop.plans import Plan
from sigprop.plans.rows import ParameterPlan
from sigprop.results import Profile

CASES = 120
REPLACEMENTS = [
    None,
    "fast",
    "",
    "\x1b[31m",
    True,
    -1,
    10**400,
    1e308,
    [],
    {},
    [[]],
    {"a": {}},
    ["x"] * 3,
    0.5,
    "inf",
    float("nan"),
    float("inf"),
]


@pytest.fixture(scope="module")
def texts():
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(4, 6)
    gpt = build("transformer", vocabulary=29, context=8, width=8, depth=2, heads=2)
    ids = torch.arange(16).reshape(2, 8)
    return {
        "profile": sp.measure(model, x).to_json(),
        "prediction": sp.predict(model, x).to_json(),
        "plan": sp.plan(gpt, "unit", batch=ids, k=0.25).to_json(),
    }


def paths(value, path=()):
    """Every place in a document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def damaged(text, chance):
    """One thing wrong with a document: as bytes, as text, or as data."""
    kind = chance.randrange(6)
    if kind == 0:
        return text[: chance.randrange(len(text))].encode()
    if kind == 1:
        place = chance.randrange(len(text))
        return text[:place].encode() + bytes([chance.randrange(256)]) + text[place + 1 :].encode()
    data = json.loads(text)
    path = chance.choice([path for path in paths(data) if path])
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    if kind == 2:
        del parent[path[-1]]
    elif kind == 3 and isinstance(parent, dict):
        parent["unknown \x1b[31m field"] = 1
    else:
        parent[path[-1]] = chance.choice(REPLACEMENTS)
    return json.dumps(data).encode()


def outcome(reader, path):
    """What was read, or the words of the refusal."""
    try:
        return reader.from_json(path), ""
    except SigpropError as error:
        return None, str(error)


@pytest.mark.parametrize("kind", ["profile", "prediction", "plan"])
def test_a_damaged_file_is_refused_in_one_line_or_read(texts, kind, tmp_path):
    reader = Plan if kind == "plan" else Profile
    chance, refused = random.Random(kind), 0
    path = tmp_path / "result.json"
    for _ in range(CASES):
        path.write_bytes(damaged(texts[kind], chance))
        found, words = outcome(reader, path)
        if found is None:
            refused += 1
            assert words.isprintable(), repr(words)
            assert str(path) in words
            assert len(words) < 600
        else:
            assert reader.from_json(found.to_json()).to_json() == found.to_json()
    assert refused > CASES / 3


STRANGE = {
    "empty": b"",
    "a list": b"[1, 2]",
    "a number": b"3",
    "nothing": b"null",
    "nested": b'{"schema_version": 1, "meta": ' + b"[" * 100_000,
    "not text": bytes(range(256)),
    "utf-16": '{"schema_version": 1}'.encode("utf-16"),
    "no version": b'{"sites": [], "parameters": [], "meta": {}}',
    "another version": b'{"schema_version": 99}',
    "a true version": b'{"schema_version": true, "sites": [], "parameters": [], "meta": {}}',
    "rows of text": b'{"schema_version": 1, "sites": ["x"], "parameters": ["x"], "meta": {}}',
    "rows by name": b'{"schema_version": 1, "sites": {}, "parameters": {}, "meta": {}}',
    "not a number": b'{"schema_version": 1, "sites": [], "parameters": [], "meta": {"x": NaN}}',
}


@pytest.mark.parametrize("reader", [Plan, Profile])
@pytest.mark.parametrize("name", STRANGE)
def test_a_file_that_is_no_result_is_refused(reader, name, tmp_path):
    path = tmp_path / "result.json"
    path.write_bytes(STRANGE[name])
    with pytest.raises(SigpropError) as caught:
        reader.from_json(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("reader", [Plan, Profile])
def test_no_file_and_a_folder(reader, tmp_path):
    for source in (tmp_path / "missing.json", tmp_path, "text\x1b[31m"):
        with pytest.raises(SigpropError, match="cannot be read") as caught:
            reader.from_json(source)
        assert str(caught.value).isprintable()


def test_a_learning_rate_is_a_number(texts):
    data = json.loads(texts["plan"])
    data["parameters"][0]["lr"] = "fast"
    with pytest.raises(SigpropError, match=r"parameters\[0\]\.lr is 'fast': needs a number"):
        Plan.from_json(json.dumps(data))
    for wrong in ("fast", math.nan, math.inf, None):
        with pytest.raises(SigpropError, match="lr = "):
            ParameterPlan("weight", (2, 2), lr=wrong)


def test_files_round_trip(texts):
    assert Plan.from_json(texts["plan"]).to_json() == texts["plan"]
    assert Profile.from_json(texts["prediction"]).to_json() == texts["prediction"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, texts):
    path = tmp_path / "plan.json"
    plan = Plan.from_json(texts["plan"])
    plan.to_json(path)
    before = path.read_text()

    def fail(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no space"):
        plan.to_json(path)
    assert path.read_text() == before
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]

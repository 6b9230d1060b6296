"""The papers' claims: verdicts follow from stored numbers, pages from records, and a study can be killed."""

import json
import re

import pytest

import sigprop
from sigprop.cli.app import app, exit_code
from sigprop.errors import InputError
from studies.reproduction import UNSEEN, Found, Reproduction, Row, Setting, data_of, records, reproduce
from studies.reproductions import PAPERS, every_claim, history, pages, registered, reproductions

ITEMS, STORED = reproductions(), records()


def test_every_item_has_its_paper_and_a_name_of_its_own():
    for name, item in every_claim().items():
        assert item.id == name
        assert item.paper in PAPERS
        assert re.fullmatch(rf"{item.paper}-[a-z0-9-]+", name)
        assert item.claim.endswith(".")


@pytest.mark.parametrize("key", [key for key in STORED if key[0] in ITEMS], ids=lambda key: ".".join(key))
def test_a_stored_verdict_follows_from_the_stored_numbers(key):
    record = STORED[key]
    item = ITEMS[key[0]]
    found = item.judged(data_of(record))
    assert record["judgement"]["verdict"] == found.verdict
    assert record["judgement"]["why"] == found.why
    assert [tuple(row.values()) for row in record["judgement"]["rows"]] == [
        (row.what, row.paper, row.ours) for row in found.rows
    ]
    assert {"command", "date", "hardware", "torch", "seconds"} <= set(record)


def test_the_pages_are_those_of_the_records():
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"run python -m studies.reproductions ({path.name})"


def sum_of(data):
    return Found("It adds up.", (Row("sum", "3", str(data["sum"])),), {"sum": data["sum"]})


def summed(run=None, **given):
    rule = {"reproduced": "sum == 3", "in_order": "sum > 3", "figures": sum_of}
    return Reproduction(id="apjn-sum", place="Fig. 0", claim="One and two are three.", run=run, **{**rule, **given})


def test_a_record_is_registered_as_long_as_its_rule_and_protocol_stand(tmp_path):
    def run(setting, numbers):
        return {"sum": sum(numbers)}

    item = summed(run, small={"numbers": (1, 2)})
    stored = {("apjn-sum", "small"): reproduce(item, Setting(), tmp_path)}
    assert registered(item, stored)
    assert not registered(summed(run, small={"numbers": (1, 3)}), stored)
    assert not registered(summed(run, small={"numbers": (1, 2)}, reproduced="sum >= 3"), stored)
    assert not registered(summed(run, small={"numbers": (1, 2)}, budget={"seeds": 3.0}), stored)
    changed = summed(run, small={"numbers": (1, 2)}, figures=lambda data: sum_of({"sum": 3}))
    assert not registered(changed, stored)


def test_registered_runs_use_seeds_of_no_earlier_run():
    for (name, _), record in STORED.items():
        if record in registered(every_claim()[name], STORED):
            seeds = data_of(record).get("seeds", [])
            assert all(seed >= UNSEEN for seed in seeds), name


def test_a_killed_study_goes_on_with_its_next_part(tmp_path):
    made = []

    def part(number):
        made.append(number)
        if made == [1, 2]:
            raise KeyboardInterrupt
        return {"number": number}

    def run(setting, numbers):
        return {"sum": sum(setting.part(f"{n}", part, n)["number"] for n in numbers), "seeds": [0]}

    item = summed(run, small={"numbers": (1, 2)})
    setting = Setting(parts=tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        reproduce(item, setting, tmp_path)
    record = reproduce(item, setting, tmp_path)
    assert made == [1, 2, 2]
    assert list(record["judgement"]["rows"]) == [{"what": "sum", "paper": "3", "ours": "3"}]
    assert not (tmp_path / "parts").exists()
    command = "sigprop research reproduce apjn-sum --scale small --device cpu"
    assert records(tmp_path)["apjn-sum", "small"]["command"] == command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["apjn-figur3"], "unknown reproduction 'apjn-figur3'; nearest: apjn-figure3"),
        (["apjn-figure3"], "history: git worktree add ../history 41e31bc && cd ../history && python -m sigprop"),
        (["apjn-figure11"], "this study needs data: give --data FOLDER with a folder 'fashion-mnist'"),
        (["apjn-figure11", "--scale", "huge"], "'huge' is not one of 'small', 'full'"),
    ],
)
def test_what_cannot_be_run_is_one_line(words, message, tmp_path, capsys):
    assert exit_code(app, ["research", "reproduce", *words, "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert message in " ".join(told.split())
    assert told.count("\n") == 1


def test_outside_a_checkout_the_studies_are_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sigprop, "__file__", str(tmp_path / "site" / "sigprop" / "__init__.py"))
    assert exit_code(app, ["research", "reproduce", "list"]) == 2
    assert "run this in a checkout of the repository" in capsys.readouterr().err


def test_the_list_shows_every_item(capsys):
    assert exit_code(app, ["research", "reproduce", "list", "--json"]) == 0
    shown = {row["id"]: row["found"] for row in json.loads(capsys.readouterr().out)}
    assert set(shown) == {*ITEMS, *history()}
    assert shown["apjn-figure3"] == "reproduced (full); study: commit 41e31bc"


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="a folder 'text'"):
        Setting(data=tmp_path).folder("text")

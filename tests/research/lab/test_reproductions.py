"""The papers' claims: verdicts follow from stored numbers, pages from records, and a study can be killed."""

import json
import re

import pytest

import sigprop
from sigprop.cli.app import app
from sigprop.cli.exits import exit_code
from sigprop.errors import InputError
from studies import apjn_figure3, dslm_table7, dslm_table10, preln_warmup
from studies.reproduction import Judgement, Reproduction, Row, Setting, data_of, records, reproduce
from studies.reproductions import reproductions
from studies.reproductions_page import PAPERS, pages

ITEMS, STORED = reproductions(), records()


def test_every_item_has_its_paper_and_a_name_of_its_own():
    for name, item in ITEMS.items():
        assert item.id == name
        assert item.paper in PAPERS
        assert re.fullmatch(rf"{item.paper}-[a-z0-9-]+", name)
        assert item.claim.endswith(".")


@pytest.mark.parametrize("key", STORED, ids=lambda key: ".".join(key))
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
        assert path.read_text(encoding="utf-8") == text, f"run python -m studies.reproductions_page ({path.name})"


def test_a_killed_study_goes_on_with_its_next_part(tmp_path):
    made = []

    def part(number):
        made.append(number)
        if made == [1, 2]:
            raise KeyboardInterrupt
        return {"number": number}

    def run(setting):
        return {"sum": sum(setting.part(f"{n}", lambda n=n: part(n))["number"] for n in (1, 2)), "seeds": [0]}

    def judge(data):
        return Judgement("reproduced", "It adds up.", (Row("sum", "3", str(data["sum"])),))

    item = Reproduction("apjn-sum", "apjn", "Fig. 0", "One and two are three.", run, judge, (0, 0))
    setting = Setting(parts=tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        reproduce(item, setting, tmp_path)
    record = reproduce(item, setting, tmp_path)
    assert made == [1, 2, 2]
    assert list(record["judgement"]["rows"]) == [{"what": "sum", "paper": "3", "ours": "3"}]
    assert not (tmp_path / "parts").exists()
    command = "sigprop research reproduce apjn-sum --scale small --device cpu"
    assert records(tmp_path)["apjn-sum", "small"]["command"] == command


def method(label, losses, rate=1e-3, **more):
    runs = [{"rate": rate, "seed": seed, "last": loss} for seed, loss in enumerate(losses)]
    return {"label": label, "layers": 4, "width": 8, "runs": runs, **more}


@pytest.mark.parametrize(
    ("xavier", "scaled", "shallow", "verdict"),
    [
        ([3.4, None], [1.50, 1.51], [1.60, 1.61], "reproduced"),
        ([1.9, 1.9], [1.50, 1.51], [1.60, 1.61], "in order but not in size"),
        ([3.4, 3.4], [1.70, 1.71], [1.60, 1.61], "not reproduced"),
        ([3.4, 3.4], [1.50, 1.70], [1.60, 1.61], "not reproduced"),  # within the spread
    ],
)
def test_table_7_is_judged_by_its_rule(xavier, scaled, shallow, verdict):
    labels = ("deep, Xavier", "deep, DeepScale", "shallow, Xavier")
    found = [method(label, losses) for label, losses in zip(labels, (xavier, scaled, shallow), strict=True)]
    assert dslm_table7.judge({"tokens": 10**6, "text": "x", "methods": found}).verdict == verdict


def test_table_7_tells_how_much_worse_and_what_longer_runs_gave():
    losses = {"deep, Xavier": [3.5, 3.5], "deep, DeepScale": [1.7, 1.7], "shallow, Xavier": [1.3, 1.3]}
    found = [method(label, values) for label, values in losses.items()]
    data = {"tokens": 10**6, "text": "x", "methods": found, "longer": [method("deep, DeepScale", [1.2, 1.2])]}
    why = dslm_table7.judge(data).why
    assert "DeepScale's perplexity is 49.2% above that of the shallow model." in why
    assert why.endswith("After 4 times as many bytes: deep, DeepScale 1.200 ± 0.000 (2 seeds).")


def test_table_10_is_judged_by_the_order():
    papers = sorted(dslm_table10.PAPER, key=lambda label: min(sum(dslm_table10.PAPER[label]), 99))
    data = {"tokens": 10**6, "methods": [method(label, [1 + place / 10]) for place, label in enumerate(papers)]}
    assert dslm_table10.judge(data).verdict == "reproduced"
    data["methods"] = [method(label, [-place]) for place, label in enumerate(papers)]
    assert dslm_table10.judge(data).verdict == "not reproduced"
    data["methods"] = [method(label, [3.4 + place / 10]) for place, label in enumerate(papers)]
    assert dslm_table10.judge(data).why.startswith("Too small to tell")


def test_the_warm_up_is_judged_by_usable_rates():
    def data(post_without):
        rows = [("post", 0.1, 2.0), ("post", 0.0, post_without), ("pre", 0.1, 2.0), ("pre", 0.0, 2.02)]
        methods = [method(p, [loss], placement=p, warmup=warm) for p, warm, loss in rows]
        return {"rates": [1e-3], "methods": methods}

    assert preln_warmup.judge(data(3.0)).verdict == "reproduced"
    assert preln_warmup.judge(data(2.05)).verdict == "in order but not in size"
    assert preln_warmup.judge(data(2.0)).verdict == "not reproduced"


@pytest.mark.parametrize(
    ("everywhere", "subcritical", "verdict"),
    [(0.8, 0.8, "reproduced"), (0.2, 0.8, "not reproduced"), (0.8, 0.2, "not reproduced")],
)
def test_figure_3_is_judged_by_its_panels(everywhere, subcritical, verdict):
    panels = []
    for activation, norm, mu in apjn_figure3.PANELS:
        accuracy = [0.8, 0.1]
        if mu == 1:
            accuracy = [everywhere] * 2 if norm != "none" else [subcritical] * 2
        panels.append({"activation": activation, "norm": norm, "mu": mu, "accuracy": accuracy, "chi": [1.0, 2.0]})
    data = {"panels": panels, "points": [0, 1], "depth": 1, "width": 1, "epochs": 1}
    assert apjn_figure3.judge(data).verdict == verdict


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["apjn-figur3"], "unknown reproduction 'apjn-figur3'; nearest: apjn-figure3"),
        (["apjn-figure3"], "this study needs data: give --data FOLDER with a folder 'fashion-mnist'"),
        (["apjn-figure3", "--scale", "huge"], "'huge' is not one of 'small', 'full'"),
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
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == list(ITEMS)


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="a folder 'text'"):
        Setting(data=tmp_path).text()

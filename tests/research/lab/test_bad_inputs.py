"""Wrong files, stores of other versions, full disks: one line that says what to do, and nothing computed is lost."""

import errno
import json

import pytest

from sigprop.cli.app import app, exit_code
from sigprop.errors import WriteError
from sigprop.models import build
from sigprop.research.lab import Settings, train
from sigprop.research.lab.data import TextBatches, zipf_tokens
from sigprop.research.lab.sweep import ResultFolder, read_spec, run_locally
from sigprop.results import files
from tests.research.lab import counted_work

SHEET = """
[model]
source = "transformer"
kind = "decoder"
depth = 1
width = 8
heads = 1
context = 8
[data]
passages = 1
length = 8
[train]
steps = 2
[grid]
"train.lr" = [0.01, 0.02]
"""
FILES = {
    "sheet.toml": SHEET,
    "key.toml": SHEET.replace("steps", "stepps"),
    "section.toml": SHEET.replace("[data]", "[dta]"),
    "grid.toml": SHEET.replace('"train.lr"', '"train.rate"'),
    "recipe.toml": SHEET + '"plan.recipe" = ["untit"]\n',
    "half.toml": SHEET + '"plan.recipe" = ["untit", "xavier"]\n',
    "empty_text.toml": SHEET.replace("passages", 'text = "empty.txt"\npassages'),
    "empty.txt": "",
    "blank.txt": " \n\n",
    "binary.bin": "text\0with zero bytes",
    "folder/a.json": json.dumps({"format": 99, "trial": {}, "result": {}}),
    "cut/a.json": '{"format": 1, "tri',
    "other/a.json": "[1, 2]",
    "none/readme.md": "x",
}
TRAIN = ("research", "train", "transformer", "--set", "kind=decoder", "--quiet", "--text")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("bad")
    for name, content in FILES.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(content)
    (made / "latin.txt").write_bytes("schön".encode("latin-1"))
    return made


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*TRAIN, "empty.txt"), "empty.txt is empty: a text file is needed"),
        ((*TRAIN, "blank.txt"), "blank.txt is empty"),
        ((*TRAIN, "binary.bin"), "binary.bin is binary: it holds zero bytes"),
        ((*TRAIN, "latin.txt"), "latin.txt is not UTF-8 text: invalid start byte at byte 3"),
        ((*TRAIN, "nowhere.txt"), "no text file at nowhere.txt"),
        (("research", "sweep", "run", "key.toml", "out"), "key of key.toml in [train] 'stepps'; nearest: steps"),
        (("research", "sweep", "run", "section.toml", "out"), "unknown section of section.toml 'dta'; nearest: data"),
        (("research", "sweep", "run", "grid.toml", "out"), "unknown key of grid.toml in [train] 'rate'"),
        (("research", "sweep", "run", "recipe.toml", "out", "-q"), "unknown recipe 'untit'; nearest: unit"),
        (("research", "sweep", "run", "empty_text.toml", "out", "-q"), "empty.txt is empty"),
        (("research", "sweep", "run", "sheet.toml", "sheet.toml", "-q"), "sheet.toml cannot be made a folder"),
        (("research", "sweep", "show", "folder"), "was written by another version (format 99): this one reads 1"),
        (("research", "sweep", "show", "cut"), "remove it to run the trial again"),
        (("research", "sweep", "show", "other"), "another version (format 'list')"),
        (("research", "sweep", "show", "none"), "has no results"),
        (("research", "sweep", "show", "nowhere"), "has no results: there is no such folder"),
    ],
)
def test_one_line_and_exit_code_2(folder, monkeypatch, capsys, words, message):
    monkeypatch.chdir(folder)
    assert exit_code(app, list(words)) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_trials_that_can_be_run_are_run_and_the_others_told(folder, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(folder)
    assert exit_code(app, ["research", "sweep", "run", "half.toml", str(tmp_path), "-q"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "2 of 4 trials have results" in told
    assert "no result, 2 of 4: UnknownNameError: unknown recipe 'untit'" in told


def full_disk(monkeypatch, free):
    """Writing whole files fails after so many."""
    real, left = files._replace, [free]

    def replace(path, content):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, content)

    monkeypatch.setattr(files, "_replace", replace)


def test_a_full_disk_ends_a_sweep_and_keeps_what_was_computed(tmp_path, monkeypatch, folder, capsys):
    monkeypatch.chdir(folder)
    with monkeypatch.context() as patched:
        full_disk(patched, free=1)
        assert exit_code(app, ["research", "sweep", "run", "sheet.toml", str(tmp_path), "-q"]) == 2
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    kept = ResultFolder(tmp_path).results()
    assert len(kept) == 1
    trials = read_spec("sheet.toml").trials()
    assert run_locally(trials, tmp_path) == []
    assert kept[0] in ResultFolder(tmp_path).results()
    assert sum(ResultFolder(tmp_path).tries(trial) for trial in trials) == 3


def test_a_full_disk_ends_a_training_and_keeps_its_checkpoint(tmp_path, monkeypatch):
    batches = TextBatches(zipf_tokens(500, 16), passages=1, length=8)
    sizes = {"kind": "decoder", "depth": 1, "width": 8, "heads": 1, "context": 8, "vocabulary": 16}
    settings = Settings(steps=6, checkpoint_every=2, log_every=2)
    whole = train(build("transformer", **sizes), batches, settings)
    with monkeypatch.context() as patched:
        full_disk(patched, free=1)
        with pytest.raises(WriteError, match="No space left on device"):
            train(build("transformer", **sizes), batches, settings, folder=tmp_path)
    resumed = train(build("transformer", **sizes), batches, settings, folder=tmp_path)
    assert len(resumed.losses) == len(whole.losses)


def test_a_store_that_was_damaged_is_told_and_the_rest_stays(tmp_path):
    trials = counted_work.trials(tmp_path / "log", 2, 0.0)
    run_locally(trials, tmp_path / "out", work=counted_work.work)
    damaged = sorted((tmp_path / "out").glob("*.json"))[0]
    damaged.write_text("")
    with pytest.raises(ValueError, match="remove it to run the trial again"):
        ResultFolder(tmp_path / "out").results()
    damaged.unlink()
    run_locally(trials, tmp_path / "out", work=counted_work.work)
    assert len(ResultFolder(tmp_path / "out").results()) == 2

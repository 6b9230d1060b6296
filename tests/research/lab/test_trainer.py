"""One run: what it learns, what it leaves on disk, how it goes on after it was stopped."""

import json
import random
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

from sigprop.batches import tensors_in
from sigprop.errors import InputError, UnknownNameError
from sigprop.research.lab import Settings, train
from sigprop.research.lab.data import TextBatches, zipf_tokens
from sigprop.research.lab.settings import Schedule

VOCABULARY = 16


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, input_ids):
        return self.head(self.dropout(self.embed(input_ids)))


def model():
    torch.manual_seed(0)
    return Bigram()


BATCHES = TextBatches(zipf_tokens(2000, VOCABULARY), passages=4, length=12)
SETTINGS = Settings(steps=20, lr=0.05, checkpoint_every=5)


def test_it_learns_the_frequencies():
    run = train(model(), BATCHES, Settings(steps=150, lr=0.05))
    weights = torch.arange(1, VOCABULARY + 1, dtype=torch.float64) ** -1
    entropy = -(weights / weights.sum() * (weights / weights.sum()).log()).sum()
    assert run.losses[0] > entropy + 0.3
    assert run.last < entropy + 0.15


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop", [7, 10, 18])
def test_a_resumed_run_is_bitwise_the_run_that_was_not_stopped(tmp_path, stop):
    whole = model()
    expected = train(whole, BATCHES, SETTINGS, folder=tmp_path / "whole")

    def interrupted(step):
        if step == stop:
            raise Stop
        return BATCHES(step)

    with pytest.raises(Stop):
        train(model(), interrupted, SETTINGS, loss=BATCHES.loss, folder=tmp_path / "parts")
    resumed = model()
    run = train(resumed, BATCHES, SETTINGS, folder=tmp_path / "parts")
    assert run.losses == expected.losses
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    journals = [(tmp_path / name / "journal.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    assert [json.loads(line)["loss"] for line in journals[0]] == [json.loads(line)["loss"] for line in journals[1]]


def test_other_settings_do_not_go_on_with_a_run(tmp_path):
    train(model(), BATCHES, SETTINGS, folder=tmp_path)
    with pytest.raises(InputError, match=r"lr = 0\.05, not 0\.1"):
        train(model(), BATCHES, Settings(steps=20, lr=0.1), folder=tmp_path)


def test_a_damaged_or_foreign_checkpoint_is_named(tmp_path):
    train(model(), BATCHES, SETTINGS, folder=tmp_path)
    with pytest.raises(InputError, match="another model"):
        train(nn.Linear(2, 2), BATCHES, SETTINGS, folder=tmp_path)
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="not a checkpoint"):
        train(model(), BATCHES, SETTINGS, folder=tmp_path)


def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_site():
    sick = model()

    def poisoned(step):
        if step == 3:
            with torch.no_grad():
                sick.head.weight[0, 0] = float("nan")
        return BATCHES(step)

    run = train(sick, poisoned, Settings(steps=20, log_every=1), loss=BATCHES.loss)
    assert run.ended == "loss not finite at step 3, first at parameter head.weight"
    assert len(run.losses) == 4
    assert run.last == float("inf")


def test_schedules():
    assert [Schedule(10, 0.2, "linear", 0.0)(step) for step in (0, 1, 2, 6)] == [0.5, 1.0, 1.0, 0.5]
    assert Schedule(10, 0.0, "constant")(9) == 1.0
    cosine = Schedule(100, 0.1, "cosine", 0.1)
    assert cosine(10) == 1.0
    assert cosine(55) == pytest.approx(0.55)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": "fast"}, "lr"),
        ({"steps": 0}, "steps"),
        ({"warmup": 1.0}, "warmup"),
        ({"decay": "square"}, "decay"),
        ({"mode": "jit"}, "mode"),
        ({"precision": "fp16"}, "precision"),
        ({"clip": -1.0}, "clip"),
        ({"checkpoint_every": -1}, "checkpoint_every"),
    ],
)
def test_wrong_settings_are_named(given, message):
    with pytest.raises(InputError, match=message):
        Settings.of(**given)


def test_an_unknown_setting_is_named():
    with pytest.raises(UnknownNameError, match="wamup"):
        Settings.of(wamup=0.1)


@pytest.mark.slow
def test_a_training_killed_at_random_moments_is_bitwise_the_whole_one(tmp_path):
    chance = random.Random(3)
    sizes = ["kind=decoder", "depth=3", "width=48", "heads=2", "context=48", "dropout=0.1"]
    command = [sys.executable, "-m", "sigprop", "research", "train", "transformer"]
    command += ["--passages", "4", "--length", "48", "--quiet"]
    command += [word for size in sizes for word in ("--set", size)]
    command += ["--train", "steps=240", "--train", "checkpoint_every=7", "--folder"]
    subprocess.run([*command, tmp_path / "whole"], check=True)
    checkpoint = tmp_path / "killed" / "checkpoint.pt"
    for _ in range(4):
        process = subprocess.Popen([*command, tmp_path / "killed"])
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while process.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            time.sleep(0.02)
        time.sleep(chance.random())
        process.kill()
        process.wait()
    subprocess.run([*command, tmp_path / "killed"], check=True)
    whole, killed = (dict(tensors_in(torch.load(path))) for path in (tmp_path / "whole" / "checkpoint.pt", checkpoint))
    assert whole.keys() == killed.keys()
    for name, value in whole.items():
        assert torch.equal(value, killed[name]), name


def test_betas_reach_the_optimizer_and_survive_a_resumption(tmp_path):
    settings = Settings(steps=6, lr=0.05, betas=(0.5, 0.6), checkpoint_every=3)
    whole, stopped = model(), model()
    expected = train(whole, BATCHES, settings)
    assert expected.losses != train(model(), BATCHES, Settings(steps=6, lr=0.05)).losses
    (tmp_path / "run").mkdir()
    train(stopped, BATCHES, settings, folder=tmp_path / "run")
    assert train(stopped, BATCHES, settings, folder=tmp_path / "run").losses == expected.losses
    with pytest.raises(InputError, match="betas"):
        train(
            model(), BATCHES, Settings(steps=6, lr=0.05, betas=(0.5, 0.7), checkpoint_every=3), folder=tmp_path / "run"
        )
    with pytest.raises(InputError, match="two numbers from 0 to below 1"):
        Settings(betas=(0.9, 1.0))


def test_a_warm_up_of_steps_is_shorter_than_the_run():
    assert Schedule(100, warmup=50)(24) == 0.5
    for wrong in (100, 2.5, -1):
        with pytest.raises(InputError, match="whole number of fewer steps"):
            Schedule(100, warmup=wrong)

"""Sweeps: sheets, results that survive being killed, questions to them."""

import json
import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from sigprop.errors import InputError, UnknownNameError
from sigprop.research.lab.sweep import ResultFolder, best_rates, query, read_spec, run_locally, run_on_ray
from sigprop.research.lab.sweep.running import _computed
from sigprop.research.lab.sweep.spec import identity, run_trial
from sigprop.research.lab.sweep.store import rate_figure
from tests.research.lab import counted_work
from tests.research.lab.killed_sweeps import killed_sweep, ray_cluster

SHEET = """
[model]
source = "transformer"
kind = "decoder"
depth = 2
heads = 2
context = 16
vocabulary = 256
[data]
passages = 2
length = 16
[train]
steps = 3
[grid]
"model.width" = [16, 32]
"plan.recipe" = ["default", "xavier"]
"train.lr" = [0.01, 0.02]
"""


def sheet(tmp_path, text):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return read_spec(path)


def test_a_sheet_becomes_trials(tmp_path):
    trials = sheet(tmp_path, SHEET).trials()
    assert len(trials) == 8
    assert trials[1]["model"]["width"] == 16
    assert trials[1]["train"] == {"steps": 3, "lr": 0.02}
    assert len({identity(trial) for trial in trials}) == 8
    shuffled = {key: dict(reversed(value.items())) for key, value in reversed(trials[0].items())}
    assert identity(shuffled) == identity(trials[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("steps = 3", "stepps = 3"), "unknown key .* 'stepps'; nearest: steps"),
        (("[data]", "[dat]"), "unknown section .* 'dat'; nearest: data"),
        (('"train.lr"', '"train.rate"'), "'rate'"),
        (('"train.lr"', "lr"), "'lr'"),
        (("[0.01, 0.02]", "0.01"), "needs a list"),
        (('source = "transformer"', ""), "no source"),
        (("steps = 3", "steps = "), "not TOML"),
    ],
)
def test_what_is_wrong_in_a_sheet_is_named(tmp_path, change, message):
    with pytest.raises((InputError, UnknownNameError), match=message):
        sheet(tmp_path, SHEET.replace(*change))


def test_trials_are_trained_and_asked_about(tmp_path):
    trials = sheet(tmp_path, SHEET).trials()
    assert run_locally(trials, tmp_path / "out", work=run_trial) == []
    best = best_rates(tmp_path / "out")
    assert len(best) == 4
    assert all(item.at_edge and item.seeds == 1 for item in best)
    lowest = query(tmp_path / "out", 'select min(last) as loss from trials where "model.width" = 16')[0]["loss"]
    assert lowest == min(item.loss for item in best if item.cell["model.width"] == 16)
    with pytest.raises(InputError, match=r"no such column.*Columns: model\.source"):
        query(tmp_path / "out", "select loss from trials")


def test_the_best_rate_is_the_lowest_mean_over_seeds(tmp_path):
    folder = ResultFolder(tmp_path)
    losses = {0.1: (3.0, 2.1), 0.2: (1.0, 2.0), 0.4: (0.5, None)}
    for rate, pair in losses.items():
        for seed, last in enumerate(pair):
            folder.put({"train": {"lr": rate, "seed": seed}}, {"last": last})
    (best,) = best_rates(tmp_path)
    assert (best.rate, best.loss, best.seeds, best.at_edge) == (0.2, 1.5, 2, False)
    assert (best.low, best.high) == (0.2, 0.4)  # of seed 1 and of seed 0 alone
    assert best.spread == pytest.approx(0.5**0.5)


def test_results_of_another_version_and_broken_ones_are_named(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(InputError, match="another version"):
        ResultFolder(tmp_path).results()
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(InputError, match="remove it"):
        ResultFolder(tmp_path).results()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made a folder"):
        ResultFolder(tmp_path / "file")


def test_a_claimed_trial_is_not_given_twice(tmp_path):
    trial = {"train": {"lr": 0.1}}
    folder = ResultFolder(tmp_path)
    with folder.claimed(trial) as first, folder.claimed(trial) as second:
        assert (first, second) == (True, False)
    folder.put(trial, {"last": 1.0})
    with folder.claimed(trial) as again:
        assert not again


def test_a_trial_that_kills_its_worker_does_not_stop_the_others(tmp_path):
    trials = counted_work.trials(tmp_path / "log", 4, 0.0)
    trials[1]["data"]["deadly"] = True
    left = run_locally(trials, tmp_path / "out", 2, counted_work.work)
    assert left == [trials[1]]


def assert_nothing_lost(found, kills):
    assert sum(found["kills"].values()) == kills
    assert found["results"] == found["trials"]
    assert found["results lost or changed"] == 0
    assert found["trials run again although their result was there"] == 0
    assert found["trials killed between their end and their file"] <= kills


def test_a_killed_sweep_loses_and_repeats_nothing(tmp_path):
    assert_nothing_lost(killed_sweep(tmp_path, "2", kills=1, count=6, seconds=0.2), kills=1)


def test_a_killed_sweep_on_a_cluster_loses_and_repeats_nothing(tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    with ray_cluster() as address:
        found = killed_sweep(tmp_path, "ray", kills=2, count=8, seconds=0.2, RAY_ADDRESS=address)
    assert_nothing_lost(found, kills=2)


def test_a_finished_trial_never_runs_again(tmp_path):
    trials = counted_work.trials(tmp_path / "log", 3, 0.0)
    for _ in range(2):
        run_locally(trials, tmp_path / "out", work=counted_work.work)
    assert (tmp_path / "log").read_text().count("begin") == 3


def test_a_trial_that_raises_says_why_and_does_not_stop_the_others(tmp_path):
    trials = counted_work.trials(tmp_path / "log", 3, 0.0)
    trials[0]["data"]["wrong"] = True
    folder = ResultFolder(tmp_path / "out")
    for _ in range(2):  # a second start tries it again
        assert run_locally(trials, tmp_path / "out", work=counted_work.work) == [trials[0]]
        assert folder.reason(trials[0]) == "ValueError: no such recipe"
    assert folder.tries(trials[0]) == 2


def test_a_cluster_that_is_not_there(tmp_path, monkeypatch):
    try:
        import ray
    except ImportError:
        with pytest.raises(InputError, match=r"pip install 'sigprop\[ray\]'"):
            run_on_ray([], tmp_path)
        return
    assert not ray.is_initialized()
    for address, message in (("", "no Ray cluster"), ("127.0.0.1:9", "no Ray cluster.*RAY_ADDRESS is 127")):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=message):
            run_on_ray([], tmp_path)


def test_a_worker_writes_where_it_sees_the_folder_and_brings_results_back_elsewhere(tmp_path):
    (trial,) = counted_work.trials(tmp_path / "log", 1, 0.0)
    mark = tmp_path / "mark"
    assert _computed(counted_work.work, trial, str(tmp_path / "out"), str(mark)) == {"last": 0.0, "losses": []}
    folder = ResultFolder(tmp_path / "out")
    assert not folder.is_done(trial)
    mark.touch()
    for _ in range(2):
        assert _computed(counted_work.work, trial, str(tmp_path / "out"), str(mark)) is None
        assert folder.is_done(trial)
    assert (tmp_path / "log").read_text().count("begin") == 2
    assert folder.tries(trial) == 1


def test_a_cluster_goes_on_after_lost_workers_and_wrong_trials(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    trials = counted_work.trials(tmp_path / "log", 4, 0.0)
    trials[0]["data"]["deadly"] = True
    trials[1]["data"]["wrong"] = True
    with ray_cluster() as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        try:
            left = run_on_ray(trials, tmp_path / "out", counted_work.work)
        finally:
            ray.shutdown()
    folder = ResultFolder(tmp_path / "out")
    assert left == trials[:2]
    assert folder.reason(trials[1]) == "ValueError: no such recipe"
    assert "lost 3 times with its worker" in folder.reason(trials[0])


def test_the_optimum_is_drawn_against_width_with_its_spread(tmp_path, monkeypatch):
    folder = ResultFolder(tmp_path / "out")
    for width, best in ((32, 0.2), (64, 0.1)):
        for rate in (0.05, 0.1, 0.2, 0.4):
            for seed in range(2):
                loss = abs(math.log2(rate / best)) + 0.1 * seed
                trial = {"model": {"width": width}, "train": {"lr": rate, "seed": seed}}
                folder.put(trial, {"last": loss})
    assert [(item.cell["model.width"], item.rate) for item in best_rates(tmp_path / "out")] == [(32, 0.2), (64, 0.1)]
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: drawn.append(figure))
    rate_figure(tmp_path / "out", tmp_path / "figure.png")
    losses, optima = drawn[0].axes
    assert len(losses.lines) >= 2
    points = optima.containers[0].lines[0].get_xydata().tolist()
    assert points == [[32.0, 0.2], [64.0, 0.1]]


@pytest.mark.parametrize("where", ["local", "ray"])
def test_the_stored_figures_of_ten_kills(where):
    found = json.loads((Path(__file__).parents[3] / "docs" / "data" / "killed_sweeps.json").read_text())[where]
    assert_nothing_lost(found, kills=10)
    assert found["trials killed between their end and their file"] == 0

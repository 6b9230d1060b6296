"""`sigprop watch` and `sigprop research kernels`."""

import json

import pytest
import torch

from sigprop.cli.app import app, exit_code
from sigprop.monitoring import Watch, recorded_run
from tests.monitoring.shared import batches, small_model, train


def recorded(folder, broken):
    model = small_model(depth=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0) if broken else None
    with Watch(model, every=2, folder=folder) as watch:
        train(model, batches(9), watch, optimizer)
    return watch


@pytest.mark.parametrize("broken", [False, True])
def test_a_recorded_run_says_what_the_watch_said(tmp_path, capsys, broken):
    watch = recorded(tmp_path, broken)
    report, history = recorded_run(tmp_path)
    assert [finding.name for finding in report.findings] == [finding.name for finding in watch.findings]
    assert len(history) == len(watch.history)
    page = tmp_path / "run.html"
    assert bool(watch.findings) == broken
    assert exit_code(app, ["watch", str(tmp_path), "--json", "--html", str(page)]) == int(broken)
    shown = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["title"] for finding in shown] == [finding.title for finding in watch.findings]
    assert "<svg" in page.read_text()


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert exit_code(app, ["watch", str(tmp_path)]) == 2
    assert "has no recorded run" in capsys.readouterr().err


def test_kernels_of_a_linear_network_are_its_overlaps(capsys):
    """A linear network keeps every overlap, and each of its weight layers adds one to the NTK of equal inputs."""
    settings = ("--set", "depth=2", "--set", "activation=identity", "--set", "sigma_w=1")
    assert exit_code(app, ["research", "kernels", *settings, "--overlap", "0.5", "--overlap", "1", "--json"]) == 0
    half, one = json.loads(capsys.readouterr().out)
    assert (half["nngp"], one["nngp"]) == (pytest.approx(0.5), pytest.approx(1.0))
    assert half["ntk"] == pytest.approx(one["ntk"] / 2)

"""Each tracker's own package, writing to a local folder; and the history after a kill."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from sigprop.monitoring import Watch, read_samples
from sigprop.monitoring.history import read_events
from tests.monitoring.shared import batches, small_model, train

KEY = "variance/blocks.*.mlp/worst"


def watched(tmp_path, sink, steps: int = 3) -> Watch:
    model = small_model()
    with Watch(model, every=1, folder=tmp_path, sinks=[sink]) as watch:
        train(model, batches(steps), watch)
    assert [sample.step for sample in watch.history] == list(range(steps))
    assert KEY in watch.scalars.values
    return watch


def test_tensorboard_holds_every_scalar(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    watch = watched(tmp_path, "tensorboard")
    reader = events.EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    assert set(reader.Tags()["scalars"]) >= set(watch.scalars.values)
    points = reader.Scalars(KEY)
    assert [point.step for point in points] == [0, 1, 2]
    assert points[-1].value == pytest.approx(watch.scalars.values[KEY], rel=1e-6)


def test_wandb_offline_holds_every_scalar(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    watched(tmp_path, "wandb")
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"sigprop/" + KEY.encode() in file.read_bytes()


def test_mlflow_holds_every_scalar(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    watched(tmp_path, "mlflow")
    (run,) = mlflow.search_runs(output_format="list") or mlflow.MlflowClient().search_runs(["0"])
    points = mlflow.MlflowClient().get_metric_history(run.info.run_id, "sigprop/" + KEY.replace("*", "_"))
    assert [point.step for point in points] == [0, 1, 2]


def test_trackio_holds_every_scalar(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    try:
        importlib.import_module("trackio")
    except ImportError as error:
        pytest.skip(f"trackio cannot be imported: {error}")
    watched(tmp_path, "trackio")
    assert any(path.suffix == ".db" and path.stat().st_size for path in tmp_path.rglob("*"))


CHILD = """
import torch, sys
from sigprop.monitoring import Watch
from tests.monitoring.shared import batches, small_model, train
model = small_model()
with Watch(model, every=1, folder=sys.argv[1]) as watch:
    train(model, batches(100000), watch)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_the_history_is_readable_after_a_kill(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], cwd=os.getcwd())
    history = tmp_path / "history.jsonl"
    try:
        deadline = time.monotonic() + 120.0
        while not history.exists() or history.read_text().count('"sample"') < 4:
            assert time.monotonic() < deadline, "no samples were written"
            assert child.poll() is None, "the run ended by itself"
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    samples = read_samples(tmp_path)
    assert [sample.step for sample in samples] == list(range(len(samples)))
    assert len(samples) >= 4
    assert samples[-1].sites["blocks.1"]["variance"] > 0.0


def test_a_line_cut_off_by_a_kill_is_left_out_and_the_next_run_stands_alone(tmp_path):
    watched_once = small_model()
    with Watch(watched_once, every=1, folder=tmp_path) as watch:
        train(watched_once, batches(3), watch)
    path = tmp_path / "history.jsonl"
    path.write_text(path.read_text()[:-200])
    assert [sample.step for sample in read_samples(tmp_path)] == [0, 1]
    with Watch(watched_once, every=1, folder=tmp_path, start=2) as watch:
        train(watched_once, batches(1), watch)
    assert [sample.step for sample in read_samples(tmp_path)] == [0, 1, 2]
    assert all(json.loads(json.dumps(event)) for event in read_events(tmp_path))

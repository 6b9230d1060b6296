"""Two processes see what one process with the whole batch sees."""

import math
import subprocess
import sys

import pytest
import torch

from sigprop.monitoring import Watch, read_samples
from sigprop.monitoring.ranks import StepRecord, join
from sigprop.monitoring.recording import correlation_about
from tests.monitoring.shared import batches, small_model, train
from tests.monitoring.two_processes import STEPS

ROUNDING = 1e-6
NOT_ALIKE = ("unmoved",)
"""A share of exact zeros: rounding decides it."""
ROUNDING_ONLY = "key.bias"
"""Its gradient is zero (the softmax does not see a shift of all scores) up to rounding."""
SHARED, SUMMED = "position_embedding", {"grad_variance", "grad_token_correlation"}
"""All examples share the positions; the square of a sum over processes is left out rather than guessed."""


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    model = small_model().double()
    with Watch(model, every=2, folder=folder) as watch:
        train(model, batches(STEPS), watch)
    return read_samples(folder)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    folder = tmp_path_factory.mktemp("two")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "tests.monitoring.two_processes", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_give_the_numbers_of_one(kind, two_processes, one_process):
    samples = read_samples(two_processes / kind)
    assert [s.step for s in samples] == [s.step for s in one_process] == [0, 2]
    compared = 0
    for got, wanted in zip(samples, one_process, strict=True):
        assert math.isclose(got.loss, wanted.loss, rel_tol=ROUNDING)
        for table in ("sites", "parameters", "groups"):
            left, right = getattr(got, table), getattr(wanted, table)
            assert list(left) == list(right)
            for name, row in right.items():
                summed = SUMMED if name == SHARED else set()
                assert set(left[name]) == set(row) - summed, name
                for column, value in row.items():
                    if column in NOT_ALIKE or column in summed or name.endswith(ROUNDING_ONLY):
                        continue
                    near_zero = ROUNDING if column.endswith(("correlation", "mean", "against")) else 0.0
                    assert math.isclose(left[name][column], value, rel_tol=ROUNDING, abs_tol=near_zero), (name, column)
                    compared += 1
        for key, value in wanted.run.items():
            assert math.isclose(got.run[key], value, rel_tol=1e-5), key
    assert compared > 500


def test_a_tensor_parallel_mesh_gives_the_numbers_of_one(two_processes, one_process):
    """Ranks share the data; a site that is split over channels has no token correlation of its own."""
    for got, wanted in zip(read_samples(two_processes / "tp"), one_process, strict=True):
        for name, row in wanted.parameters.items():
            for column in ("second_moment", "grad_second_moment", "update_ratio", "denominator"):
                if not name.endswith(ROUNDING_ONLY):
                    assert math.isclose(got.parameters[name][column], row[column], rel_tol=ROUNDING), (name, column)
        for name, row in wanted.sites.items():
            for column in ("variance", "grad_variance"):
                if column in row:
                    assert math.isclose(got.sites[name][column], row[column], rel_tol=ROUNDING), (name, column)
        assert got.run == pytest.approx(wanted.run, rel=1e-5)


def test_correlation_about_a_common_mean_is_that_of_the_whole():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 8, 16, generator=generator, dtype=torch.float64) + 0.7
    x[3:] += 0.02
    records = []
    for part in (x[:3], x[3:]):
        row = {key: float(value) for key, value in correlation_about(part, None).items()}
        row |= {"mean": float(part.mean()), "variance": float(part.var(correction=0)), "entries": part.numel()}
        records.append(StepRecord(0, sites={"a": row}))
    joined = join(records, 2).sites["a"]
    units = torch.nn.functional.normalize(x - x.mean(), dim=2)
    cosines = units @ units.mT
    exact = (cosines.sum((1, 2)) - 8) / 56
    assert joined["token_correlation"] == pytest.approx(float(exact.mean()), abs=1e-7)
    assert joined["variance"] == pytest.approx(float(x.var(correction=0)), rel=1e-12)

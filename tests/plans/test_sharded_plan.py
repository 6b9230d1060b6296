"""`plan.apply_` on sharded parameters gives the numbers of one process, whatever the mesh, piece by piece."""

import subprocess
import sys

import pytest
import torch

import sigprop as sp
from sigprop.models import build
from sigprop.plans import Plan, writing
from sigprop.plans.application import _values
from sigprop.results.parameters import Init
from tests.plans.sharded_plan import SETTINGS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    folder = tmp_path_factory.mktemp("sharded")
    sp.plan(build("transformer", **SETTINGS), "unit", batch=torch.zeros(1, 8, dtype=torch.long)).to_json(
        folder / "plan.json"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launch, "-m", "tests.plans.sharded_plan", str(folder)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("kind", ["fsdp2", "tp"])
@pytest.mark.parametrize("seeded", [True, False])
def test_two_processes_have_the_numbers_of_one(folder, kind, seeded):
    model = build("transformer", **SETTINGS)
    torch.manual_seed(7)
    Plan.from_json(folder / "plan.json").apply_(model, torch.Generator().manual_seed(3) if seeded else None)
    found = torch.load(folder / f"{kind}_{seeded}.pt", weights_only=True)
    assert len(found) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert torch.equal(found[name], parameter), name


@pytest.mark.parametrize("shape", [(5,), (40,), (33, 7), (64, 48), (100, 3, 3), (17, 1)])
@pytest.mark.parametrize("kind", writing.STREAMED)
def test_pieces_are_the_whole(shape, kind, monkeypatch):
    monkeypatch.setattr(writing, "PIECE", 64)
    whole = _values(Init(kind, std=0.5), shape, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    rows = writing._pieces(shape)
    assert sum(rows) == shape[0]
    pieces = [_values(Init(kind, std=0.5), (count, *shape[1:]), generator) for count in rows]
    assert torch.equal(torch.cat(pieces), whole)
    width = whole[0].numel()
    assert max(rows) * width <= max(64, 16 * width) + 16 * width

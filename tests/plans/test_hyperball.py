"""Optimizers on the sphere keep every norm, turn by the angle that is asked, and train."""

import math

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.errors import UnsupportedError
from sigprop.models import build
from sigprop.plans.matrix_optimizers import AdamH, MuonH, NorMuon
from tests.plans.shared import SHARDED_STEPS


def gpt():
    return build("transformer", vocabulary=19, context=12, width=32, depth=2, heads=4)


def tokens():
    return torch.randint(0, 19, (4, 12), generator=torch.Generator().manual_seed(0))


def angle(before, after):
    """From the chord: a small angle's cosine has too few digits."""
    one, other = (item.double() / item.double().norm() for item in (before, after))
    return 2.0 * float(torch.arcsin((one - other).norm() / 2.0))


@pytest.mark.parametrize("kind", [AdamH, MuonH])
@pytest.mark.parametrize("shape", [(8, 24), (3, 6, 10)])
def test_every_matrix_keeps_its_norm_and_turns_by_the_angle(kind, shape):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(shape))
    before = weight.detach().clone()
    optimizer = kind([weight], lr=0.01)
    for _ in range(3):
        weight.grad = torch.randn(shape)
        optimizer.step()
        torch.testing.assert_close(
            torch.linalg.matrix_norm(weight.detach()), torch.linalg.matrix_norm(before), rtol=1e-5, atol=0.0
        )
    weight.grad = torch.randn(shape)
    last = weight.detach().clone()
    optimizer.step()
    turned = [
        angle(*pair)
        for pair in zip(last.reshape(-1, *shape[-2:]), weight.detach().reshape(-1, *shape[-2:]), strict=True)
    ]
    # what points along the weight itself does not turn it: at most the angle, and nearly all of it for random updates
    assert all(0.7 * 0.01 < each <= 0.01001 for each in turned)


def test_the_update_is_that_of_adam():
    """Two steps by hand: bias corrections, the ratio, the turn."""
    torch.manual_seed(1)
    weight, gradients = nn.Parameter(torch.randn(4, 5)), torch.randn(2, 4, 5)
    wanted, radius = weight.detach().clone(), weight.detach().norm()
    optimizer, average, squares = AdamH([weight], lr=0.1, betas=(0.9, 0.95), eps=1e-8), 0.0, 0.0
    for step, gradient in enumerate(gradients, 1):
        weight.grad = gradient
        optimizer.step()
        average, squares = 0.9 * average + 0.1 * gradient, 0.95 * squares + 0.05 * gradient**2
        update = (average / (1 - 0.9**step)) / ((squares / (1 - 0.95**step)).sqrt() + 1e-8)
        wanted = wanted - 0.1 * radius * update / update.norm()
        wanted = wanted * radius / wanted.norm()
        torch.testing.assert_close(weight.detach(), wanted, rtol=1e-4, atol=1e-6)


def test_rows_of_normuon_have_one_size_and_the_norm_of_muon():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(6, 20))
    weight.grad = torch.randn(6, 20) * torch.arange(1.0, 7.0)[:, None]
    NorMuon([weight], lr=1.0, weight_decay=0.0).step()
    rows = weight.detach().norm(dim=1)
    assert float(rows.std() / rows.mean()) < 0.02
    assert float(weight.detach().norm()) == pytest.approx(math.sqrt(6), rel=0.15)  # singular values from 0.7 to 1.2


def test_a_matrix_that_starts_at_zero_is_refused():
    weight = nn.Parameter(torch.zeros(3, 4))
    weight.grad = torch.ones(3, 4)
    with pytest.raises(UnsupportedError, match="no norm to keep"):
        AdamH([weight]).step()


@pytest.mark.parametrize("optimizer", ["adamh", "muonh", "normuon", "muon:rms", "adamw"])
def test_a_plan_without_a_rate_trains(optimizer):
    torch.manual_seed(0)
    model = gpt()
    plan = sp.plan(model, "unit", width="mup", optimizer=optimizer, batch=tokens())
    plan = type(plan).from_json(plan.to_json())
    plan.apply_(model)
    radii = {row.name: model.get_parameter(row.name).detach().norm() for row in plan if row.role == "hidden"}
    assert radii
    optimizers = plan.optimizers(model)
    trained = [name for each in optimizers for group in each.param_groups for name in group["param_names"]]
    assert sorted(trained) == sorted(name for name, _ in model.named_parameters())
    losses = []
    for _ in range(8):
        logits = model(tokens())
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        for each in optimizers:
            each.step()
            each.zero_grad()
    assert losses[-1] < losses[0] - 0.1
    if optimizer in ("adamh", "muonh"):
        for name, radius in radii.items():
            torch.testing.assert_close(model.get_parameter(name).detach().norm(), radius, rtol=1e-5, atol=0.0)


@SHARDED_STEPS
@pytest.mark.parametrize("kind", [AdamH, MuonH, NorMuon])
def test_it_trains_sharded_weights(tmp_path, kind):
    """FSDP2 on one process: the same numbers as whole."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    plain = nn.Linear(6, 4, bias=False)
    sharded = nn.Linear(6, 4, bias=False)
    sharded.load_state_dict(plain.state_dict())
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        fully_shard(sharded, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        for model in (plain, sharded):
            optimizer = kind(model.parameters(), lr=0.1)
            for step in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 6) + step * torch.arange(6)).square().sum().backward()
                optimizer.step()
        torch.testing.assert_close(sharded.weight.full_tensor(), plain.weight.detach())
    finally:
        dist.destroy_process_group()

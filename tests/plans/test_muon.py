"""Muon for stacks and convolutions: torch's on each matrix, and plans that train every hidden weight with it."""

import copy

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.plans.matrix_optimizers import Muon, matrix_shape, orthogonal


def matrices(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def stepped(optimizer, weight, gradients):
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has a Muon since 2.9")
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_one_matrix_trains_as_with_torch(shape, adjust):
    start, gradients = matrices(*shape), matrices(3, *shape)
    own, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    options = {"lr": 0.1, "weight_decay": 0.2, "adjust_lr_fn": adjust}
    found = stepped(Muon([own], **options), own, gradients)
    wanted = stepped(torch.optim.Muon([theirs], **options), theirs, gradients)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.1 * 0.2 * 2**-7 * 20)


def test_a_stack_is_its_matrices_one_by_one():
    start, gradients = matrices(3, 8, 16), matrices(2, 3, 8, 16)
    stack = nn.Parameter(start.clone())
    found = stepped(Muon([stack], lr=0.1), stack, gradients)
    for place in range(3):
        one = nn.Parameter(start[place].clone())
        torch.testing.assert_close(
            found[place], stepped(Muon([one], lr=0.1), one, gradients[:, place]), rtol=0, atol=0.003
        )


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_convolution_is_a_matrix_for_each_of_its_groups(groups):
    convolution = nn.Conv2d(8, 16, 3, groups=groups, bias=False)
    shape = tuple(convolution.weight.shape)
    rows, columns = matrix_shape(shape, convolution)
    assert (rows, columns) == (16 // groups, 8 // groups * 9)
    before = convolution.weight.detach().clone()
    optimizer = Muon([{"params": [convolution.weight], "filters": groups}], lr=1.0, weight_decay=0.0)
    after = stepped(optimizer, convolution.weight, [matrices(*shape)])
    update = (before - after).reshape(groups, rows, columns)
    sizes = torch.linalg.svdvals(update) / max(1.0, rows / columns) ** 0.5
    assert sizes.min() > 0.6
    assert sizes.max() < 1.3


def test_orthogonal_factors_of_stacks_have_singular_values_near_one():
    found = torch.linalg.svdvals(orthogonal(matrices(4, 6, 9)).float())
    assert found.min() > 0.6
    assert found.max() < 1.3


class Experts(nn.Module):
    """Each token through one of the experts, stacked in one weight."""

    def __init__(self, width, count=2):
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, width, 2 * width) / width**0.5)
        self.down = nn.Parameter(torch.randn(count, 2 * width, width) / (2 * width) ** 0.5)

    def forward(self, x):
        inside = torch.einsum("btd,edh->ebth", x, self.up).relu()
        return torch.einsum("ebth,ehd->btd", inside, self.down)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.experts = nn.LayerNorm(width), Experts(width)

    def forward(self, x):
        return x + self.experts(self.norm(x))


class Images(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x).relu())
        return self.head(x.mean((-2, -1)))


def stacked_model():
    return nn.Sequential(nn.Embedding(32, 16), Block(16), Block(16), nn.LayerNorm(16), nn.Linear(16, 32))


CASES = {
    "experts": (stacked_model, torch.randint(0, 32, (2, 8)), ["1.experts.up", "1.experts.down"]),
    "convolutions": (Images, torch.randn(2, 3, 8, 8), ["blocks.0.weight", "blocks.1.weight"]),
}


@pytest.mark.parametrize("scale", ["muon", "muon:rms", "muon:unit"])
@pytest.mark.parametrize("case", CASES)
def test_plans_give_stacks_and_convolutions_to_muon(case, scale):
    make, batch, names = CASES[case]
    torch.manual_seed(0)
    model = make()
    plan = sp.plan(model, "own", width="mup", optimizer=scale, batch=batch)
    muon, adamw = plan.optimizers(model, lr=0.01, weight_decay=0.1)
    trained = [name for group in muon.param_groups for name in group["param_names"]]
    assert set(names) <= set(trained)
    assert len(trained) + sum(len(group["params"]) for group in adamw.param_groups) == len(list(model.parameters()))
    before = copy.deepcopy(model.state_dict())
    model(batch).square().mean().backward()
    for each in (muon, adamw):
        each.step()
    after = model.state_dict()
    assert all((after[name] - before[name]).abs().max() > 0 for name in trained)


@pytest.mark.parametrize("scale", ["muon", "muon:rms"])
def test_the_rate_of_a_stack_is_that_of_its_matrices(scale):
    """mup's rate for one expert and for a plain linear layer of the same shape is one."""
    torch.manual_seed(0)
    batch = torch.randint(0, 32, (2, 8))
    rates = {}
    for width in (32, 128):
        model = nn.Sequential(nn.Embedding(32, width), Block(width), nn.LayerNorm(width), nn.Linear(width, 32))
        rates[width] = sp.plan(model, "own", width="mup", optimizer=scale, batch=batch)["1.experts.up"].lr
    assert rates[128] / rates[32] == pytest.approx(1.0 if scale == "muon" else 4**-0.5)

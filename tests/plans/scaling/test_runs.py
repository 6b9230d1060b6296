"""What one training of a build records."""

import pytest
import torch
from torch import nn

from sigprop.errors import InputError
from sigprop.models import build
from sigprop.plans.scaling import plan as prescribe
from sigprop.plans.scaling.training import Training, make_step

OPTIMIZERS = ["sgd", "momentum", "adam", "adamw", "sign", "lion", "adafactor", "muon:shape", "muon:rms"]


def tokens():
    return torch.randint(0, 19, (3, 12), generator=torch.Generator().manual_seed(0))


def gpt(seed, **settings):
    torch.manual_seed(seed)
    settings = {"width": 32, "depth": 2, "heads": 4} | settings
    return build("transformer", vocabulary=19, context=12, **settings).double()


def trained(model, optimizer="adamw", plan=None, batch=None, loss=None):
    step = make_step(tokens() if batch is None else batch, loss)
    return Training(plan, step, optimizer, 1e-2, steps=3).run(model)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer):
    settings = {"bias": False, "tied_head": optimizer == "adamw"}
    base = gpt(0, width=16, **settings)
    plan = prescribe(gpt(0, **settings), "mup", base=base, optimizer=optimizer)
    run, other = (trained(gpt(seed, **settings), optimizer, plan) for seed in (0, 1))
    assert {key[0] for key in run.sizes} == {"activation", "change", "gradient", "weight", "update"}
    assert run.sizes.keys() == other.sizes.keys()
    assert run.sizes != other.sizes


def test_dropout_meets_the_same_random_numbers():
    run, again, still = (trained(gpt(0, dropout=rate, bias=False)) for rate in (0.3, 0.3, 0.0))
    assert run.sizes == again.sizes
    assert run.sizes["activation", "output", 0] != pytest.approx(still.sizes["activation", "output", 0])


class InPlace(nn.Module):
    """The activation overwrites what the first layer returned."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(self.first(x).relu_())


def test_sites_are_recorded_before_they_are_overwritten():
    def make(seed):
        torch.manual_seed(seed)
        return InPlace().double()

    batch = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    run = trained(make(0), "sgd", batch=batch, loss=lambda out, _: out.square().mean())
    model = make(0)
    before = model.first(batch).detach()
    for _ in range(3):
        model(batch).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-2 * parameter.grad
                parameter.grad = None
    moved = (model.first(batch) - before).square().mean().sqrt().item()
    assert run.sizes["change", "first", 3] == pytest.approx(moved)


def test_a_mistake_of_the_user_is_not_hidden():
    def broken(output, batch):
        raise TypeError("no such loss")

    with pytest.raises(InputError, match=r"function broken, failed .* TypeError: no such loss"):
        trained(gpt(0), loss=broken)

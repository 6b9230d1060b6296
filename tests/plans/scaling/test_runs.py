"""Seeds trained together give the numbers of seeds trained one by one, or say why they were not."""

import pytest
import torch
from torch import nn

from sigprop.errors import InputError
from sigprop.models import build
from sigprop.plans.scaling import coord_check, parametrize
from sigprop.plans.scaling.training import Training, make_step, worth_stacking

OPTIMIZERS = ["sgd", "momentum", "adam", "adamw", "sign", "lion", "adafactor", "muon:shape", "muon:rms"]


def tokens():
    return torch.randint(0, 19, (3, 12), generator=torch.Generator().manual_seed(0))


def gpt(seed, **settings):
    torch.manual_seed(seed)
    settings = {"width": 32, "depth": 2, "heads": 4} | settings
    return build("transformer", vocabulary=19, context=12, **settings).double()


def both(make, optimizer="adamw", plan=None, batch=None, loss=None, seeds=3):
    step = make_step(tokens() if batch is None else batch, loss)
    training = Training(plan, step, optimizer, 1e-2, steps=3)
    return [training.run([make(seed) for seed in range(seeds)], together) for together in (True, False)]


def assert_same(together, alone):
    """All sizes, in float64. (Biases without a gradient are left out of the networks: rounding, normalized.)"""
    assert len(together) == len(alone)
    for left, right in zip(together, alone, strict=True):
        assert left.channels == right.channels
        assert left.sizes.keys() == right.sizes.keys()
        for key, size in right.sizes.items():
            assert left.sizes[key] == pytest.approx(size, rel=1e-9, abs=1e-12), key


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer):
    settings = {"bias": False, "tied_head": optimizer == "adamw"}
    base = gpt(0, width=16, **settings)
    plan = parametrize(gpt(0, **settings), "mup", base=base, optimizer=optimizer)
    (together, way), (alone, other) = both(lambda seed: gpt(seed, **settings), optimizer, plan)
    assert (way, other) == ("together", "one by one")
    assert_same(together, alone)
    assert {key[0] for key in together[0].sizes} == {"activation", "change", "gradient", "weight", "update"}
    assert together[0].sizes != together[1].sizes


def test_dropout_meets_the_same_random_numbers():
    (together, way), (alone, _) = both(lambda seed: gpt(seed, dropout=0.3, bias=False))
    assert way == "together"
    still, _ = both(lambda seed: gpt(seed, bias=False))[1]
    assert together[0].sizes["activation", "output", 0] != pytest.approx(still[0].sizes["activation", "output", 0])
    assert_same(together, alone)


def images(seed):
    torch.manual_seed(seed)
    layers = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)
    return nn.Sequential(*layers).double()


def test_batch_norm_keeps_its_statistics_by_seed():
    batch = torch.randn(4, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (together, way), (alone, _) = both(images, batch=batch, loss=lambda out, _: out.square().mean())
    assert way == "together"
    assert_same(together, alone)


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
    (together, _), (alone, _) = both(make, "sgd", batch=batch, loss=lambda out, _: out.square().mean())
    assert_same(together, alone)
    model = make(0)
    before = model.first(batch).detach()
    for _ in range(3):
        model(batch).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-2 * parameter.grad
                parameter.grad = None
    moved = (model.first(batch) - before).square().mean().sqrt().item()
    assert alone[0].sizes["change", "first", 3] == pytest.approx(moved)


class Branching(nn.Module):
    """Asks for a value in the middle, which `vmap` cannot answer for all seeds at once."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x)
        return self.second(x if x.sum() > 0 else -x)


def test_what_vmap_refuses_is_trained_one_by_one_and_said():
    def make(seed):
        torch.manual_seed(seed)
        return Branching()

    batch = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    (found, way), (alone, _) = both(make, batch=batch, loss=lambda out, _: out.square().mean())
    assert way.startswith("one by one, since vmap refused: ")
    assert [run.sizes for run in found] == [run.sizes for run in alone]


def test_a_mistake_of_the_user_is_not_hidden():
    def broken(output, batch):
        raise TypeError("no such loss")

    with pytest.raises(InputError, match=r"function broken, failed .* TypeError: no such loss"):
        both(gpt, loss=broken)


def test_the_choice_and_what_the_report_says():
    assert worth_stacking(gpt(0), 3)
    assert not worth_stacking(gpt(0), 1)
    assert not worth_stacking(gpt(0, width=256), 3)

    def make(width):
        return build("transformer", vocabulary=19, context=12, width=width, depth=1, heads=4)

    chosen = coord_check(make, [32, 64], batch=tokens(), seeds=2, steps=1)
    assert chosen.meta["trained"] == {"together": [(32,), (64,)]}
    asked = coord_check(make, [32, 64], batch=tokens(), seeds=2, steps=1, vectorize=False)
    assert asked.meta["trained"] == {"one by one": [(32,), (64,)]}
    for left, right in zip(chosen.exponents, asked.exponents, strict=True):
        if "key.bias" not in left.name:
            assert left.sizes == pytest.approx(right.sizes, rel=1e-3), left.name


def test_little_room_to_wait_changes_nothing(monkeypatch):
    (roomy, _), _ = both(lambda seed: gpt(seed, bias=False))
    monkeypatch.setattr("sigprop.plans.scaling.record.MOST_BYTES", 1)
    (tight, way), (alone, _) = both(lambda seed: gpt(seed, bias=False))
    assert way == "together"
    assert_same(tight, alone)
    assert_same(tight, roomy)

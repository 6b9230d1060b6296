"""A tensor, a tuple, a mapping, (inputs, targets) or a DataLoader: the same everywhere."""

import dataclasses
import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sigprop as sp
from sigprop.batches import Labelled, as_batch, leaves, mapped, run
from sigprop.errors import InputError
from sigprop.inputs import made_up_batch
from sigprop.plans.scaling import coord_check

X, Y = torch.linspace(-1, 1, 48).reshape(8, 6), torch.arange(8) % 3


def net(width=16):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


def loader():
    return DataLoader(TensorDataset(X, Y), batch_size=8)


PAIRS = {
    "tuple": lambda: (X, Y),
    "list": lambda: [X, Y],
    "loader": loader,
    "mapping": lambda: {"input": X, "labels": Y},
}


@pytest.mark.parametrize("form", PAIRS)
def test_inputs_and_targets_are_measured_and_predicted(form):
    batch = PAIRS[form]
    measured = sp.measure(net(), batch(), "cross_entropy")
    expected = nn.functional.cross_entropy(net()(X), Y)
    assert measured.meta["loss_value"] == pytest.approx(float(expected))
    assert measured.to_json() == sp.measure(net(), (X, Y), "cross_entropy").to_json()
    assert sp.predict(net(), batch(), loss="cross_entropy", verify=2).meta["loss"] == "cross_entropy"
    assert sp.check(net(), batch(), loss="cross_entropy", prescription=False).measured is not None


@pytest.mark.parametrize("form", PAIRS)
def test_plans_and_the_coordinate_check_take_the_same(form):
    assert len(sp.plan(net(), "xavier", batch=PAIRS[form]())) == 4
    report = coord_check(net, [8, 16], batch=PAIRS[form](), loss="cross_entropy", plan=None, steps=1, seeds=1)
    assert report.exponents


def test_a_loss_of_the_users_own_gets_what_the_user_brought():
    def loss(output, batch):
        return nn.functional.cross_entropy(output, batch[1])

    expected = float(nn.functional.cross_entropy(net()(X), Y))
    assert sp.measure(net(), (X, Y), loss).meta["loss_value"] == pytest.approx(expected)
    assert sp.predict(net(), (X, Y), loss=loss, verify=2).meta["loss"].startswith("function")


def test_a_forward_with_room_for_targets_gets_them():
    class Own(nn.Linear):
        def forward(self, x, targets=None):
            return super().forward(x), super().forward(x).square().mean()

    assert as_batch((X, Y), Own(6, 3)) == (X, Y)
    assert as_batch((X, Y, Y), nn.Linear(6, 3)) == (X, Y, Y)  # refused by the model, in its own words


def test_nests_keep_their_form():
    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor

    assert [place for place, _ in leaves({"a": (X, [Y]), "b": Output(X)})] == ["[a][0]", "[a][1][0]", "[b][logits]"]
    batch = as_batch((X, Y), net())
    halves = mapped(batch, lambda item: item[:4])
    assert isinstance(halves, Labelled)
    assert [len(item) for item in (halves["input"], halves["labels"], *halves.given)] == [4] * 4
    assert torch.equal(run(net(), batch), net()(X))


class Positions(nn.Module):
    def __init__(self, config=None, table=True):
        super().__init__()
        self.config = config
        self.wpe = nn.Embedding(20, 8) if table else None
        self.wte = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50)

    def forward(self, ids):
        x = self.wte(ids)
        return self.head(x + self.wpe.weight[: ids.shape[1]] if self.wpe is not None else x)


class Config:
    block_size = 12


@pytest.mark.parametrize(
    ("model", "length"), [(Positions(), 20), (Positions(Config(), False), 12), (Positions(Config()), 12)]
)
def test_a_random_batch_fits_the_positions_of_a_model(model, length):
    ids = made_up_batch(model, 128)
    assert ids.shape == (1, length)
    assert int(ids.max()) > 20  # words, not positions
    assert sp.predict(model, verify=2).sites
    assert len(sp.plan(model, "xavier")) == len(list(model.parameters()))
    assert sp.check(model, prescription=False).meta["measured"]


def test_a_length_that_is_asked_for_is_the_length_of_the_batch():
    found = sp.predict(lambda: Positions(None, False), tokens=300, verify=0)
    assert "continued from 64 and 128 tokens to 300" in found["head"].reason


class Lookups(nn.Module):
    """Words and positions: the positions are too few."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(100, 8), nn.Embedding(4, 8)

    def forward(self, ids):
        return self.words(ids) + self.places(torch.arange(ids.shape[1]))


@pytest.mark.parametrize("ask", [sp.measure, sp.predict])
@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (torch.full((2, 6), 99), "'places' has 4 rows, and what it looks up reaches 5: needs at most 3"),
        (torch.full((2, 4), 100), "'words' has 100 rows, and what it looks up reaches 100: needs at most 99"),
    ],
)
def test_a_lookup_beyond_its_table_names_the_table_and_the_largest_row(ask, batch, told):
    with pytest.raises(InputError, match=re.escape(told)):
        ask(Lookups(), batch)


@pytest.mark.parametrize("ask", [sp.measure, sp.predict])
@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ([[1.0, 2.0]], "a list of numbers: needs a tensor"),
        (X.numpy(), "ndarray: needs a tensor"),
        ("text", "batch is str: needs a tensor"),
        ({"input": X, "mask": X}, "give a mapping with the names of these arguments"),
    ],
)
def test_what_is_no_batch_is_refused_with_what_to_give(ask, batch, told):
    with pytest.raises(InputError, match=told):
        ask(net(), batch)


def test_a_class_that_needs_arguments_is_refused_with_how_to_write_it():
    class Needs(nn.Linear):
        def __init__(self, width, depth=2):
            super().__init__(width, depth)

    with pytest.raises(InputError, match=r"missing a required argument: 'width'.*lambda: Needs\(width=\.\.\.\)"):
        sp.predict(Needs, X)


def test_weights_on_meta_are_not_measured():
    with pytest.raises(InputError, match="on the meta device: needs a model with weights"):
        sp.measure(net().to("meta"), X)

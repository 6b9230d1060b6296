"""Many alike sequences from two of them: the same numbers as with all kernels, and left alone where sequences meet."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import identical_sequences, predict
from sigprop.models import build

IDS = torch.randint(2000, (6, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build("transformer", vocabulary=2000, context=16, width=48, depth=2, heads=4)


def next_token(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def summed(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")


def with_all(monkeypatch, model, batch, loss):
    monkeypatch.setattr(identical_sequences, "FEWEST", 1000)
    return predict(model, batch, loss=loss)


@pytest.mark.parametrize("loss", [None, next_token, summed, "cross_entropy"], ids=["noise", "mean", "sum", "named"])
def test_two_sequences_stand_for_all(monkeypatch, model, loss):
    two = predict(model, IDS, loss=loss)
    assert "6 sequences" in two.meta["sequences"]
    every = with_all(monkeypatch, model, IDS, loss)
    assert "sequences" not in every.meta
    for row in every.sites:
        assert two[row.name].variance == pytest.approx(row.variance, rel=0.03)
        assert two[row.name].grad_variance == pytest.approx(row.grad_variance, rel=0.08)
    for row in every.parameters:
        if "query.bias" in row.name or "key.bias" in row.name:
            continue  # sampled in both, from few directions
        found = two.parameter(row.name).grad_second_moment
        assert found == pytest.approx(row.grad_second_moment, rel=0.12), row.name


def test_without_sampling_the_numbers_are_those_of_all_sequences(monkeypatch):
    """Sequences of the same ids are alike to the last digit."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Embedding(2000, 32), nn.Linear(32, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 2000))
    batch = IDS[:1].expand(6, -1).contiguous()
    two = predict(layers, batch, loss=next_token)
    every = with_all(monkeypatch, layers, batch, next_token)
    for row in every.parameters:
        assert two.parameter(row.name).grad_second_moment == pytest.approx(row.grad_second_moment, rel=1e-5)
    for row in every.sites:
        assert two[row.name].grad_variance == pytest.approx(row.grad_variance, rel=1e-5)


def test_from_four_sequences_on_two_are_followed(model):
    assert (
        predict(model, IDS[:4])
        .meta["sequences"]
        .startswith("4 sequences, equal in distribution and separate until the loss")
    )
    assert "sequences" not in predict(model, IDS[:3]).meta


def uneven():
    mask = torch.ones_like(IDS)
    mask[1, 5:] = 0
    return {"tokens": IDS, "attention_mask": mask}


def test_sequences_of_unequal_padding_are_all_followed(model):
    assert "sequences" not in predict(model, uneven()).meta


def test_sequences_that_meet_are_all_followed():
    class Meets(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.norm = nn.Embedding(2000, 8), nn.BatchNorm1d(8)

        def forward(self, ids):
            return self.norm(self.embedding(ids).transpose(1, 2))

    assert "sequences" not in predict(Meets().train(), IDS).meta


def test_few_sequences_are_all_followed(model):
    assert "sequences" not in predict(model, IDS[:2]).meta


class Reader(nn.Module):
    """Attention over tokens, padding read as any other token."""

    def __init__(self, width=64):
        super().__init__()
        self.table = nn.Embedding(500, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.readout = nn.Linear(width, 8)

    def forward(self, ids):
        return self.readout(self.layer(self.table(ids)))


def padded(count=8, length=16):
    ids = torch.randint(1, 500, (count, length), generator=torch.Generator().manual_seed(1))
    for number in range(2, count):
        ids[number, 14 - 2 * number if number < 7 else 3 :] = 0
    return ids


def of_one_token(count=8, length=16):
    ids = torch.randint(1, 500, (count, length), generator=torch.Generator().manual_seed(1))
    ids[2:] = 7
    return ids


@pytest.mark.parametrize("ids", [padded(), of_one_token()], ids=["padded", "one token"])
def test_sequences_that_repeat_tokens_differently_are_all_followed(agreement, ids):
    """The first two are like no other: the output of an attention was 0.022 for 0.036, and 0.022 for 0.058."""
    agreement(lambda: Reader().eval(), ids, seeds=32, width=48)


def test_a_loss_with_targets_of_its_own(model):
    """It was called on two sequences, and failed."""
    targets = torch.randint(2000, (6, 16), generator=torch.Generator().manual_seed(2))
    made = predict(model, IDS, loss=lambda out: F.cross_entropy(out.flatten(0, 1), targets.flatten()))
    named = predict(model, IDS, loss="cross_entropy")
    for row in made.sites:
        assert row.grad_variance == pytest.approx(named[row.name].grad_variance, rel=0.15)

"""Several networks with heads of their own, averaged."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sigprop.capture import build, predict
from sigprop.capture.predict import averaged
from sigprop.errors import InputError
from sigprop.measurement import measure
from sigprop.results import ParameterRow, Profile, SiteRow

IDS = torch.arange(16)[None] % 12
TARGETS = torch.arange(16) % 5


class OneHead(nn.Module):
    """Sharp attention by one head, then a product of two maps of it: the average of squares is not their square."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 128)
        self.query, self.key, self.gate, self.up = (nn.Linear(128, 128, bias=False) for _ in range(4))
        self.head = nn.Linear(128, 5, bias=False)
        for module in (self.query, self.key, self.gate, self.up, self.head):
            nn.init.normal_(module.weight, 0.0, 128**-0.5)

    def forward(self, ids):
        x = self.embedding(ids)[:, None]
        mixed = F.scaled_dot_product_attention(1.5 * self.query(x), 1.5 * self.key(x), x)[:, 0]
        return self.head(self.gate(mixed) * self.up(mixed))


def loss(out):
    return F.cross_entropy(out.flatten(0, 1), TARGETS)


def error(networks: int, reference: Profile) -> float:
    """Of the variance of the gated product, in standard errors of both."""
    predicted = predict(build(OneHead), IDS, loss=loss, networks=networks)
    (found,) = (item for item in predicted.compare(reference).column("variance") if item.name == "head")
    return found.error / found.standard_error


def test_the_average_of_networks_is_not_the_average_network():
    reference = measure(None, IDS, loss, build=OneHead, seeds=300)
    assert abs(error(40, reference)) < 4
    assert error(1, reference) < -4


def test_rows_are_averaged_by_name():
    def one(number: int) -> Profile:
        site = SiteRow("a", 0, 0.0, 1.0 + number, 0.5)
        row = ParameterRow("w", (2,), "hidden", 1.0, grad_second_moment=math.nan if number else 3.0)
        return Profile([site], [row], {"source": "predict"})

    found = averaged([one(number) for number in range(3)])
    assert found.sites[0].variance == 2.0
    assert math.isnan(found.sites[0].grad_variance)
    assert found.parameters[0].grad_second_moment == 3.0
    assert found.meta["networks"] == 3


def test_networks_are_at_least_one():
    with pytest.raises(InputError, match="networks"):
        predict(build(OneHead), IDS, loss=loss, networks=0)

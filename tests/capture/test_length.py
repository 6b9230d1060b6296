"""Sequences longer than what is followed: continued from shorter ones, against the real model at its full length."""

import math

import pytest
import torch
import torch.nn.functional as F

from sigprop.capture import predict
from sigprop.measurement import measure
from sigprop.models import build

LENGTH = 192
IDS = torch.randint(500, (1, LENGTH), generator=torch.Generator().manual_seed(0))


def make():
    return build("transformer", vocabulary=500, context=LENGTH, width=48, depth=2, heads=4, positions="rotary")


def next_token(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


@pytest.fixture(scope="module")
def both():
    torch.manual_seed(0)
    return predict(make(), IDS, loss=next_token, tokens=48), measure(None, IDS, next_token, build=make, seeds=12)


def test_a_long_context_is_continued_and_says_so(both):
    predicted, _ = both
    assert predicted.meta["tokens"] == "192 tokens, continued from 24 and 48"
    assert all("continued from 24 and 48 tokens" in row.reason for row in predicted)
    assert {row.status for row in predicted} == {"assumed"}


def test_its_gradients_are_those_of_the_full_length(both):
    """Cut, they were wrong by (192 / 48)^2 and more; from a quarter of the length half of them are within 10 %."""
    predicted, actual = both
    errors = []
    for row in actual.parameters:
        found = predicted.parameter(row.name).grad_second_moment
        if found > 0 and "key.bias" not in row.name:
            errors.append(abs(math.log(found / row.grad_second_moment)))
    errors += [abs(math.log(predicted[row.name].grad_variance / row.grad_variance)) for row in actual]
    errors.sort()
    assert errors[len(errors) // 2] < 0.10
    assert errors[int(0.9 * len(errors))] < 0.35


def test_a_sequence_that_is_followed_whole_is_not_continued():
    torch.manual_seed(0)
    assert "tokens" not in predict(make(), IDS[:, :32], tokens=48).meta


def test_very_short_ones_are_cut_and_say_so():
    torch.manual_seed(0)
    assert "cut from 192 to 8" in predict(make(), IDS, tokens=8).meta["cut"]

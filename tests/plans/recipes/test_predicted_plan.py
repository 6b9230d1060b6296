"""What a recipe would do, predicted: the columns mean what they mean in a profile."""

import pytest
import torch

from sigprop.models import build
from sigprop.plans.recipes.planned_states import predict_plan
from sigprop.structure import read_structure


def test_token_correlation_is_that_within_sequences():
    torch.manual_seed(0)
    model = build("transformer", depth=6, width=32, heads=2, norm_placement="post", vocabulary=64)
    ids = torch.randint(0, 64, (2, 12))

    def last(batch):
        return predict_plan(read_structure(model, batch), "xavier").token_correlation[-1]

    apart = (last(ids[:1]) + last(ids[1:])) / 2
    assert apart > 0.2
    assert last(ids) == pytest.approx(apart, abs=0.03)

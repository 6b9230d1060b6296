"""On a GPU: the same numbers as on the CPU, the model untouched, and no wait for the device at a site."""

import copy
import warnings

import pytest
import torch

from sigprop.measurement import measure
from sigprop.models import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def model_and_batch():
    torch.manual_seed(0)
    model = build("transformer", width=64, depth=3, heads=4, tied_head=True).double()
    tokens = torch.randint(0, 256, (3, 40))
    mask = torch.ones(3, 40)
    mask[1, 25:] = 0
    return model, {"tokens": tokens, "attention_mask": mask}


def test_same_numbers_as_on_the_cpu():
    model, batch = model_and_batch()
    loss = lambda logits: logits.square().mean()  # noqa: E731
    here = measure(model, batch, loss)
    there = measure(copy.deepcopy(model).cuda(), {key: value.cuda() for key, value in batch.items()}, loss)
    assert [row.name for row in here] == [row.name for row in there]
    for ours, theirs in zip([*here, *here.parameters], [*there, *there.parameters], strict=True):
        for column in type(ours).COLUMNS:
            assert getattr(theirs, column) == pytest.approx(getattr(ours, column), rel=1e-8, abs=1e-10, nan_ok=True)


def test_state_and_random_numbers_are_left_alone():
    model, batch = model_and_batch()
    model.cuda()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.cuda.get_rng_state()
    measure(model, {key: value.cuda() for key, value in batch.items()})
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_synchronization_per_site():
    counts = []
    for depth in (2, 12):
        model = build("transformer", width=64, depth=depth, heads=4).cuda()
        tokens = torch.randint(0, 256, (3, 40), device="cuda")
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            measure(model, tokens)
        torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(item.message) for item in caught))
    assert counts[0] == counts[1] < 20

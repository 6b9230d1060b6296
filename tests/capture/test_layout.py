"""Axis roles through views: the layout must say, for every entry, the position that torch put there."""

import pytest
import torch

from sigprop.capture.layout import BATCH, CHANNEL, TOKEN, Layout, Misaligned, leading_positions, of_roles


def chain(layout, labels, steps):
    for name, *args in steps:
        if name == "view":
            layout, labels = layout.reshaped(args), labels.reshape(args)
        elif name == "permute":
            layout, labels = layout.permuted(args), labels.permute(args)
        elif name == "unsqueeze":
            layout, labels = layout.inserted(args[0]), labels.unsqueeze(args[0])
    return layout, labels


CHAINS = {
    "heads": [("view", 2, 6, 4, 3), ("permute", 0, 2, 1, 3)],
    "merged heads": [("view", 2, 6, 4, 3), ("permute", 0, 2, 1, 3), ("view", 8, 6, 3)],
    "there and back": [("view", 2, 6, 4, 3), ("permute", 0, 2, 1, 3), ("permute", 0, 2, 1, 3), ("view", 2, 6, 12)],
    "flattened tokens": [("view", 12, 12), ("view", 2, 6, 12)],
    "windows": [("view", 2, 2, 3, 12), ("permute", 1, 0, 2, 3), ("view", 4, 3, 12)],
    "token axis last": [("permute", 0, 2, 1), ("unsqueeze", 1)],
}


@pytest.mark.parametrize("name", CHAINS)
def test_views_carry_positions(name):
    layout = leading_positions((2, 6, 12))
    labels = torch.arange(12).reshape(2, 6, 1).expand(2, 6, 12)
    found, expected = chain(layout, labels, CHAINS[name])
    assert found.shape == tuple(expected.shape)
    assert torch.equal(found.labels(), expected)


def test_rows_are_inverse_to_tensors():
    layout, _ = chain(leading_positions((2, 6, 12)), torch.zeros(2, 6, 12), CHAINS["merged heads"])
    values = torch.randn(layout.shape)
    assert torch.equal(layout.from_rows(layout.to_rows(values)), values)


def test_roles_of_images():
    layout = of_roles((2, 3, 4, 5), [BATCH, CHANNEL, TOKEN, TOKEN])
    assert (layout.positions, layout.sequences, layout.channels) == (40, 2, 3)


def test_splitting_twice_gives_the_same_axes():
    layout = leading_positions((2, 6, 12))
    assert layout.reshaped((2, 6, 4, 3)) == layout.reshaped((2, 6, 4, 3))


def test_a_view_across_axes_is_refused():
    with pytest.raises(Misaligned):
        leading_positions((2, 5, 12)).reshaped((8, 15))


def test_dimensions_of_size_one_have_no_axes():
    layout = leading_positions((1, 6, 12))
    assert layout.dims[0] == ()
    assert layout.order == (layout.dims[1][0],)
    assert isinstance(layout, Layout)

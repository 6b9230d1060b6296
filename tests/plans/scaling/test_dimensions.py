"""Roles and ratios from two builds, and clear refusals where the builds do not tell."""

import pytest
import torch
from torch import nn

from sigprop.errors import InputError, UnknownNameError
from sigprop.models import build
from sigprop.plans.scaling.dimensions import compare, pattern


class Zoo(nn.Module):
    """One of each kind of parameter."""

    def __init__(self, width, vocabulary=7, extra=False, kernel=None):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.position_table = nn.Parameter(torch.zeros(5, width))
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.patch = nn.Conv2d(3, width, 4)
        self.layers = nn.ModuleList([nn.Linear(width, 2 * width), nn.Linear(2 * width, width)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)
        self.temperature = nn.Parameter(torch.ones(()))
        self.square = nn.Parameter(torch.zeros(width, width))
        if extra:
            self.more = nn.Linear(2, 2)
        if kernel:
            self.kernel = nn.Parameter(torch.zeros(width, kernel))


def test_roles_of_every_kind():
    found = {item.name: (item.role, item.fan_in, item.fan_out) for item in compare(Zoo(32), Zoo(8))}
    assert found == {
        "position_table": ("embedding", 1.0, 4.0),
        "cls": ("vector", 1.0, 4.0),
        "temperature": ("fixed", 1.0, 1.0),
        "square": ("hidden", 4.0, 4.0),
        "tokens.weight": ("embedding", 1.0, 4.0),
        "patch.weight": ("embedding", 1.0, 4.0),
        "patch.bias": ("vector", 1.0, 4.0),
        "layers.0.weight": ("hidden", 4.0, 4.0),
        "layers.0.bias": ("vector", 1.0, 4.0),
        "layers.1.weight": ("hidden", 4.0, 4.0),
        "layers.1.bias": ("vector", 1.0, 4.0),
        "norm.weight": ("vector", 1.0, 4.0),
        "norm.bias": ("vector", 1.0, 4.0),
        "head.weight": ("readout", 4.0, 1.0),
        "head.bias": ("fixed", 1.0, 1.0),
    }


def test_meta_builds_suffice():
    with torch.device("meta"):
        wide, base = Zoo(32), Zoo(8)
    assert {item.role for item in compare(wide, base)} == {"embedding", "vector", "hidden", "readout", "fixed"}


def test_equal_builds_have_no_width():
    assert all(item.fan_in == item.fan_out == 1.0 for item in compare(Zoo(8), Zoo(8)))


def test_unclear_roles_are_listed_and_can_be_given():
    with pytest.raises(InputError, match=r"kernel \(8, 6\) -> \(32, 6\).*roles="):
        compare(Zoo(32, kernel=6), Zoo(8, kernel=6))
    found = compare(Zoo(32, kernel=6), Zoo(8, kernel=6), roles={"kernel": "readout"})
    (kernel,) = [item for item in found if item.name == "kernel"]
    assert (kernel.role, kernel.fan_in, kernel.fan_out) == ("readout", 4.0, 1.0)
    with pytest.raises(InputError, match="one of embedding"):
        compare(Zoo(32), Zoo(8), roles={"square": "matrix"})
    with pytest.raises(UnknownNameError, match="square"):
        compare(Zoo(32), Zoo(8), roles={"sqare": "hidden"})


def test_builds_that_differ_in_more_than_width_are_refused():
    with pytest.raises(InputError, match=r"only in the model: more\.weight"):
        compare(Zoo(32, extra=True), Zoo(8))
    with pytest.raises(InputError, match=r"only in the base: more\.bias"):
        compare(Zoo(32), Zoo(8, extra=True))
    with pytest.raises(InputError, match="vocabulary differs, 7 and 9"):
        compare(Zoo(32, vocabulary=9), Zoo(8))


def test_depth_is_matched_by_pattern():
    deep = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])
    base = nn.Sequential(*[nn.Linear(4, 4) for _ in range(2)])
    found = compare(deep, base)
    assert {item.depth for item in found} == {3.0}
    assert found[-1].base_name == "0.bias"
    assert pattern("h.12.attn.c_proj.weight") == "h.*.attn.c_proj.weight"
    assert pattern("conv1d.weight") == "conv1d.weight"


def test_between_equal_widths_roles_come_from_the_structure():
    """As between two widths, for every matrix; parameters that never grow have no role to compare."""
    for name, settings in (
        ("transformer", {"heads": 4}),
        ("transformer", {"heads": 4, "tied_head": True}),
        ("mlp", {}),
        ("vit", {"heads": 4}),
        ("resnet", {}),
    ):
        base, wide = (build(name, width=width, depth=2, **settings) for width in (16, 32))
        expected = {item.name: item.role for item in compare(wide, base) if item.role != "fixed"}
        found = {item.name: item for item in compare(base, build(name, width=16, depth=2, **settings))}
        assert {key: found[key].role for key in expected} == expected, name
        assert all(item.fan_in == item.fan_out == 1.0 for item in found.values())
    deeper = compare(build("mlp", width=16, depth=4), build("mlp", width=16, depth=2))
    assert {item.role for item in deeper} == {"embedding", "hidden", "readout", "vector"}
    asked = compare(base, base, roles={"head.weight": "hidden"})
    assert {item.name: item.role for item in asked}["head.weight"] == "hidden"

"""Residual streams however they are written: other sums, reused blocks, U-nets, several streams; what the output is."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sigprop.checks.streams import find_streams
from sigprop.structure import read_structure

WIDTH, DEPTH = 16, 3
FORMS = {
    "x - f(x)": (lambda x, f: x - f, 1.0, 1.0),
    "-(f(x) - x)": (lambda x, f: -(f - x), 1.0, 1.0),
    "lerp": (lambda x, f: torch.lerp(x, f, 0.25), 0.75, 0.25),
    "addcmul": (lambda x, f: torch.addcmul(x, f, f.sigmoid()), 1.0, 1.0),
    "sum of a stack": (lambda x, f: torch.stack([x, f]).sum(0), 1.0, 1.0),
    "mean of a stack": (lambda x, f: torch.stack([x, f], -1).mean(-1), 0.5, 0.5),
    "turned": (lambda x, f: (x.transpose(0, 1).contiguous() + f.transpose(0, 1)).transpose(0, 1), 1.0, 1.0),
}


def branch() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


class Stack(nn.Module):
    def __init__(self, join):
        super().__init__()
        self.enter, self.join, self.head = nn.Linear(WIDTH, WIDTH), join, nn.Linear(WIDTH, 5)
        self.branches = nn.ModuleList([branch() for _ in range(DEPTH)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for item in self.branches:
            x = self.join(x, item(x))
        return self.head(x)


@pytest.mark.parametrize("form", FORMS)
def test_a_sum_is_seen_however_it_is_written(form):
    join, skip, scale = FORMS[form]
    found = read_structure(Stack(join), torch.randn(7, WIDTH))
    assert [junction.order for junction in found.junctions] == [1, 2, 3]
    assert {junction.stream for junction in found.junctions} == {0}
    assert [junction.skip_scale for junction in found.junctions] == pytest.approx(DEPTH * [skip])
    assert [junction.branch_scale for junction in found.junctions] == pytest.approx(DEPTH * [scale])
    assert [junction.inside[0] for junction in found.junctions] == [f"branches.{n}.0.weight" for n in range(DEPTH)]


def test_a_difference_of_two_readings_is_no_junction():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.head = branch(), branch(), nn.Linear(WIDTH, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.first(x) - self.second(x))

    assert read_structure(Plain(), torch.randn(7, WIDTH)).junctions == []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), branch()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class Looped(nn.Module):
    """Two blocks visited four times, and the loss alone."""

    def __init__(self):
        super().__init__()
        self.table, self.blocks = nn.Embedding(20, WIDTH), nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 20)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.table(ids)
        for _ in range(4):
            for block in self.blocks:
                x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def test_visits_to_a_reused_block_are_blocks_of_the_stream():
    model, ids = Looped(), torch.randint(20, (2, 6))
    found = read_structure(model, {"ids": ids, "labels": ids})
    expected = tuple(f"blocks.{n}" + (f"@{visit}" if visit > 1 else "") for visit in (1, 2, 3, 4) for n in (0, 1))
    assert [stream.names for stream in find_streams(found, model, None)] == [expected]


def test_the_readout_is_read_off_the_loss():
    ids = torch.randint(20, (2, 6))
    found = read_structure(Looped(), {"ids": ids, "labels": ids})
    assert found.parameters["head.weight"].role == "readout"
    assert found.judged == ("cross_entropy",)


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = branch(), branch()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits = F.normalize(self.first(x), dim=-1) @ F.normalize(self.second(y), dim=-1).T
        return F.cross_entropy(logits, torch.arange(len(x)))


def test_the_last_layer_of_a_tower_is_no_readout():
    found = read_structure(Towers(), {"x": torch.randn(8, WIDTH), "y": torch.randn(8, WIDTH)})
    assert {item.role for item in found if len(item.shape) > 1} == {"input", "hidden"}


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.merge, self.head = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(2 * WIDTH, WIDTH),
            nn.Linear(WIDTH, 5),
        )
        self.blocks = nn.ModuleList([Block() for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        first = self.blocks[0](self.enter(x))
        x = self.blocks[2](self.blocks[1](first))
        return self.head(self.blocks[3](self.merge(torch.cat([x, first], -1))))


def test_a_unet_is_one_stream():
    found = read_structure(Unet(), torch.randn(7, WIDTH))
    assert [(junction.stream, junction.order) for junction in found.junctions] == [(0, 1), (0, 2), (0, 3), (0, 4)]


class FirstValues(nn.Module):
    """Values of the first layer are added to those of later ones."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 20)
        self.qkv = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEPTH)])
        self.out = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])

    def forward(self, ids: Tensor) -> Tensor:
        x, first = self.table(ids), None
        for qkv, out in zip(self.qkv, self.out, strict=True):
            query, key, value = qkv(x).chunk(3, -1)
            first = value if first is None else first
            x = x + out(F.scaled_dot_product_attention(query, key, 0.5 * value + 0.5 * first))
        return self.head(x)


def test_values_of_the_first_layer_are_no_stream():
    found = read_structure(FirstValues(), torch.randint(20, (2, 6)))
    assert [junction.exit for junction in found.junctions] == ["out.0", "out.1", "out.2"]


class Streams(nn.Module):
    """Hyper-connections: a matrix mixes four streams, and a branch is added to all of them."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(20, WIDTH), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 20)
        self.branches = nn.ModuleList([branch() for _ in range(DEPTH)])
        self.mix, self.read = nn.Parameter(torch.eye(4) + 0.1), nn.Parameter(torch.full((4,), 0.25))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)[:, :, None].expand(-1, -1, 4, -1)
        for item in self.branches:
            read = self.norm(torch.einsum("s,btsc->btc", self.read, x))
            x = torch.einsum("rs,btsc->btrc", self.mix, x) + item(read)[:, :, None]
        return self.head(x.sum(2))


def test_several_streams_are_one_with_a_projected_skip():
    found = read_structure(Streams(), torch.randint(20, (2, 6)))
    assert [(junction.stream, junction.order) for junction in found.junctions] == [(0, 1), (0, 2), (0, 3)]
    assert all(junction.projected for junction in found.junctions)


def test_attention_without_residual_branches_is_a_transformer():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.qkv, self.head = (
                nn.Embedding(20, WIDTH),
                nn.Linear(WIDTH, 3 * WIDTH),
                nn.Linear(WIDTH, 20),
            )

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(F.scaled_dot_product_attention(*self.qkv(self.table(ids)).chunk(3, -1)))

    found = read_structure(Bare(), torch.randint(20, (2, 6)))
    assert found.junctions == []
    assert found.is_transformer

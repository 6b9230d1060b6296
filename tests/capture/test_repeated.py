"""Of many alike blocks a part is followed: the rows are those of all; and all are followed where they differ."""

import itertools
import math
import statistics

import pytest
import torch
from torch import nn

from sigprop.capture import predict, repeated_blocks
from sigprop.capture.repeated_blocks import followed_numbers

DEPTH, FEW, WIDTH = 40, 20, 32


class Block(nn.Module):
    def __init__(self, number: int = 0, gain: float = 1.0):
        super().__init__()
        self.number = number
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = nn.Linear(2 * WIDTH, WIDTH)
        nn.init.normal_(self.outer.weight, std=0.1 * gain)

    def branch(self, x):
        return self.outer(torch.relu(self.inner(self.norm(x))))

    def forward(self, x):
        return x + self.branch(x)


class Stack(nn.Module):
    def __init__(self, block=Block, depth=DEPTH):
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList(block(number) for number in range(depth))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def inputs(count=6):
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(0))


def both(monkeypatch, model, batch):
    """The prediction with jumps, and with all blocks followed."""
    some = predict(model, batch)
    monkeypatch.setattr(repeated_blocks, "SHORTEST", 10**9)
    return some, predict(model, batch)


def differences(some, whole, column):
    rows = zip(
        some.sites if column != "grad_second_moment" else some.parameters,
        whole.sites if column != "grad_second_moment" else whole.parameters,
        strict=True,
    )
    pairs = [(getattr(one, column), getattr(other, column)) for one, other in rows]
    return [abs(math.log(one / other)) for one, other in pairs if one > 0 and other > 0]


COLUMNS = ("variance", "grad_variance", "grad_second_moment")


def test_rows_of_a_stack_are_those_of_following_all(monkeypatch):
    some, whole = both(monkeypatch, Stack, inputs())
    assert f"of the {DEPTH} repeated blocks of blocks followed" in some.meta["blocks"]
    assert "blocks" not in whole.meta
    assert [(row.name, row.depth) for row in some] == [(row.name, row.depth) for row in whole]
    described = [[(row.name, row.shape, row.role, row.init_std) for row in item.parameters] for item in (some, whole)]
    assert described[0] == described[1]
    for column in COLUMNS:
        found = differences(some, whole, column)
        assert len(found) > DEPTH
        assert max(found) < 0.02
    skipped = next(number for number in range(DEPTH) if number not in followed_numbers(DEPTH))
    row = some[f"blocks.{skipped}.outer"]
    assert row.status == "fitted"
    assert row.stated_errors["variance"] == 0.15


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def test_a_deep_gpt2_with_tied_embeddings(monkeypatch, transformers):
    monkeypatch.setattr(repeated_blocks, "SHORTEST", FEW)
    config = transformers.GPT2Config(n_layer=FEW + 6, n_embd=WIDTH, n_head=2, vocab_size=97, n_positions=8)
    ids = torch.randint(97, (1, 8), generator=torch.Generator().manual_seed(0))
    model = transformers.GPT2LMHeadModel(config)
    some, whole = both(monkeypatch, model, {"input_ids": ids, "labels": ids})
    assert "repeated blocks of transformer.h followed" in some.meta["blocks"]
    for column in COLUMNS:  # heads are drawn: most rows agree closely, those of queries and keys within their noise
        found = differences(some, whole, column)
        assert statistics.median(found) < 0.02
        assert statistics.quantiles(found, n=20)[-1] < 0.15
    one, other = (
        next(row for row in item.parameters if row.name == "transformer.wte.weight") for item in (some, whole)
    )
    assert abs(math.log(one.grad_second_moment / other.grad_second_moment)) < 0.03
    for number, block in enumerate(model.transformer.h):
        assert "forward" not in vars(block)
        assert type(block.attn.layer_idx) is int
        assert block.attn.layer_idx == number


class ReadsItsNumber(Block):
    def forward(self, x):
        return x + self.branch(x) / (1 + self.number)


class ReadsTheParity(Block):
    def forward(self, x):
        return x if self.number % 7 == 6 else x + self.branch(x)


class GrowsByLaw(Block):
    def __init__(self, number):
        super().__init__(number, gain=1 + number / DEPTH)


class HasASetting(Block):
    def __init__(self, number):
        super().__init__(number)
        self.slope = 0.1 if number % 2 else 0.2

    def forward(self, x):
        return x + self.slope * self.branch(x)


class NoNorm(Block):
    def forward(self, x):
        return self.outer(torch.relu(self.inner(x))) * 8


class TwoOutputs(Block):
    def forward(self, x):
        return x + self.branch(x), self.norm(x)


class Shortcuts(Stack):
    """The head reads what every block left."""

    def forward(self, x):
        x, kept = self.embed(x), []
        for block in self.blocks:
            x = block(x)
            kept.append(self.head(x))
        return kept[0] + kept[11] + x[:, :4]


class ArgumentsDiffer(Stack):
    def forward(self, x):
        x = self.embed(x)
        for number, block in enumerate(self.blocks):
            x = block(x, scale=1.0 + number % 3)
        return self.head(x)


class Scaled(Block):
    def forward(self, x, scale=1.0):
        return x + scale * self.branch(x)


class Pairs(Stack):
    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x, _ = block(x)
        return self.head(x)


class Backwards(Stack):
    def forward(self, x):
        x = self.embed(x)
        for block in reversed(self.blocks):
            x = block(x)
        return self.head(x)


UNEVEN = {
    "a block reads its number": lambda: Stack(ReadsItsNumber, FEW),
    "a block asks what its number is": lambda: Stack(ReadsTheParity, FEW),
    "laws change with depth": lambda: Stack(GrowsByLaw, FEW),
    "settings alternate": lambda: Stack(HasASetting, FEW),
    "no skip path, growth by a factor": lambda: Stack(NoNorm, FEW),
    "two outputs": lambda: Pairs(TwoOutputs, FEW),
    "tensors between blocks are read": lambda: Shortcuts(depth=FEW),
    "arguments differ": lambda: ArgumentsDiffer(Scaled, FEW),
    "blocks run in another order": lambda: Backwards(depth=FEW),
}


def test_as_few_blocks_as_the_uneven_ones_have_are_jumped_over(monkeypatch):
    monkeypatch.setattr(repeated_blocks, "SHORTEST", FEW)
    assert "blocks" in predict(lambda: Stack(depth=FEW), inputs()).meta


@pytest.mark.parametrize("name", UNEVEN)
def test_all_blocks_are_followed_where_they_are_not_alike(monkeypatch, name):
    monkeypatch.setattr(repeated_blocks, "SHORTEST", FEW)
    some, whole = both(monkeypatch, UNEVEN[name], inputs())
    assert "blocks" not in some.meta
    for column in COLUMNS:
        assert max(differences(some, whole, column)) < 1e-9


def test_few_blocks_are_all_followed(monkeypatch):
    monkeypatch.setattr(repeated_blocks, "SHORTEST", FEW + 1)
    assert "blocks" not in predict(lambda: Stack(depth=FEW), inputs()).meta


def test_both_ends_are_followed_densely():
    for count in (40, 61, 200, 1000):
        numbers = followed_numbers(count)
        assert numbers[:6] == list(range(6))
        assert numbers[-3:] == list(range(count - 3, count))
        assert all(later - number <= max(1, 0.2 * number) for number, later in itertools.pairwise(numbers))
    assert len(followed_numbers(200)) < 40

"""Norms are found by what they do to a scale, however they are spelt; what is no norm is not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.errors import UnsupportedError
from sigprop.plans.recipes import plan
from sigprop.structure import read_structure

WIDTH, TINY = 16, 1e-30


def of_two(both):
    """A norm by a function that gives the spread and the mean together."""

    def norm(x):
        spread, mean = both(x, -1, keepdim=True, correction=0)
        return (x - mean) * (torch.rsqrt(spread + TINY) if both is torch.var_mean else 1.0 / (spread + TINY))

    return norm


def centred(x):
    return x - x.mean(-1, keepdim=True)


NORMS = {
    "layer_norm": lambda x: F.layer_norm(x, (WIDTH,), eps=TINY),
    "rms": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + TINY),
    "mean subtracted, then root of the mean square": lambda x: (
        centred(x) / torch.sqrt(centred(x).pow(2).mean(-1, keepdim=True) + TINY)
    ),
    "standard deviation": lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + TINY),
    "variance to the power -1/2": lambda x: centred(x) * (x.var(-1, keepdim=True, unbiased=False) + TINY) ** -0.5,
    "normalize": lambda x: 4.0 * F.normalize(x, dim=-1, eps=TINY),
    "x / norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "x / (norm of x over the root of the width)": lambda x: x / (x.norm(2, dim=-1, keepdim=True) * WIDTH**-0.5 + TINY),
    "vector norm, clamped": lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(TINY),
    "variance and mean together": of_two(torch.var_mean),
    "standard deviation and mean together": of_two(torch.std_mean),
    "behind a reshape": lambda x: F.layer_norm(x.reshape(-1, WIDTH), (WIDTH,), eps=TINY).view(x.shape),
}
NO_NORMS = {
    "a number": lambda x: x / 4.0,
    "a bounded function": lambda x: torch.tanh(x),
    "a large number inside": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1.0),
    "half of it": lambda x: x / x.norm(dim=-1, keepdim=True).sqrt(),
}


class Block(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm, self.up, self.down = norm, nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, norm):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.norm = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 50), norm
        self.blocks = nn.ModuleList(Block(norm) for _ in range(3))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


IDS = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("spelling", NORMS)
def test_every_spelling_is_a_norm_and_folds_exactly(spelling):
    model = Model(NORMS[spelling]).double()
    found = read_structure(model, IDS)
    assert found.placement == "pre"
    assert all(junction.scale_free for junction in found.junctions)
    with pytest.raises(UnsupportedError, match="no norm"):
        plan(model, "fixup", structure=found)
    options = {"structure": found, "k": 0.5, "alpha": 0.5}
    folded, hooked = (plan(model, "depth_scaling", surgery=surgery, **options) for surgery in (False, True))
    twin = hooked.attach_(copy.deepcopy(model))
    folded.apply_(model)
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        for row in folded.junctions:
            for name in row.weights:
                twin.get_parameter(name).div_(row.branch / row.level)
    torch.testing.assert_close(twin(IDS), model(IDS), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spelling", NO_NORMS)
def test_what_leaves_the_scale_is_no_norm(spelling):
    found = read_structure(Model(NO_NORMS[spelling]), IDS)
    assert found.placement == "none"
    assert not any(junction.scale_free for junction in found.junctions[-1:])


class Pooled(Model):
    """The mean over tokens, then a norm: a scale of the stream is gone after both."""

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean(1)))


def test_a_norm_behind_a_pool_undoes_the_scale_and_one_behind_a_biased_matrix_does_not():
    pooled = read_structure(Pooled(nn.LayerNorm(WIDTH)), IDS)
    assert all(junction.scale_free for junction in pooled.junctions)
    biased = Model(nn.LayerNorm(WIDTH))
    biased.norm = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
    assert not read_structure(biased, IDS).junctions[-1].scale_free
    biased.norm = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.LayerNorm(WIDTH))
    assert read_structure(biased, IDS).junctions[-1].scale_free


class Gained(Block):
    """A gain after a dropout that both branches of a block would share: no module puts the branch out."""

    def __init__(self, norm):
        super().__init__(norm)
        self.gain, self.drop = nn.Parameter(torch.full((WIDTH,), 0.1)), nn.Dropout(0.0)

    def forward(self, x):
        x = x + self.gain * self.drop(self.down(F.gelu(self.up(self.norm(x)))))
        return self.drop(x)


def test_a_branch_without_a_module_of_its_own_is_folded_and_not_hooked():
    """BEiT: the whole block was hooked, and the logits were off by a sixth."""
    model = Model(nn.LayerNorm(WIDTH))
    model.blocks = nn.ModuleList(Gained(nn.LayerNorm(WIDTH)) for _ in range(3))
    found = read_structure(model, IDS)
    assert [junction.exit for junction in found.junctions] == [""] * 3
    plan(model, "depth_scaling", structure=found)
    with pytest.raises(UnsupportedError, match="nothing to hook"):
        plan(model, "depth_scaling", structure=found, surgery=True)


class Biased(nn.Module):
    """Scores with a learned bias that all layers share, as in MPNet: not a residual sum, though layers depend on it."""

    def __init__(self):
        super().__init__()
        self.embed, self.bias = nn.Embedding(50, WIDTH), nn.Embedding(8, 1)
        self.keys = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.values = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2)), nn.Linear(WIDTH, 50)

    def forward(self, ids):
        x, places = self.embed(ids), torch.arange(8)
        bias = self.bias((places[:, None] - places).abs())[None, :, :, 0].expand(len(ids), 8, 8)
        for key, value, norm in zip(self.keys, self.values, self.norms, strict=True):
            scores = key(x) @ x.transpose(1, 2) / 4.0 + bias
            x = norm(x + scores.softmax(-1) @ value(x))
        return self.head(x)


def test_scores_with_a_shared_bias_are_no_junction():
    assert len(read_structure(Biased(), IDS).junctions) == 2


class Twice(Block):
    """Two branches of one norm, added one after the other, as in Cohere."""

    def __init__(self, norm):
        super().__init__(norm)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        read = self.norm(x)
        return x + self.mix(read) + self.down(F.gelu(self.up(read)))


def test_a_sum_that_only_the_next_junction_reads_is_free_of_scale():
    model = Model(nn.LayerNorm(WIDTH))
    model.blocks = nn.ModuleList(Twice(nn.LayerNorm(WIDTH)) for _ in range(2))
    found = read_structure(model, IDS)
    assert [junction.scale_free for junction in found.junctions] == [True] * 4
    assert found.placement == "pre"
    assert [bool(junction.entry) for junction in found.junctions] == [True, False] * 2  # no module takes the sum in
    with pytest.raises(UnsupportedError, match="takes the residual stream in"):
        plan(model, "depth_scaling", structure=found, surgery=True)


class Listed(nn.Module):
    """A branch that returns a list, as in OpenAI-GPT."""

    def __init__(self):
        super().__init__()
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return [self.down(x), None]


class ListedBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), Listed()

    def forward(self, x):
        return x + self.branch(self.norm(x))[0]


def test_a_branch_in_a_list_is_hooked():
    model = Model(nn.LayerNorm(WIDTH))
    model.blocks = nn.ModuleList(ListedBlock() for _ in range(2))
    hooked = plan(model, "depth_scaling", batch=IDS, surgery=True, k=0.5)
    assert hooked.apply_(model)(IDS).isfinite().all()


class MixedPrecision(Model):
    """A float32 mask of its own, as in OpenAI-GPT: nothing that a float64 model minds, but a trace must not either."""

    def forward(self, ids):
        x = self.embed(ids)
        mask = torch.tril(torch.ones(ids.shape[1], ids.shape[1]))
        weights = (x @ x.transpose(1, 2) * mask + -1e4 * (1 - mask)).softmax(-1)
        x = x + weights.to(x.dtype) @ x
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_structure_does_not_depend_on_precision(dtype):
    single, other = (
        read_structure(MixedPrecision(nn.LayerNorm(WIDTH)).to(each), IDS) for each in (torch.float32, dtype)
    )
    assert [junction.weights for junction in single.junctions] == [junction.weights for junction in other.junctions]

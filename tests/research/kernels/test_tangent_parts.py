"""Parts of a Transformer's tangent kernel against gradients of finite networks, and against the paper's recursion."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sigprop.errors import InputError
from sigprop.research.kernels import tangent_parts

TOKENS, PATCH, EXPANSION = 4, 24, 2
C = {"Q": 0.8, "K": 0.7, "V": 1.2, "U": 0.9, "W": 1.1, "X": 0.8}


def inputs():
    return torch.randn(TOKENS, PATCH, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def linear(fan_in, fan_out, variance):
    layer = nn.Linear(fan_in, fan_out, bias=False)
    nn.init.normal_(layer.weight, std=math.sqrt(variance / fan_in))
    return layer


class Block(nn.Module):
    """Stem, attention, MLP and head."""

    def __init__(self, width=4096, heads=64, variances=C):
        super().__init__()
        self.heads, self.embedding, self.head = heads, linear(PATCH, width, 1.0), linear(width, 2, 1.0)
        for name in "QKVU":
            setattr(self, name, linear(width, width, variances[name]))
        self.W = linear(width, EXPANSION * width, C["W"])
        self.X = linear(EXPANSION * width, width, C["X"])

    def forward(self, x):
        z = self.embedding(x)
        shape = z.shape[-1:]
        x = F.layer_norm(z, shape, eps=0.0)
        q, k, v = (getattr(self, name)(x).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for name in "QKV")
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1)
        z = z + self.U((weights @ v).transpose(-2, -3).flatten(-2))
        z = z + self.X(F.gelu(self.W(F.layer_norm(z, shape, eps=0.0))))
        return self.head(F.layer_norm(z, shape, eps=0.0))


NETWORKS = 16
RATES = {"embedding": 1.0, **C, "head": 1.0}


def parts():
    """Of variances: learning-rate factors of one for weights of variance `C / fan_in`."""
    found = tangent_parts(Block, inputs()[None], networks=NETWORKS)
    return {name.removesuffix(".weight"): part / RATES[name.removesuffix(".weight")] for name, part in found.items()}


@pytest.fixture(scope="module")
def predicted():
    return parts()


def measured(width, head_size, seed):
    """lambda * |df/dW|^2 per group, averaged over tokens and outputs, for one network."""
    generator = torch.Generator().manual_seed(seed)

    def weight(rows, columns, variance):
        noise = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        return (noise * math.sqrt(variance / columns)).requires_grad_()

    hidden, heads, outputs = EXPANSION * width, width // head_size, 2
    groups = {
        "embedding": weight(width, PATCH, 1.0),
        **{name: weight(width, width, C[name]) for name in "QKVU"},
        "W": weight(hidden, width, C["W"]),
        "X": weight(width, hidden, C["X"]),
        "head": weight(outputs, width, 1.0),
    }
    z = inputs() @ groups["embedding"].T
    x = F.layer_norm(z, (width,), eps=0.0)
    q, k, v = ((x @ groups[name].T).unflatten(1, (heads, head_size)).transpose(0, 1) for name in "QKV")
    weights = (q @ k.mT / math.sqrt(head_size)).softmax(dim=-1)
    z = z + (weights @ v).transpose(0, 1).flatten(1) @ groups["U"].T
    z = z + F.gelu(F.layer_norm(z, (width,), eps=0.0) @ groups["W"].T) @ groups["X"].T
    f = F.layer_norm(z, (width,), eps=0.0) @ groups["head"].T
    sizes = dict.fromkeys(groups, 0.0)
    for t in range(TOKENS):
        for i in range(outputs):
            gradients = torch.autograd.grad(f[t, i], list(groups.values()), retain_graph=True)
            for name, gradient in zip(groups, gradients, strict=True):
                rate = 1.0 / groups[name].shape[1]
                own = gradient[i] if name == "head" else gradient
                sizes[name] += rate * own.square().sum().item() / (TOKENS * outputs)
    return sizes


def statistics(width, head_size, seeds):
    runs = [measured(width, head_size, seed) for seed in range(seeds)]
    table = torch.tensor([[run[name] for name in runs[0]] for run in runs])
    return dict(
        zip(runs[0], zip(table.mean(0).tolist(), (table.std(0) / math.sqrt(seeds)).tolist(), strict=True), strict=True)
    )


@pytest.fixture(scope="module")
def finite():
    return {size: statistics(4 * size, size, 24) for size in (16, 32, 64)}


NOISE = 0.05 / math.sqrt(NETWORKS)
"""Standard error of a predicted part, relative: one sampled attention moves those of queries and keys by 5 %."""


@pytest.mark.parametrize("group", RATES)
def test_group_contributions_in_the_wide_limit(finite, predicted, group):
    """Finite widths extrapolated linearly in 1/width, within four standard errors of that intercept."""
    x = torch.tensor([1.0 / size for size in finite], dtype=torch.float64)
    y = torch.tensor([finite[size][group][0] for size in finite], dtype=torch.float64)
    error = torch.tensor([finite[size][group][1] for size in finite], dtype=torch.float64).clamp_min(1e-6)
    design = torch.stack((torch.ones_like(x), x), dim=1) / error[:, None]
    covariance = torch.linalg.inv(design.T @ design)
    intercept = (covariance @ design.T @ (y / error))[0].item()
    theory = predicted[group]
    assert abs(intercept - theory) < 4 * math.hypot(covariance[0, 0].sqrt().item(), NOISE * theory)
    assert theory > 0


def test_the_check_would_notice_a_wrong_constant(finite, predicted):
    mean, error = finite[64]["V"]
    assert abs(mean - 1.5 * predicted["V"]) > 10 * error


RECURSION = {
    "embedding": 1.1483, "V": 0.2148, "U": 0.2864, "Q": 0.0841, "K": 0.0961, "X": 0.2429, "W": 0.1892, "head": 1.0
}  # fmt: skip
"""Of the recursion of Dinan, Yaida and Zhang, eqs. (1.117) to (1.190), with 4,000 sampled attentions."""


def test_groups_are_those_of_the_papers_recursion(predicted):
    for group, part in RECURSION.items():
        assert abs(predicted[group] - part) < (4 * NOISE + 1e-3) * part, group


def test_uniform_attention_is_exact():
    """No query variance: weights 1/T, the mix is the mean, and scores do not respond to keys."""

    def make():
        return Block(variances=C | {"Q": 0.0, "U": 2.0})

    overlap = inputs() @ inputs().T
    size = overlap.diagonal().sqrt()
    mixed = (overlap / (size[:, None] * size)).mean()
    found = tangent_parts(make, inputs()[None], networks=1)
    signal = overlap.diagonal() / PATCH + C["V"] * 2.0 * mixed
    assert found["K.weight"] < 1e-12
    # the MLP and the head above divide by what the stream has become
    assert found["V.weight"] == pytest.approx(found["U.weight"], rel=1e-6)
    assert found["V.weight"] < float(C["V"] * 2.0 * mixed / signal.min())


def test_a_parametrization_that_is_not_known():
    with pytest.raises(InputError, match="parametrization"):
        tangent_parts(Block, inputs()[None], parametrization="mup")

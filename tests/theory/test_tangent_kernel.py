"""The tangent kernel recursion against gradients of finite networks, and against its own limits."""

import math

import pytest
import torch
from torch.nn import functional as F

from sigprop.errors import InputError
from sigprop.theory import tangent_kernel

TOKENS, PATCH, EXPANSION = 4, 24, 2
C = {"Q": 0.8, "K": 0.7, "V": 1.2, "U": 0.9, "W": 1.1, "X": 0.8}


def inputs():
    return torch.randn(TOKENS, PATCH, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def predicted(blocks=1, causal=False):
    state = tangent_kernel.stem(inputs())
    generator = torch.Generator().manual_seed(0)
    for _ in range(blocks):
        state = tangent_kernel.attention(
            state, {k: C[k] for k in "QKVU"}, causal=causal, samples=4000, generator=generator
        )
        state = tangent_kernel.mlp(state, "gelu", {k: C[k] for k in "WX"})
    return tangent_kernel.head(state)


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


@pytest.mark.parametrize("group", ["embedding", "V", "U", "Q", "K", "W", "X", "head"])
def test_group_contributions_in_the_wide_limit(finite, group):
    """Finite widths extrapolated linearly in 1/width, within four standard errors of that intercept."""
    x = torch.tensor([1.0 / size for size in finite], dtype=torch.float64)
    y = torch.tensor([finite[size][group][0] for size in finite], dtype=torch.float64)
    error = torch.tensor([finite[size][group][1] for size in finite], dtype=torch.float64).clamp_min(1e-6)
    design = torch.stack((torch.ones_like(x), x), dim=1) / error[:, None]
    covariance = torch.linalg.inv(design.T @ design)
    intercept = (covariance @ design.T @ (y / error))[0].item()
    theory = predicted().groups[group].diagonal().mean().item()
    assert abs(intercept - theory) < 4 * covariance[0, 0].sqrt().item() + 1e-3 * theory
    assert theory > 0


def test_the_check_would_notice_a_wrong_constant(finite):
    mean, error = finite[64]["V"]
    theory = predicted().groups["V"].diagonal().mean().item()
    assert abs(mean - 1.5 * theory) > 10 * error


def test_groups_add_up_and_shares_to_one():
    state = predicted(blocks=2)
    torch.testing.assert_close(state.tangent_kernel, sum(state.groups.values()))
    assert sum(state.shares().values()) == pytest.approx(1.0)


def test_sample_of_uniform_attention_is_exact():
    """No query or key variance: weights 1/T, the mix is the mean, and scores do not respond to themselves."""
    state = tangent_kernel.stem(inputs())
    out = tangent_kernel.attention(state, {"Q": 0.0, "V": 2.0}, samples=1)
    correlation = tangent_kernel.normalized(state.signal, state.signal)
    torch.testing.assert_close(out.signal, state.signal + 2.0 * correlation.mean())
    assert out.groups["K"].abs().max() < 1e-12
    assert out.groups["Q"].diagonal().min() > 0


def test_causal_first_token_attends_itself():
    state = tangent_kernel.language_stem(torch.tensor([3, 1, 3, 2]))
    out = tangent_kernel.attention(state, causal=True, samples=50, generator=torch.Generator().manual_seed(0))
    assert out.signal[0, 0].item() == pytest.approx(2.0)
    assert out.groups["Q"][0, 0].abs().item() < 1e-12
    assert state.signal[0, 2] == 1.0
    assert state.signal[0, 1] == 0.0


def test_bad_group():
    with pytest.raises(InputError, match="one of Q, K, V, U"):
        tangent_kernel.attention(tangent_kernel.stem(inputs()), {"W": 1.0})

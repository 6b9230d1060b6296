"""Attention: closed forms against real heads, against the sampled reference, and their stated limits."""

import math
from dataclasses import replace

import pytest
import torch

from sigprop.blueprints.base import Tape
from sigprop.errors import UnsupportedError
from sigprop.theory import Dense, Gradient, exchangeable_gradient, exchangeable_signal
from sigprop.theory.ops.attention import Attention, DrawnAttention
from sigprop.theory.ops.linear import Linear
from sigprop.theory.states import AlongSignal
from tests.theory.ops.cases import P, random_kernel, signal
from tests.theory.ops.given_draws import GivenHeads
from tests.theory.ops.monte_carlo import assert_close, draw, moments

WIDTH, HEAD, TOKENS = 64, 32, 24


def predict(r, rg, scores, *, dense=False, sampled=False, causal=False, dropout=0.0, tokens=TOKENS, samples=64):
    """State after attention and gradient state at its input, through the four projections' q, k and v."""
    x, g = exchangeable_signal(1.0, r, tokens=tokens, width=WIDTH), exchangeable_gradient(1.0, rg, tokens=tokens)
    if dense or sampled:
        x = replace(x, kernel=x.kernel.dense(), mean=torch.zeros(tokens, dtype=torch.float64))
        g = Gradient(g.kernel.dense())
    tape = Tape()
    source = tape.source(x)
    projections = [tape.apply(Linear(WIDTH, HEAD, v), source) for v in (scores**0.5 / WIDTH, scores**0.5 / WIDTH)]
    value = tape.apply(Linear(WIDTH, HEAD, 1.0 / HEAD), source)
    op = Attention(
        HEAD,
        shared_width=WIDTH,
        dropout=dropout,
        is_causal=causal,
        method="sampled" if sampled else "closed",
        samples=samples,
    )
    out = tape.apply(op, *projections, value)
    tape.backward((out, g))
    return tape.signal(out).kernel, tape.states.gradient(source).kernel


def simulate(r, rg, scores, draws, *, causal=False, dropout=0.0, tokens=TOKENS, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = draw(1.0, r, 0.0, (draws, tokens, WIDTH), rng).requires_grad_()
    std = scores**0.25 / WIDTH**0.5

    def project(scale):
        return x @ (torch.randn(draws, WIDTH, HEAD, generator=rng, dtype=torch.float64) * scale)

    query, key, value = project(std), project(std), project(HEAD**-0.5)
    logits = query @ key.transpose(1, 2) / HEAD**0.5
    if causal:
        logits = logits.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
    matrix = logits.softmax(-1)
    if dropout:
        matrix = matrix * (torch.rand(matrix.shape, generator=rng, dtype=torch.float64) >= dropout) / (1 - dropout)
    out = matrix @ value
    (grad,) = torch.autograd.grad(out, x, draw(1.0, rg, 0.0, (draws, tokens, HEAD), rng))
    return out.detach(), grad


SETTINGS = [
    (0.0, 0.0, 0.25, 0.0),
    (0.3, 0.3, 1.0, 0.0),
    (0.8, 0.5, 1.0, 0.0),
    (0.3, 0.3, 1.0, 0.2),
    (0.5, 0.2, 2.0, 0.0),
]


@pytest.mark.parametrize(("r", "rg", "scores", "dropout"), SETTINGS)
def test_bidirectional_closed_form(r, rg, scores, dropout):
    out, grad = simulate(r, rg, scores, 600, dropout=dropout)
    kernel, back = predict(r, rg, scores, dropout=dropout)
    assert_close(kernel.values, moments(out), "forward", slack=0.03)
    assert_close(back.values, moments(grad), "backward", slack=0.05)


def test_the_paper_gradient_is_far_off_and_ours_is_not():
    """dslm B.8 leaves out the query and key paths: 0.2 of the truth at r = rg = 0, unit scores."""
    _, grad = simulate(0.0, 0.0, 1.0, 400)
    measured = float(moments(grad)[:, 0].mean())
    paper = 1.0 / TOKENS
    _, back = predict(0.0, 0.0, 1.0)
    assert paper < 0.4 * measured
    assert float(back.diagonal) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("r", "rg", "scores", "dropout"), SETTINGS[:4])
def test_dense_equals_exchangeable_on_alike_tokens(r, rg, scores, dropout):
    one, one_back = predict(r, rg, scores, dropout=dropout)
    full, full_back = predict(r, rg, scores, dropout=dropout, dense=True)
    assert full.exchangeable().values == pytest.approx(one.values, rel=0.02)
    assert full_back.exchangeable().values == pytest.approx(one_back.values, rel=0.02, abs=2e-3)


@pytest.mark.parametrize(("scores", "dropout"), [(0.25, 0.0), (1.0, 0.0), (1.0, 0.3)])
def test_causal_dense_position_by_position(scores, dropout):
    """With dropout this also settles that a query with a single key sends nothing to it through the scores."""
    r, rg = 0.3, 0.3
    out, grad = simulate(r, rg, scores, 1500, causal=True, dropout=dropout)
    kernel, back = predict(r, rg, scores, causal=True, dense=True, dropout=dropout)
    assert_close(kernel.diagonal, out.square().mean(2), "forward by position", slack=0.03)
    assert_close(back.diagonal, grad.square().mean(2), "backward by position", slack=0.06)


@pytest.mark.parametrize("scores", [0.25, 1.0])
def test_causal_position_average(scores):
    out, grad = simulate(0.3, 0.3, scores, 600, causal=True)
    kernel, back = predict(0.3, 0.3, scores, causal=True)
    assert_close(kernel.values, moments(out), "forward", slack=0.04)
    assert_close(back.values, moments(grad), "backward", slack=0.06)


@pytest.mark.parametrize("causal", [False, True])
def test_sampled_heads_are_the_reference(causal):
    out, grad = simulate(0.4, 0.3, 1.0, 600, causal=causal)
    kernel, back = predict(0.4, 0.3, 1.0, causal=causal, sampled=True, samples=256)
    assert_close(kernel.exchangeable().values, moments(out), "forward", slack=0.03)
    assert_close(back.exchangeable().values, moments(grad), "backward", slack=0.05)


def test_uniform_attention_limits():
    """Vanishing scores: bidirectional `r + (1-r)/L`; causal `r + (1-r) H/L` and gradient `H/L + rg (2 - 2H/L)`."""
    r, rg, length = 0.4, 0.3, 50
    kernel, back = predict(r, rg, 1e-8, tokens=length)
    gain = WIDTH / HEAD
    assert float(kernel.diagonal) / gain == pytest.approx(r + (1 - r) / length, rel=1e-4)
    harmonic = sum(1 / n for n in range(1, length + 1))
    for dense in (False, True):
        kernel, back = predict(r, rg, 1e-8, causal=True, tokens=length, dense=dense)
        variance = kernel.token_average(kernel.diagonal) / gain
        assert float(variance) == pytest.approx(r + (1 - r) * harmonic / length, rel=1e-4)
        expected = harmonic / length + rg * (2 - 2 * harmonic / length)
        assert float(back.token_average(back.diagonal)) == pytest.approx(expected, rel=1e-3)


def test_value_gradients_add_up_to_query_gradients():
    """Rows of the attention matrix sum to one, whatever the mask."""
    mask = torch.rand(10, 10, generator=torch.Generator().manual_seed(0)) < 0.6
    mask |= torch.eye(10, dtype=torch.bool)
    state = exchangeable_signal(1.0, 0.3, tokens=10, width=32).kernel.dense()
    g = exchangeable_gradient(1.0, 0.4, tokens=10).kernel.dense()
    for method in ("closed", "sampled"):
        op = Attention(32, mask=mask, method=method)
        signal = exchangeable_signal(1.0, 0.3, tokens=10, width=32)
        signal = replace(signal, kernel=state, mean=torch.zeros(10, dtype=torch.float64))
        out = op.forward(signal, signal, signal)
        to_value = op.backward(Gradient(g), out, signal, signal, signal)[2]
        assert float(to_value.kernel.total()) == pytest.approx(float(g.total()), rel=1e-9)


def test_grouped_queries_multiply_key_and_value_gradients():
    signal = exchangeable_signal(1.0, 0.3, tokens=16, width=64)
    g = exchangeable_gradient(1.0, 0.2, tokens=16)
    plain, grouped = Attention(32), Attention(32, groups=4)
    one = plain.backward(g, plain.forward(signal, signal, signal), signal, signal, signal)
    four = grouped.backward(g, grouped.forward(signal, signal, signal), signal, signal, signal)
    assert four[0].kernel.values == pytest.approx(one[0].kernel.values)
    for index in (1, 2):
        assert four[index].kernel.values == pytest.approx(4 * one[index].kernel.values)


def test_head_scale():
    """Scores scaled by 1/d_head instead of its root: variance smaller by d_head."""
    signal = exchangeable_signal(1.0, 0.0, tokens=16, width=64)
    narrow = Attention(32, scale=1 / 32).forward(signal, signal, signal).weights.raw_variance
    usual = Attention(32).forward(signal, signal, signal).weights.raw_variance
    assert float(usual / narrow) == pytest.approx(32)


def test_large_scores_are_marked_as_assumed():
    signal = exchangeable_signal(3.0, 0.0, tokens=16, width=64)
    assert str(Attention(32).forward(signal, signal, signal).evidence.status) == "assumed"


@pytest.mark.parametrize("extra", [{"mask": torch.ones(16, 16)}, {"bias": torch.zeros(16, 16)}, {"method": "sampled"}])
def test_what_needs_a_dense_kernel_is_not_ignored(extra):
    signal = exchangeable_signal(1.0, 0.0, tokens=16, width=64)
    with pytest.raises(UnsupportedError, match="dense token kernel"):
        Attention(32, **extra).forward(signal, signal, signal)


def test_dense_kernels_keep_their_type_and_symmetry():
    signal = exchangeable_signal(1.0, 0.3, tokens=8, width=64)
    signal = replace(signal, kernel=signal.kernel.dense(), mean=torch.zeros(8, dtype=torch.float64))
    op = Attention(32, is_causal=True)
    out = op.forward(signal, signal, signal)
    assert isinstance(out.kernel, Dense)
    assert torch.allclose(out.kernel.values, out.kernel.values.T)
    assert math.isfinite(float(out.kernel.total()))


def test_drawn_heads_send_their_weights_the_gradient_of_values_and_outputs():
    """`E (g_t v_s)^2 = d G_tt K_ss` where the gradient is independent of the output, and `d (S A K)_ts` on average
    where it is `S o`."""
    value, gradient = signal(), Gradient(Dense(random_kernel(P, 3)))
    weights, slope = random_kernel(P, 6).softmax(-1), torch.linspace(0.2, 0.6, P, dtype=torch.float64)
    heads = GivenHeads(value, weights[None], draws=1500, has_sources=True)
    op = DrawnAttention(heads)
    op.parameters(gradient, value)
    expected = value.width * gradient.kernel.diagonal[:, None] * value.kernel.diagonal
    assert_close(expected, torch.stack(heads.sent).flatten(1, 3).double().square(), "squares", 1e-5)
    heads.sent.clear()
    op.parameters(Gradient(gradient.kernel, along_signal=AlongSignal(slope)), value)
    moved = value.width * slope[:, None] * (weights @ value.kernel.values)
    assert_close(moved, torch.stack(heads.sent).flatten(1, 3).double(), "means", 1e-5)

"""Attention: closed forms against real heads, and their stated limits."""

import math
from dataclasses import replace

import pytest
import torch

from sigprop.blueprints.base import Tape
from sigprop.theory import Dense, Gradient, exchangeable_gradient, exchangeable_signal
from sigprop.theory.ops.attention import Attention, DrawnAttention
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.softmax import gradient_factor
from sigprop.theory.states import AlongSignal
from tests.theory.ops.cases import P, random_kernel, signal
from tests.theory.ops.given_draws import GivenHeads
from tests.theory.ops.monte_carlo import assert_close, draw, moments

WIDTH, HEAD, TOKENS = 64, 32, 24


def predict(r, rg, scores, *, dense=False, causal=False, dropout=0.0, tokens=TOKENS):
    """State after attention and gradient state at its input, through the four projections' q, k and v."""
    x, g = exchangeable_signal(1.0, r, tokens=tokens, width=WIDTH), exchangeable_gradient(1.0, rg, tokens=tokens)
    if dense:
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


def heads(tokens, scores, draws, r=0.0, rg=0.0, width=64):
    """Independent queries, keys and values, and their gradients under one of the output."""
    rng = torch.Generator().manual_seed(tokens)
    query, key, value = (draw(scores**0.5, r, 0.0, (draws, tokens, width), rng).requires_grad_() for _ in range(3))
    matrix = (query @ key.mT / width**0.5).softmax(-1)
    white = draw(1.0, rg, 0.0, (draws, tokens, width), rng)
    return matrix.detach(), torch.autograd.grad(matrix @ value, (query, key, value), white)


@pytest.mark.parametrize(("tokens", "scores"), [(2, 0.05), (12, 0.05), (12, 1.0), (24, 1.0), (64, 0.5)])
def test_gradients_of_queries_and_keys_of_few_tokens(tokens, scores):
    """The softmax lets `1 - 1/n` of the gradient through at small scores, less at large ones."""
    matrix, measured = heads(tokens, scores, 2400 // tokens)
    x = exchangeable_signal(scores**0.5, 0.0, tokens=tokens, width=64)
    op = Attention(64)
    out = op.forward(x, x, x)
    found = op.backward(exchangeable_gradient(1.0, tokens=tokens), out, x, x, x)
    for state, grad in zip(found, measured, strict=True):
        assert_close(state.kernel.diagonal, grad.square().mean((1, 2))[:, None], "same token", slack=0.06)
    squares = matrix.square().sum(-1)
    passed = (squares - 2.0 * (matrix**3).sum(-1) + squares.square()).mean() / squares.mean()
    assert float(out.weights.passed) == pytest.approx(float(passed), rel=0.05)
    count, variance = torch.tensor(float(tokens)), torch.tensor(scores)
    measured_factor = float(passed * squares.mean() / tokens)
    assert float(gradient_factor(count, variance, 0.4)) == pytest.approx(0.6 * measured_factor, rel=0.06)


@pytest.mark.parametrize(("tokens", "scores", "r", "rg"), [(12, 0.1, 0.0, 0.5), (16, 1.0, 0.3, 0.9)])
@pytest.mark.parametrize("dense", [False, True])
def test_gradients_of_pairs_of_queries(tokens, scores, r, rg, dense):
    """The Jacobian of the softmax takes its part of pairs of queries too, which a bias of queries receives."""
    x, g = exchangeable_signal(scores**0.5, r, tokens=tokens, width=64), exchangeable_gradient(1.0, rg, tokens=tokens)
    x, g = (x.dense(), Gradient(g.kernel.dense())) if dense else (x, g)
    op = Attention(64)
    to_query = op.backward(g, op.forward(x, x, x), x, x, x)[0].kernel.exchangeable()
    _, (measured, _, _) = heads(tokens, scores, 400, r, rg)
    assert_close(to_query.values, moments(measured), "queries", slack=0.05)


def test_the_paper_gradient_is_far_off_and_ours_is_not():
    """dslm B.8 leaves out the query and key paths: 0.2 of the truth at r = rg = 0, unit scores."""
    _, grad = simulate(0.0, 0.0, 1.0, 400)
    measured = float(moments(grad)[:, 0].mean())
    paper = 1.0 / TOKENS
    _, back = predict(0.0, 0.0, 1.0)
    assert paper < 0.4 * measured
    assert float(back.diagonal) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("r", "rg", "scores", "dropout"), SETTINGS)
def test_dense_equals_exchangeable_on_exchangeable_tokens(r, rg, scores, dropout):
    one, one_back = predict(r, rg, scores, dropout=dropout)
    full, full_back = predict(r, rg, scores, dropout=dropout, dense=True)
    assert full.exchangeable().values == pytest.approx(one.values, rel=1e-12)
    assert full_back.exchangeable().values == pytest.approx(one_back.values, rel=1e-12)


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


@pytest.mark.parametrize("causal", [False, True])
def test_value_gradients_add_up_to_query_gradients(causal):
    """Rows of the attention matrix sum to one, with a mask and without."""
    state = exchangeable_signal(1.0, 0.3, tokens=10, width=32).kernel.dense()
    g = exchangeable_gradient(1.0, 0.4, tokens=10).kernel.dense()
    op = Attention(32, is_causal=causal)
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

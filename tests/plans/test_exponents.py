"""The algebra of width exponents against the published table, its own identities, and real training."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sigprop.errors import InputError, UnknownNameError
from sigprop.plans.exponents import (
    ALIGNMENTS,
    MUON_SCALES,
    OPTIMIZERS,
    PARAMETRIZATIONS,
    Exponents,
    Parametrization,
    exponents,
    read_alignment,
    read_optimizer,
    read_parametrization,
    solve,
)
from sigprop.research.exponents import chain, classify, gauge

H = Fraction(1, 2)
TABLE = {
    "SP": {"adam": (0, 1, 1), "sgd": (-H, H, 1), "adafactor": (0, H, H)},
    "NTK": {"adam": (0, H, H), "sgd": (-H, -H, 0), "adafactor": (0, H, H)},
    "muP": {"adam": (H, 1, H), "sgd": (0, 0, 0), "adafactor": (0, H, 0)},
    "MF": {"adam": (0, H, 0), "sgd": (-1, -1, -1), "adafactor": (0, H, 0)},
}
fractions = st.builds(Fraction, st.integers(-4, 4), st.just(2))
triples = st.builds(Exponents, fractions, fractions, fractions)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adafactor"])
def test_solver_reproduces_the_table(name, optimizer):
    assert solve(name, optimizer, "full").c == TABLE[name][optimizer]


@pytest.mark.parametrize(
    ("left", "right"), [("adamw", "adam"), ("sign", "adam"), ("lion", "adam"), ("momentum", "sgd")]
)
def test_optimizers_of_one_size_share_the_exponents(left, right):
    for name in PARAMETRIZATIONS:
        assert solve(name, left).c == solve(name, right).c


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gauge_classes(optimizer):
    found = {name: classify(name, optimizer).equivalent for name in PARAMETRIZATIONS}
    assert found == {"SP": ("SP", "NTK"), "NTK": ("SP", "NTK"), "muP": ("muP", "MF"), "MF": ("muP", "MF")}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@given(theta=triples, name=st.sampled_from(sorted(PARAMETRIZATIONS)))
@settings(max_examples=20)
def test_gauge_moves_change_no_observable(optimizer, theta, name):
    entry = PARAMETRIZATIONS[name]
    entry = Parametrization(entry.a, entry.b, solve(entry, optimizer).c)
    moved = gauge(entry, theta, OPTIMIZERS[optimizer])
    left, right = classify(entry, optimizer), classify(moved, optimizer)
    assert left.chain.activations == right.chain.activations
    assert left.chain.activation_gradients == right.chain.activation_gradients
    assert left.chain.updates == right.chain.updates
    assert solve(moved, optimizer).c == moved.c
    assert left.equivalent == right.equivalent


def test_the_wrong_gauge_shift_is_not_equivalent():
    entry = PARAMETRIZATIONS["SP"]
    entry = Parametrization(entry.a, entry.b, solve(entry, "sgd").c)
    moved = gauge(entry, exponents(0, "1/2", "1/2"), OPTIMIZERS["adam"])
    assert classify(moved, "sgd").equivalent == ()


def test_without_alignment_rates_may_be_larger_by_half():
    for name in PARAMETRIZATIONS:
        full, none = solve(name, "adam", "full").c, solve(name, "adam", "none").c
        assert none == Exponents(full.embedding, full.hidden - H, full.readout - H)


def test_partial_alignment_interpolates():
    partial = read_alignment("alpha=3/4,u=3/4")
    assert solve("SP", "adam", partial).c == (0, Fraction(3, 4), Fraction(3, 4))


def test_readout_alignment_makes_sp_unstable_by_half_and_leaves_mup_alone():
    verdict = classify("SP", "adam", "readout")
    assert verdict.regime == "unstable"
    (failure,) = verdict.failures
    assert (failure.role, failure.excess) == ("readout", H)
    assert classify("SP", "adam", "full").stable
    for name in ("muP", "MF"):
        assert classify(name, "adam", "readout").regime == "feature learning"


def test_stable_rates_for_an_aligned_readout_are_lazy():
    solution = solve("NTK", "sgd", "readout")
    assert solution.c == (0, 0, 0)
    assert solution.feature_change == H
    entry = PARAMETRIZATIONS["NTK"]
    verdict = classify(Parametrization(entry.a, entry.b, solution.c), "sgd", "readout")
    assert (verdict.stable, verdict.regime) == (True, "lazy")


def test_too_small_rates_are_frozen_and_too_large_ones_unstable():
    entry = PARAMETRIZATIONS["muP"]
    small = Parametrization(entry.a, entry.b, exponents(1, "3/2", 1))
    assert classify(small, "adam").regime == "frozen"
    large = Parametrization(entry.a, entry.b, exponents("1/2", "3/4", "1/2"))
    verdict = classify(large, "adam", depth=3)
    assert not verdict.stable
    assert {item.role for item in verdict.failures} == {"hidden", "readout"}
    assert verdict.failures[0].excess == Fraction(1, 4)


@pytest.mark.parametrize(
    ("b", "role", "excess"),
    [
        (exponents("1/2", "1/2", "1/2"), "embedding", H),
        (exponents(0, 0, "1/2"), "hidden", H),
        (exponents(0, "1/2", 0), "readout", H),
    ],
)
def test_unstable_initializations_are_named(b, role, excess):
    broken = Parametrization(exponents(0, 0, 0), b, exponents(0, 1, 1))
    first = classify(broken, "adam").failures[0]
    assert (first.role, first.excess) == (role, excess)
    with pytest.raises(InputError, match="stable initialization"):
        solve(broken)


def test_muon_is_width_invariant_in_hidden_layers_for_three_of_four_scales():
    hidden = {scale: solve("SP", f"muon:{scale}").c for scale in MUON_SCALES}
    assert {scale: c.hidden for scale, c in hidden.items()} == {"none": 0, "shape": 0, "rms": H, "unit": 0}
    assert hidden["unit"] == (0, 0, 0)
    assert hidden["shape"] == (0, 0, H)
    assert read_optimizer("muon") == OPTIMIZERS["muon:shape"]


@pytest.mark.parametrize("rank", [1, None])
def test_muon_hidden_response_is_free_of_rank_and_width(rank):
    """RMS(O h) of the orthogonal factor of an aligned gradient, over widths: exponent 0 either way."""
    generator = torch.Generator().manual_seed(0)
    sizes = []
    for width in (64, 256):
        h = torch.randn(width, rank or width, generator=generator, dtype=torch.float64)
        gradient = torch.randn(width, h.shape[1], generator=generator, dtype=torch.float64) @ h.T
        left, _, right = torch.linalg.svd(gradient)
        count = h.shape[1]
        factor = left[:, :count] @ right[:count]
        sizes.append((factor @ h[:, 0]).square().mean().sqrt().item() / h[:, 0].square().mean().sqrt().item())
    assert sizes == pytest.approx([1.0, 1.0], rel=1e-9)


def test_decoupled_decay_and_epsilon_follow():
    solution = solve("SP", "adamw")
    assert solution.weight_decay == (0, -1, -1)
    assert solution.epsilon == (H, H, 0)


def test_chain_matches_the_printed_variances():
    """Eqs. (3) to (5) for exponents that are not stable; the bracket in (5) enters with a minus sign
    (the product in the proof of Lemma D.5 gives L - 1, not the printed L + 1)."""
    entry = Parametrization(exponents("1/3", "1/5", "1/7"), exponents("1/2", "1/4", "1/6"))
    depth, c = 3, exponents(0, 0, 0)
    found = chain(entry, c, OPTIMIZERS["adam"], ALIGNMENTS["full"], depth)
    roles = ["embedding", *["hidden"] * depth, "readout"]
    s = [getattr(entry.a, role) + getattr(entry.b, role) for role in roles]
    b = [getattr(entry.b, role) for role in roles]
    for layer in range(depth + 2):
        assert -2 * found.activations[layer] == layer - 2 * sum(s[: layer + 1])
        inner = depth - (1 <= layer <= depth)
        assert -2 * found.weight_gradients[layer] == inner - 2 * (sum(s) - b[layer])
    for layer in range(1, depth + 2):
        assert -2 * found.activation_gradients[layer - 1] == (depth + 1) - layer - 2 * sum(s[layer:])


def test_reading_names_and_settings():
    assert read_parametrization("mup") is PARAMETRIZATIONS["muP"]
    assert read_parametrization("a=0,0,0; b=0,1/2,1/2").initial() == (0, H, H)
    assert read_parametrization("a=0,0,0;b=0,1/2,1;c=0,1,-1/2").c == (0, 1, -H)
    assert read_alignment("omega_readout=1").omega_readout == 1
    assert read_alignment("omega=1").omega_hidden == 1
    with pytest.raises(UnknownNameError, match="SP"):
        read_parametrization("SPP")
    with pytest.raises(InputError, match="needs three"):
        read_parametrization("a=0,0;b=0,0,0")
    with pytest.raises(InputError, match="needs a="):
        read_parametrization("b=0,0,0")
    with pytest.raises(UnknownNameError, match="adam"):
        solve("SP", "adamm")
    with pytest.raises(UnknownNameError, match="full"):
        read_alignment("ful")
    with pytest.raises(InputError, match="between 0 and 1"):
        read_alignment("alpha=2")
    with pytest.raises(InputError, match="fraction"):
        exponents(0, "x", 1)
    with pytest.raises(InputError, match="no learning rate is stable"):
        solve("SP", "adam", "omega_hidden=1")

"""One battery over every op: declared parts against behaviour, adjoints, and Monte Carlo on real tensors.

An op without a case fails; so does an op that forgets a part of the state (planted below).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sigprop.theory.ops
from sigprop.theory import Dense, Exchangeable, Gradient, Kernel, Signal, activations, exchangeable_signal
from sigprop.theory.corrections.along_signal import alignment_of
from sigprop.theory.corrections.gates import ActivationGradient, activation_gain
from sigprop.theory.ops.base import Op
from sigprop.theory.ops.convolution import Convolution
from sigprop.theory.ops.group_norm import GroupNorm
from sigprop.theory.ops.layer_norm import LayerNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.positions_to_channels import ChannelsToPositions, PositionsToChannels
from sigprop.theory.ops.token_map import TokenMap
from sigprop.theory.states import (
    GRADIENT_PARTS,
    KEPT,
    SIGNAL_PARTS,
    TRANSFORMED,
    AlongSignal,
    Carries,
    Common,
    Directions,
    Fluctuation,
    ThroughActivation,
    ended,
)
from tests.theory.ops.cases import CASES, DRAWS, C, Case, P, random_kernel, signal

SIGMAS = 4.5
BATCHES = 30


def ops() -> set[type[Op]]:
    """Every op of the theory."""
    found: set[type[Op]] = set()
    for module in pkgutil.walk_packages(sigprop.theory.ops.__path__, "sigprop.theory.ops."):
        for item in vars(importlib.import_module(module.name)).values():
            if isinstance(item, type) and issubclass(item, Op) and not inspect.isabstract(item):
                found.add(item)
    return found


def test_every_op_has_a_case():
    covered = {type(case.op) for case in CASES.values()}
    missing = sorted(op.__name__ for op in ops() - covered)
    assert not missing, f"no case in tests/theory/ops/cases.py for {', '.join(missing)}"


@pytest.mark.parametrize("name", CASES)
def test_every_op_says_its_equations(name):
    """Forward, and backward or the weights where it has no input to send a gradient to."""
    op, text = CASES[name].op, type(CASES[name].op).__doc__ or ""
    assert "Forward " in text, type(op).__name__
    sends = bool(CASES[name].inputs)
    assert not sends or "Backward " in text, type(op).__name__
    assert sends or "Weights " in text, type(op).__name__
    assert re.search(r"[Ee]xact|[Ff]irst order|fitted|[Ll]arge batch|[Aa]s `?[A-Z]", text), (
        f"{type(op).__name__}: how exact"
    )


def test_states_are_made_by_the_declaration():
    """Only where a signal or a gradient starts is one made by hand: elsewhere a part could be left out unseen."""
    starts = {"GivenSignal", "ParameterSource", "between_pieces"}
    for file in Path(sigprop.theory.ops.__path__[0]).rglob("*.py"):
        for part in ast.parse(file.read_text()).body:
            calls = [node.func for node in ast.walk(part) if isinstance(node, ast.Call)]
            made = {call.id for call in calls if isinstance(call, ast.Name) and call.id in ("Signal", "Gradient")}
            name = getattr(part, "name", "")
            allowed = name in starts or file.stem in ("sources", "loss")
            assert not made or allowed, f"{name} of {file.name} makes a {made.pop()} by hand: use its carries"


# -- parts of the state: what is declared is what happens


def full_signal(x: Signal) -> Signal:
    """A state in which no part is as it starts."""
    fluctuation = Fluctuation(3.1, 1.7, 0.4)
    return replace(x, fluctuation=fluctuation, common=Common(0.3, torch.tensor(0.2, dtype=torch.float64), 0.05))


def upstream(size: int, y: Kernel) -> Gradient:
    kernel = Dense(random_kernel(size, 7))
    slopes = activations.get("relu").derivative_cross_moment(y.diagonal[:, None], y.diagonal[None, :], y.values)
    seen = ActivationGradient(kernel, Dense(kernel.values * slopes), activations.get("relu"))
    return Gradient(
        Dense(kernel.values * slopes),
        Directions(0.2, 0.6),
        AlongSignal(random_kernel(size, 8) / size, random_kernel(size, 9) / size),
        ThroughActivation((seen,), 0.3),
    )


def same(first: object, second: object) -> bool:
    if isinstance(first, Kernel) and isinstance(second, Kernel):
        return same(first.values, second.values)
    if isinstance(first, (Tensor, float, int)) and isinstance(second, (Tensor, float, int)):
        one, two = torch.as_tensor(first, dtype=torch.float64), torch.as_tensor(second, dtype=torch.float64)
        return one.shape == two.shape and torch.allclose(one, two, rtol=1e-12, atol=0.0)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if is_dataclass(first) and type(first) is type(second):
        return all(same(getattr(first, f.name), getattr(second, f.name)) for f in fields(first))
    return first == second


def complaints(case: Case) -> Iterator[str]:
    """Where the declaration of an op is not what it does."""
    op, inputs = case.op, tuple(full_signal(x) for x in case.inputs)
    output = op.forward(*inputs)
    gradient = upstream(output.kernel.tokens, output.kernel)
    op.parameters(gradient, *inputs)  # first, as on a tape
    arrived = [item for item in op.backward(gradient, output, *inputs) if item is not None]
    for name, kind in SIGNAL_PARTS.items():
        before = getattr(inputs[0], name) if inputs else None
        fresh = getattr(op.forward(*(replace(x, **{name: kind()}) for x in inputs)), name)
        yield from _judged(op, name, kind, before, [getattr(output, name)], [fresh])
    for name, kind in GRADIENT_PARTS.items():
        if not arrived:
            continue
        changed = replace(gradient, **{name: kind()})
        op.parameters(changed, *inputs)
        plain = op.backward(changed, output, *inputs)
        found, fresh = ([getattr(item, name) for item in items if item is not None] for items in (arrived, plain))
        yield from _judged(op, name, kind, getattr(gradient, name), found, fresh)


def _judged(op: Op, name: str, kind: type, before: object, found: list, fresh: list) -> Iterator[str]:
    passage = getattr(op.carries, name)
    where = f"{type(op).__name__} declares {name} {passage.kind}"
    if passage is KEPT and not all(same(item, before) for item in found):
        yield f"{where} and changes it"
    if passage.kind == "ended" and not all(same(item, kind()) for item in found):
        yield f"{where} and it goes on"
    if passage.kind == "ended" and len(passage.reason) < 10:
        yield f"{where} and does not say why"
    idle = all(same(item, kind()) for item in found) and all(map(same, found, fresh))
    if passage is TRANSFORMED and idle:
        yield f"{where} and forgets it"


@pytest.mark.parametrize("name", CASES)
def test_declared_parts_are_what_happens(name):
    """A part that one use of an op leaves alone, as weights without a mean do, another case of it uses."""
    kind = type(CASES[name].op)
    others = [set(complaints(case)) for case in CASES.values() if type(case.op) is kind]
    assert set(complaints(CASES[name])) <= {item for item in set.union(*others) if "forgets" in item}
    assert not set.intersection(*others)


# -- a battery that catches nothing proves nothing


def planted(**declared) -> Op:
    """An op that returns what it is given, with the parts of the gradient and of the signal dropped."""

    class Forgetful(Op):
        carries = Carries(
            **{name: declared.get(name, ended("a planted reason")) for name in (*SIGNAL_PARTS, *GRADIENT_PARTS)}
        )

        def forward(self, *inputs: Signal) -> Signal:
            return Signal(inputs[0].kernel, inputs[0].mean, inputs[0].width)

        def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
            return (Gradient(gradient.kernel),)

    return Forgetful()


def test_an_honest_op_passes():
    assert list(complaints(replace(CASES["scale"], op=planted()))) == []


@pytest.mark.parametrize("passage", [KEPT, TRANSFORMED], ids=["kept", "transformed"])
@pytest.mark.parametrize("name", [*SIGNAL_PARTS, *GRADIENT_PARTS])
def test_an_op_that_forgets_a_part_is_caught(name, passage):
    (found,) = complaints(replace(CASES["scale"], op=planted(**{name: passage})))
    assert name in found


def test_an_op_that_declares_nothing_cannot_be_defined():
    with pytest.raises(TypeError, match="does not say what it carries"):

        @dataclass(frozen=True)
        class Silent(Op):
            def forward(self, *inputs: Signal) -> Signal:
                return inputs[0]

            def backward(self, gradient: Gradient, output: Signal, *inputs: Signal) -> tuple[Gradient]:
                return (gradient,)


def test_an_op_that_leaves_a_part_out_cannot_be_defined():
    with pytest.raises(TypeError, match="through_activation"):
        Carries(fluctuation=KEPT, common=KEPT, directions=KEPT, along_signal=KEPT)  # type: ignore[call-arg]


def test_a_transformed_part_must_be_given():
    op, x = CASES["linear"].op, CASES["linear"].inputs[0]
    with pytest.raises(TypeError, match="'fluctuation' of a state is declared transformed, and it was not given"):
        op.carries.signal(x, x.kernel, x.mean)


# -- one function, one answer


@pytest.mark.parametrize("bias", [None, 0.3], ids=["plain", "bias"])
def test_a_window_of_one_position_is_a_linear_map(bias):
    """In every field, forward and backward."""
    x = full_signal(signal())
    one, two = Linear(C, 16, 0.04, bias), Convolution(C, 16, 0.04, bias, rows=torch.arange(P)[:, None], window=())
    made = one.forward(x)
    gradient = upstream(P, made.kernel)
    assert same(two.forward(x), made)
    assert same(two.backward(gradient, made, x), one.backward(gradient, made, x))
    flat = [replace(item, shape=item.shape[:2]) for item in two.parameters(gradient, x)]
    assert same(tuple(flat), tuple(one.parameters(gradient, x)))


def test_one_pixel_of_an_image_is_layer_norm():
    x = full_signal(signal(width=64))
    one, two = GroupNorm(image=torch.arange(P), epsilon=1e-5), LayerNorm()
    first, second = one.forward(x), two.forward(x)
    assert same(first.fluctuation.norm, second.fluctuation.norm)
    assert same(first.common.uniform, second.common.uniform)
    gradient = upstream(P, second.kernel)
    (left,), (right,) = one.backward(gradient, first, x), two.backward(gradient, second, x)
    assert same(left.directions, right.directions)


TAKEN = torch.tensor([[0, 1], [1, 2], [2, 3]])
OF_ALIKE = {
    "mean": TokenMap.mean(P),
    "map": TokenMap(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]], dtype=torch.float64)),
    "all taken in": PositionsToChannels(torch.arange(P)[None], P * C),
    "windows": PositionsToChannels(TAKEN, 2 * C),
    "patches": PositionsToChannels(TAKEN[::2], 2 * C),
    "strided convolution": Convolution(2 * C, 16, 0.04, rows=TAKEN[::2]),
    "channels to positions": ChannelsToPositions(3),
}


@pytest.mark.parametrize("name", OF_ALIKE)
def test_tokens_that_are_alike_need_no_pairs_written_out(name):
    """The average token and pair of an exchangeable state are those of the same state with all pairs written out."""
    op, x = OF_ALIKE[name], full_signal(exchangeable_signal(0.8, 0.3, 0.5, tokens=P, width=C))
    one, two = op.forward(x), op.forward(x.dense())
    tokens = one.kernel.tokens
    kernel = Exchangeable.of(1.0, -1.0 / (tokens - 1) if tokens > 1 else 1.0, tokens)
    gradient = Gradient(kernel, Directions(0.2, 0.6))
    (left,) = op.backward(gradient, one, x)
    (right,) = op.backward(replace(gradient, kernel=kernel.dense()), two, x.dense())
    for first, second in ((one, two.exchangeable()), (left, replace(right, kernel=right.kernel.exchangeable()))):
        pairs = (first.kernel.values, second.kernel.values)
        torch.testing.assert_close(*(pair[: first.kernel.tokens] for pair in pairs), rtol=1e-12, atol=1e-14)
    assert same(one.mean, two.exchangeable().mean)
    assert same(one.fluctuation, two.fluctuation)
    assert same(left.directions, right.directions)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.op.picks is not None])
def test_positions_that_are_picked_are_those_of_the_input(name):
    op, (x,) = CASES[name].op, CASES[name].inputs
    made = op.forward(x)
    assert same(made.kernel.values, x.kernel.values[op.picks][:, op.picks])
    assert same(made.mean, x.mean[op.picks])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.op.of_entry(torch.ones(1)) is not None])
def test_the_slope_of_an_entry_is_its_derivative(name):
    values = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64).requires_grad_()
    made = CASES[name].op.of_entry(values)
    assert made is not None
    (slope,) = torch.autograd.grad(made[0].sum(), values, allow_unused=True)
    torch.testing.assert_close(made[1].detach(), slope)


@pytest.mark.parametrize("name", ["sampled", "drawn attention"])
def test_drawn_ops_answer_every_gradient_by_itself(name):
    """The first one's answer was kept for all that followed."""
    op, inputs = CASES[name].op, CASES[name].inputs
    output = op.forward(*inputs)
    first, second = (Gradient(Dense(random_kernel(P, 3) * scale)) for scale in (1.0, 4.0))
    (one,), (two,) = (op.backward(gradient, output, *inputs) for gradient in (first, second))
    assert one is not None
    assert two is not None
    torch.testing.assert_close(two.kernel.values, 4.0 * one.kernel.values, rtol=1e-6, atol=0.0)


# -- adjoints


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.linear])
def test_backward_is_the_adjoint(name):
    """What a linear op makes of a signal and of a gradient have the same energy between them."""
    case = CASES[name]
    output = case.op.forward(*case.inputs)
    gradient = Gradient(Dense(random_kernel(output.kernel.tokens, 1)))
    back = case.op.backward(gradient, output, *case.inputs)
    above = float(gradient.kernel.contract(output.kernel)) * output.width * case.energy
    below = sum(float(g.kernel.contract(x.kernel)) * x.width for g, x in zip(back, case.inputs, strict=True) if g)
    assert below == pytest.approx(above, rel=1e-12)


# -- Monte Carlo


class Experiment:
    """Many draws of the inputs and of what the op draws, and of a gradient at the output."""

    def __init__(self, case: Case, seed: int = 0):
        self.case, self.generator = case, torch.Generator().manual_seed(seed)
        self.xs = [self.rows(x.covariance.values, x.width) + x.mean[:, None] for x in case.inputs]
        self.xs = [x.requires_grad_() for x in self.xs]
        assert case.simulate is not None
        self.y, self.drawn = case.simulate(self.xs, self.generator)
        self.output = case.op.forward(*case.inputs)

    def rows(self, kernel: Tensor, width: int) -> Tensor:
        noise = torch.randn(DRAWS, len(kernel), width, generator=self.generator, dtype=torch.float64)
        return torch.linalg.cholesky(kernel + 1e-12 * torch.eye(len(kernel))) @ noise

    def back(self, gradient: Tensor) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Gradients at the inputs and at the parameters."""
        leaves = [*self.xs, *self.drawn.values()]
        found = torch.autograd.grad(self.y, leaves, gradient, retain_graph=True)
        return list(found[: len(self.xs)]), dict(zip(self.drawn, found[len(self.xs) :], strict=True))

    def agree(self, values: Tensor, expected: Tensor | float, what: str) -> None:
        """`values[draw]` on average, in standard errors, beside the error that the op states of itself."""
        expected = torch.as_tensor(expected, dtype=torch.float64)
        average, error = values.detach().mean(0), values.detach().std(0) / len(values) ** 0.5
        allowed = self.case.allowed * torch.maximum(expected.abs(), average.abs().max())
        far = (average - expected).abs() - allowed
        assert bool((far <= SIGMAS * error + 1e-12).all()), f"{what}: {average} is {far / error} errors off {expected}"


def kernels(x: Tensor, y: Tensor | None = None) -> Tensor:
    return x @ (x if y is None else y).mT / x.shape[-1]


def simulated(check: str) -> list[str]:
    return [name for name, case in CASES.items() if case.simulate is not None and check not in case.unchecked]


@pytest.mark.parametrize("name", simulated("forward"))
def test_forward_and_backward(name):
    case = CASES[name]
    run = Experiment(case)
    run.agree(kernels(run.y), run.output.kernel.values, "kernel")
    run.agree(run.y.mean(-1), run.output.mean, "mean")
    gradient = Gradient(Dense(random_kernel(run.y.shape[1], 7, common=0.2)))
    arrived, parameters = run.back(run.rows(gradient.kernel.values, run.y.shape[-1]))
    predicted = case.op.backward(gradient, run.output, *case.inputs)
    for number, (found, expected) in enumerate(zip(arrived, predicted, strict=True)):
        assert expected is not None
        run.agree(kernels(found), expected.kernel.values, f"gradient at input {number}")
    if "parameters" in case.unchecked:
        return
    states = {item.name: item for item in case.op.parameters(gradient, *case.inputs)}
    for key, found in parameters.items():
        run.agree(found.square().flatten(1).mean(1), states[key].grad_second_moment, f"gradient of {key}")


def batched(values: Tensor) -> Tensor:
    return values.detach().unflatten(0, (BATCHES, -1))


@pytest.mark.parametrize("name", simulated("norm"))
def test_fluctuation_of_norms(name):
    run = Experiment(CASES[name])
    width, energy = run.y.shape[-1], batched(run.y.square().sum(-1)[:, run.output.kernel.diagonal > 0])
    assert width == run.output.width
    relative = width * energy.var(1) / energy.mean(1).square()
    first_order = 0.5 + 6.0 * float(run.output.fluctuation.norm) / width
    found, error = relative.mean(), relative.mean(1).std() / BATCHES**0.5
    assert abs(found - float(run.output.fluctuation.norm)) < SIGMAS * error + first_order, (
        found,
        run.output.fluctuation,
    )


@pytest.mark.parametrize("name", simulated("uniform"))
def test_shares_along_all_ones(name):
    run = Experiment(CASES[name])
    centred = (run.y - run.output.mean[:, None])[:, run.output.kernel.diagonal > 0]
    share = batched(centred.sum(-1).square()).mean(1) / batched(centred.square().sum(-1)).mean(1)
    found, error = share.mean(), share.mean(1).std() / BATCHES**0.5
    assert abs(found - float(run.output.common.uniform)) < SIGMAS * error + 0.02, (found, run.output.common)


@pytest.mark.parametrize("radial", [1.0, 0.0], ids=["anywhere", "across"])
@pytest.mark.parametrize("name", simulated("directions"))
def test_directions_of_the_gradient(name, radial):
    """A gradient that points anywhere, or across the output, sent back: its shares along the signal, and of the former
    along all ones."""
    case = CASES[name]
    run = Experiment(case)
    size, y = run.y.shape[1], run.y.detach()
    gradient = Gradient(Dense(torch.eye(size, dtype=torch.float64)), Directions(radial))
    drawn = run.rows(gradient.kernel.values, y.shape[-1])
    if not radial:
        along = (drawn * y).sum(-1, keepdim=True) / y.square().sum(-1, keepdim=True).clamp_min(1e-300)
        drawn = drawn - along * y
    arrived, _ = run.back(drawn)
    predicted = case.op.backward(gradient, run.output, *case.inputs)
    for x, g, expected in zip(run.xs, arrived, predicted, strict=True):
        assert expected is not None
        energy = g.square().sum(-1)
        along = (g * x).sum(-1).square() / x.square().sum(-1) * x.shape[-1]
        live = energy.mean(0) > 0
        shares = [(along, expected.directions.radial), (g.sum(-1).square(), expected.directions.uniform)]
        for found, share in shares[: 1 + int(radial)]:
            ratio = batched(found[:, live]).mean(1) / batched(energy[:, live]).mean(1)
            error = ratio.mean(1).std() / BATCHES**0.5
            assert abs(ratio.mean() - float(share)) < SIGMAS * error + 3.0 / x.shape[-1], (
                ratio.mean(),
                expected.directions,
            )


class Leaning(Experiment):
    """A gradient `B y` and noise at the output."""

    def __init__(self, case: Case, slope: Tensor):
        super().__init__(case)
        noise = torch.eye(len(slope), dtype=torch.float64)
        full = slope if slope.ndim == 2 else torch.diag(slope)
        kernel = Dense(full @ self.output.kernel.values @ full.T + noise)
        above = Gradient(kernel, along_signal=AlongSignal(slope))
        self.arrived, _ = self.back((full @ self.y + self.rows(noise, self.y.shape[-1])).detach())
        self.predicted = case.op.backward(above, self.output, *case.inputs)


@pytest.mark.parametrize("name", simulated("along"))
def test_what_is_along_the_signal(name):
    """The product of the gradient with the inputs, `E x_s g_t` over channels."""
    case = CASES[name]
    size = case.op.forward(*case.inputs).kernel.tokens
    run = Leaning(case, 0.3 * random_kernel(size, 4, common=0.1))
    for number, (x, state, g) in enumerate(zip(run.xs, case.inputs, run.arrived, strict=True)):
        expected = run.predicted[number]
        assert expected is not None
        run.agree(kernels(x, g), alignment_of(expected, state.kernel), f"input {number}")


@pytest.mark.parametrize("name", [name for name in simulated("along") if "leaning" not in CASES[name].unchecked])
def test_energy_of_what_is_along_the_signal(name):
    case = CASES[name]
    size = case.op.forward(*case.inputs).kernel.tokens
    run = Leaning(case, torch.linspace(0.2, 0.6, size, dtype=torch.float64))
    for number, g in enumerate(run.arrived):
        expected = run.predicted[number]
        assert expected is not None
        run.agree(kernels(g), expected.kernel.values, f"gradient at input {number}")


@pytest.mark.parametrize("name", [name for name in simulated("gain") if CASES[name].inputs])
def test_what_comes_through_an_activation(name):
    """A gradient `h relu'(y)`: the square of `sum_t g_t x_t`, which is what a gain below would get."""
    case = CASES[name]
    run = Experiment(case)
    y, relu = run.output, activations.get("relu")
    variance, noise = y.kernel.diagonal, Dense(random_kernel(run.y.shape[1], 7, common=0.2))
    slopes = relu.derivative_cross_moment(variance[:, None], variance[None, :], y.kernel.values)
    passed = Dense(noise.values * slopes)
    gradient = Gradient(passed, through_activation=ThroughActivation((ActivationGradient(noise, passed, relu),)))
    above = (run.rows(noise.values, run.y.shape[-1]) * (run.y > 0)).detach()
    arrived, _ = run.back(above)
    predicted = case.op.backward(gradient, y, *case.inputs)
    for number, (x, state, g) in enumerate(zip(run.xs, case.inputs, arrived, strict=True)):
        expected = predicted[number]
        assert expected is not None
        total = expected.kernel.contract(state.kernel) + activation_gain(expected, state.kernel, state.mean)
        run.agree((x * g).sum(1).square().mean(-1), total, f"input {number}")

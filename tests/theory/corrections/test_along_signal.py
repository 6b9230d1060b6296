"""Gradients that depend on the signal at the top, sent back through branches: against autograd on plain draws."""

import pytest
import torch
from torch import Tensor

from sigprop.blueprints.base import Tape
from sigprop.graph.graph import Node
from sigprop.theory import Dense, Gradient, Signal, activations
from sigprop.theory.ops.activation import Activation
from sigprop.theory.ops.layer_norm import RMSNorm
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.residual import Residual
from sigprop.theory.ops.token_map import TokenMap
from sigprop.theory.states import AlongSignal

TOKENS, WIDTH, DRAWS = 16, 128, 300
KERNEL = 0.2 + 0.8 * torch.eye(TOKENS, dtype=torch.float64)
LEANING = torch.linspace(-0.7, -0.3, TOKENS, dtype=torch.float64)
MIXING = torch.randn(TOKENS, TOKENS, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(1)


class Drawn:
    """A stream with branches on drawn numbers, and the squares of the gradients that autograd finds."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.x = (torch.linalg.cholesky(KERNEL).float() @ self.normal(TOKENS, WIDTH)).requires_grad_()
        self.weights: list[Tensor] = []
        self.gains: list[Tensor] = []

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(DRAWS, *shape, generator=self.generator)

    def linear(self, x: Tensor) -> Tensor:
        self.weights.append((self.normal(WIDTH, WIDTH) / WIDTH**0.5).requires_grad_())
        return x @ self.weights[-1]

    def norm(self, x: Tensor) -> Tensor:
        self.gains.append(torch.ones(DRAWS, 1, WIDTH, requires_grad=True))
        return x / x.square().mean(-1, keepdim=True).sqrt() * self.gains[-1]

    def back(self, y: Tensor) -> dict[str, Tensor]:
        """Per draw: second moments at the input (same tokens, and summed over all), of matrices and of gains."""
        gradient = LEANING.float()[:, None] * y.detach() + self.normal(TOKENS, WIDTH)
        at_x, *found = torch.autograd.grad(y, [self.x, *self.weights, *self.gains], gradient)
        squares = {"same": at_x.square().mean((1, 2)), "summed": at_x.sum(1).square().mean(1) / TOKENS**2}
        names = [f"weight {n}" for n in range(len(self.weights))] + [f"gain {n}" for n in range(len(self.gains))]
        return squares | {name: value.square().mean((1, 2)) for name, value in zip(names, found, strict=True)}


class Theory:
    """The same with states; `leans` tells whether the gradient's dependence on the signal is followed."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.x = self.tape.source(Signal(Dense(KERNEL), torch.zeros(TOKENS, dtype=torch.float64), WIDTH))

    def linear(self, x: Node) -> Node:
        return self.tape.apply(Linear(WIDTH, WIDTH, 1.0 / WIDTH), x, parameters="linear")

    def norm(self, x: Node) -> Node:
        return self.tape.apply(RMSNorm(epsilon=0.0), x, parameters="norm")

    def back(self, y: Node, leans: bool = True) -> dict[str, float]:
        top = LEANING[:, None] * self.tape.signal(y).kernel.values * LEANING + torch.eye(TOKENS, dtype=torch.float64)
        self.tape.backward((y, Gradient(Dense(top), along_signal=AlongSignal(LEANING if leans else 0.0))))
        arrived = self.tape.states.gradient(self.x)
        kernel = arrived.kernel
        found = {"same": float(arrived.energy()), "summed": float(kernel.total()) / TOKENS**2}
        known = self.tape.states.parameters
        parameters = [known[node][0] for node in self.tape.graph.nodes if node in known]
        for role, word in (("hidden", "weight"), ("norm gain", "gain")):
            states = [state for made in parameters for state in made if state.role == role]
            found |= {f"{word} {n}": float(state.grad_second_moment) for n, state in enumerate(states)}
        return found


def errors(drawn: dict[str, Tensor], expected: dict[str, float]) -> dict[str, float]:
    """In standard errors."""
    assert drawn.keys() == expected.keys()
    return {n: float((d.mean() - expected[n]) / d.std()) * DRAWS**0.5 for n, d in drawn.items()}


def test_branches_that_mix_tokens():
    """What the gradients have in common adds up over tokens and over branches."""
    net, made = Drawn(), Theory()
    y, z = net.x, made.x
    for mixing in (MIXING, MIXING.T):
        y = y + net.linear(mixing.float() @ net.linear(y))
        inner = made.tape.apply(TokenMap(mixing), made.linear(z))
        z = made.tape.apply(Residual(), z, made.linear(inner))
    drawn = net.back(y)
    found = errors(drawn, made.back(z))
    assert all(abs(error) < 4 for error in found.values()), found
    assert errors(drawn, made.back(z, leans=False))["summed"] > 6


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_an_mlp_below_a_norm(name):
    """The norm takes out all of it at the stream; matrices and gain have seen it."""
    net, made, function = Drawn(), Theory(), activations.get(name)
    y = net.x + net.linear(function(net.linear(net.norm(net.x))))
    hidden = made.tape.apply(Activation(function), made.linear(made.norm(made.x)))
    z = made.tape.apply(Residual(), made.x, made.linear(hidden))
    drawn = net.back(y)
    found = errors(drawn, made.back(z))
    assert all(abs(error) < 4 for error in found.values()), found
    assert errors(drawn, made.back(z, leans=False))["gain 0"] > 6

"""Multi-layer perceptron: vanilla, with LayerNorm, with residual strength mu.

    h^1 = W x + b,    h^{l+1} = W phi(h^l) + b + mu h^l,    Var W = sigma_w^2 / fan_in,  Var b = sigma_b^2

with LayerNorm on pre-activations `phi(norm(h))`, on activations `norm(phi(h))`, or nowhere.
Reference: Doshi, He, Gromov, Critical Initialization of Wide and Deep Neural Networks using Partial
Jacobians, NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Generator, Tensor, nn

from sigprop.errors import require
from sigprop.models.layers import Residual, activation, reference

PLACEMENTS = ("none", "preactivation", "activation")


@dataclass(frozen=True)
class MLPConfig:
    """Shape and choices of an MLP; `depth` counts the hidden-to-hidden blocks."""

    inputs: int = 784
    width: int = 500
    depth: int = 50
    outputs: int = 10
    activation: str = "relu"
    norm_placement: str = "none"
    mu: float = 0.0
    sigma_w: float = 2.0**0.5
    sigma_b: float = 0.0

    def __post_init__(self) -> None:
        require(self.norm_placement in PLACEMENTS, "norm_placement", self.norm_placement, " or ".join(PLACEMENTS))
        require(self.sigma_w >= 0, "sigma_w", self.sigma_w, "a number that is not negative")
        require(self.sigma_b >= 0, "sigma_b", self.sigma_b, "a number that is not negative")


class Block(nn.Module):
    """One step from pre-activation `h^l` to `h^{l+1}`."""

    def __init__(self, config: MLPConfig):
        super().__init__()
        self.placement = config.norm_placement
        self.norm = nn.LayerNorm(config.width) if self.placement != "none" else None
        self.activation = activation(config.activation)
        self.linear = nn.Linear(config.width, config.width)
        self.residual = Residual(skip_scale=config.mu) if config.mu else None

    def forward(self, h: Tensor) -> Tensor:
        x = h
        if self.norm is not None and self.placement == "preactivation":
            x = self.norm(x)
        x = self.activation(x)
        if self.norm is not None and self.placement == "activation":
            x = self.norm(x)
        x = self.linear(x)
        return x if self.residual is None else self.residual(h, x)


class MLP(nn.Module):
    """Inputs of any shape (batch, ...) are flattened to (batch, inputs)."""

    def __init__(self, config: MLPConfig, generator: Generator | None = None):
        super().__init__()
        self.config = config
        self.input = nn.Linear(config.inputs, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.activation = activation(config.activation)
        self.head = nn.Linear(config.width, config.outputs)
        self.reset_(generator)

    def reset_(self, generator: Generator | None = None) -> None:
        """Initialize every weight and bias anew."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0.0, self.config.sigma_w / module.in_features**0.5, generator)
                nn.init.normal_(module.bias, 0.0, self.config.sigma_b, generator)

    def forward(self, x: Tensor) -> Tensor:
        h = self.input(x.flatten(1))
        for block in self.blocks:
            h = block(h)
        return self.head(self.activation(h))


@reference("mlp", MLPConfig)
def mlp(**settings) -> MLP:
    """Build an MLP from the settings of `MLPConfig`."""
    return MLP(MLPConfig(**settings))

"""Named random initializations of a whole model, for experiments; prescriptions live in plans."""

from __future__ import annotations

from collections.abc import Callable

from torch import Generator, nn

from sigprop.compat import fans
from sigprop.errors import UnknownNameError

SCHEMES: dict[str, Callable[[int, int], float]] = {
    "gpt2": lambda fan_in, fan_out: 0.02,
    "he": lambda fan_in, fan_out: (2.0 / fan_in) ** 0.5,
    "lecun": lambda fan_in, fan_out: fan_in**-0.5,
    "xavier": lambda fan_in, fan_out: (2.0 / (fan_in + fan_out)) ** 0.5,
}


def initialize_(
    model: nn.Module, scheme: str, generator: Generator | None = None, embedding_std: float = 0.02
) -> nn.Module:
    """Normal weights with the scheme's standard deviation, zero biases, norms at identity; in place.

    A tied head keeps the embedding's scale.
    """
    if scheme not in SCHEMES:
        raise UnknownNameError("initialization scheme", scheme, SCHEMES)
    tied = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, 0.0, embedding_std, generator)
        elif isinstance(module, (nn.Linear, nn.Conv2d)):
            if id(module.weight) not in tied:
                fan_in, fan_out = fans(module.weight)
                nn.init.normal_(module.weight, 0.0, SCHEMES[scheme](fan_in, fan_out), generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d)):
            module.reset_parameters()
    return model

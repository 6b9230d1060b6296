"""RMSNorm."""

from __future__ import annotations

from dataclasses import dataclass

from sigprop.theory.ops.layer_norm import LayerNorm


@dataclass(frozen=True)
class RMSNorm(LayerNorm):
    """`y = gain * x / rms(x)`: as LayerNorm without centring, so the mean of a token survives.

    Forward   as LayerNorm about zero, mean `m / rms`
    Backward  as LayerNorm without the uniform direction; for independent Gaussian channels
              `G_x = G_y / rms^2 * (d-1)/(d-2)` (abc D.2 with the next order)
    """

    epsilon: float = 1e-6

    centres = False

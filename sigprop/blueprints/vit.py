"""Vision Transformer blueprint: image patches as tokens, an encoder, mean pooling and a class head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sigprop.blueprints import embeddings
from sigprop.blueprints.base import Setting, Tape, require_positive_int
from sigprop.blueprints.inits import get_init
from sigprop.blueprints.transformer import Transformer
from sigprop.errors import require
from sigprop.graph.graph import Node
from sigprop.theory import Gradient
from sigprop.theory.ops import loss
from sigprop.theory.ops.linear import Linear
from sigprop.theory.ops.token_map import TokenMap


@dataclass(frozen=True)
class ViT(Transformer):
    """Settings of a Vision Transformer. `pixels` are real patches `[tokens, patch values]`; without them patches
    are white noise of unit variance with the given `input_correlation`."""

    name: ClassVar[str] = "vit"

    image: int = 28
    channels: int = 1
    patch: int = 7
    classes: int = 10
    activation: str = "gelu"
    input_correlation: Setting = 0.0
    pixels: Tensor | None = None

    def __post_init__(self) -> None:
        for key in ("image", "channels", "patch", "classes"):
            require_positive_int(key, getattr(self, key))
        require(self.image % self.patch == 0, "patch", self.patch, f"a divisor of the image size {self.image}")
        require(self.kind == "encoder", "kind", self.kind, "encoder")
        object.__setattr__(self, "tokens", (self.image // self.patch) ** 2)
        super().__post_init__()

    @property
    def patch_values(self) -> int:
        return self.channels * self.patch**2

    def _head(self, tape: Tape, x: Node) -> Node:
        variance = get_init(self.init).matrix(self.width, self.classes)
        head = Linear(self.width, self.classes, variance, role="readout")
        return tape.apply(
            head, tape.apply(TokenMap.mean(tape.signal(x).kernel.tokens), x), name="head", depth=self.depth
        )

    def top_gradient(self, tape: Tape, output: Node) -> Gradient:
        return (loss.white_noise if self.top == "white_noise" else loss.cross_entropy)(tape.signal(output))

    def _embedding_sum(self, tape: Tape, tokens: int) -> Node:
        return embeddings.patch_sum(self, tape)

    @property
    def is_dense(self) -> bool:
        return super().is_dense or (self.state == "auto" and self.pixels is not None)

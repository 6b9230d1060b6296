"""The compositions, in two halves that were written down before any was run.

The corrections were derived and tuned with the development half in view. The held-out half was looked at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from studies.compositions.networks import (
    Experts,
    GraphNetwork,
    Language,
    Recurrent,
    ResidualMLP,
    Scan,
    SwiGLU,
    Vision,
    cnn,
    group,
    mlp,
)

SEEDS = 200


@dataclass(frozen=True)
class Composition:
    """A network, what it reads and what is differentiated."""

    name: str
    build: Callable[[], nn.Module]
    batch: tuple[int, ...]
    loss: str = "noise"
    ids: bool = False

    def inputs(self) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        if self.ids:
            return torch.randint(64, self.batch, generator=generator)
        return torch.randn(self.batch, generator=generator)

    def objective(self) -> str | Callable[[Tensor], Tensor]:
        """Targets are one fixed draw: classes, or numbers of variance one."""
        return OBJECTIVES.get(self.loss, self.loss)


def cross_entropy(output: Tensor) -> Tensor:
    logits = output.reshape(-1, output.shape[-1])
    targets = (torch.arange(len(logits)) * 7) % logits.shape[-1]
    return nn.functional.cross_entropy(logits, targets)


def mse(output: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, torch.randn(output.shape, generator=torch.Generator().manual_seed(8)))


OBJECTIVES: dict[str, Callable[[Tensor], Tensor]] = {"cross_entropy": cross_entropy, "mse": mse}


def _mlp(norm: str, act: str, width: int, depth: int, loss: str, gain: float = 0.0) -> Composition:
    name = f"{norm} {act} mlp {width}x{depth} {loss}"
    return Composition(name, partial(mlp, norm, act, width, depth, gain), (16, width), loss)


def _language(name: str, width: int, depth: int, loss: str = "cross_entropy", **options: object) -> Composition:
    build = partial(Language, width, depth, **options)  # type: ignore[arg-type]
    return Composition(f"{name} {width}x{depth} {loss}", build, (2, 16), loss, ids=True)


DEVELOPMENT = (
    _mlp("layer", "relu", 64, 16, "noise"),
    _mlp("layer", "gelu", 128, 24, "noise"),
    _mlp("layer", "relu", 64, 16, "mse"),
    _mlp("layer", "tanh", 128, 12, "cross_entropy"),
    _mlp("rms", "relu", 128, 24, "noise"),
    _mlp("rms", "gelu", 64, 12, "cross_entropy"),
    _mlp("batch", "relu", 64, 8, "noise"),
    _mlp("none", "relu", 64, 16, "mse", 2.0),
    _mlp("none", "tanh", 64, 16, "noise", 1.0),
    _mlp("none", "gelu", 128, 12, "cross_entropy", 2.0),
    Composition("residual mlp 64x16 noise", partial(ResidualMLP, 64, 16), (16, 64)),
    Composition("reused blocks 64x4x4 noise", partial(ResidualMLP, 64, 4, visits=4), (16, 64)),
    _language("pre-norm", 64, 12),
    _language("post-norm", 64, 8, place="post"),
    _language("experts", 64, 4, feedforward=Experts),
    _language("tied head", 64, 8, tied=True),
    Composition("cnn batch 32x8 cross_entropy", partial(cnn, 32, 8, nn.BatchNorm2d), (8, 3, 8, 8), "cross_entropy"),
    Composition("cnn group 64x8 noise", partial(cnn, 64, 8, group), (4, 3, 8, 8)),
    Composition("vit 64x8 cross_entropy", partial(Vision, 64, 8), (4, 3, 8, 8), "cross_entropy"),
    Composition("lstm 64 noise", partial(Recurrent, 64), (8, 8, 64)),
)

HELD_OUT = (
    _mlp("layer", "relu", 128, 24, "cross_entropy"),
    _mlp("layer", "tanh", 64, 32, "noise"),
    _mlp("layer", "gelu", 64, 16, "mse"),
    _mlp("rms", "relu", 64, 24, "mse"),
    _mlp("rms", "tanh", 256, 32, "cross_entropy"),
    _mlp("batch", "gelu", 128, 8, "mse"),
    _mlp("batch", "tanh", 64, 8, "cross_entropy"),
    _mlp("none", "relu", 128, 12, "cross_entropy", 2.0),
    _mlp("none", "gelu", 64, 16, "noise", 2.0),
    _mlp("none", "tanh", 64, 32, "mse", 1.0),
    Composition("residual mlp 32x64 mse", partial(ResidualMLP, 32, 64, "gelu"), (16, 32), "mse"),
    Composition("reused blocks 64x2x8 noise", partial(ResidualMLP, 64, 2, "gelu", visits=8), (16, 64)),
    _language("pre-norm rms swiglu", 128, 12, norm=nn.RMSNorm, feedforward=SwiGLU),
    _language("post-norm", 64, 12, "noise", place="post"),
    _language("peri-norm", 64, 12, place="peri"),
    _language("mamba", 32, 4, mixer=Scan, feedforward=None, norm=nn.RMSNorm),
    Composition(
        "resnet batch 32x6 cross_entropy", partial(cnn, 32, 6, nn.BatchNorm2d, True), (8, 3, 8, 8), "cross_entropy"
    ),
    Composition("resnet group 32x6 noise", partial(cnn, 32, 6, group, True), (4, 3, 8, 8)),
    Composition("mixer 64x8 cross_entropy", partial(Vision, 64, 8, True), (4, 3, 8, 8), "cross_entropy"),
    Composition("graph network 64x12 cross_entropy", partial(GraphNetwork, 64, 12), (2, 24, 64), "cross_entropy"),
)

"""Bugs in GANs, autoencoders, diffusion models and fields."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.parts import WIDTH, Block, Mlp, fill, he, images, noise, normal, small_weights


class Generator(nn.Module):
    """A small DCGAN generator."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(16, 64 * 16)
        self.up1, self.norm1 = nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32)
        self.up2, self.norm2 = nn.ConvTranspose2d(32, 32, 4, 2, 1), nn.BatchNorm2d(32)
        self.last = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.enter(z).view(-1, 64, 4, 4)
        x = F.relu(self.norm1(self.up1(x)))
        return torch.tanh(self.last(F.relu(self.norm2(self.up2(x)))))


def generated(model: nn.Module) -> Setting:
    wanted = 0.5 * images(8)[0].tanh()
    return Setting(model, noise(8, 16), lambda output: F.mse_loss(output, wanted))


@bug(
    "gan",
    "the last layer of a generator saturates its tanh",
    at="last",
    cause="saturat|tanh",
    fix="last",
    mend=lambda m: normal(m, "last.weight", 0.02),
)
def saturated_generator(buggy: bool) -> Setting:
    model: Any = Generator()
    normal(model, "last.weight", 4.0 if buggy else 0.02)
    return generated(model)


@bug(
    "gan",
    "the first matrix of a generator is zero: all images are the same",
    at="enter",
    cause="zero|does not depend|same for",
    fix="enter|initialize|normal",
    mend=lambda m: normal(m, "enter.weight", 0.25),
)
def blind_generator(buggy: bool) -> Setting:
    model: Any = Generator()
    if buggy:
        fill(model, "enter.weight", 0.0)
    return generated(model)


@bug(
    "gan",
    "gains of batch norms from N(0, 0.02), not N(1, 0.02)",
    at="norm[12]",
    cause="gain",
    fix="one|1|mean",
    mend=lambda m: fill(m, "norm1.weight", 1.0) or fill(m, "norm2.weight", 1.0),
)
def centred_gains(buggy: bool) -> Setting:
    model: Any = Generator()
    for norm in (model.norm1, model.norm2):
        nn.init.normal_(norm.weight, 0.0 if buggy else 1.0, 0.001)
    return generated(model)


class Critic(nn.Module):
    """A discriminator, with a sigmoid before a loss that takes probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = he(
            nn.Sequential(
                *(m for i in range(3) for m in (nn.Conv2d(3 if i == 0 else 32, 32, 3, 2, 1), nn.LeakyReLU(0.2)))
            )
        )
        self.last = nn.Linear(32 * 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        chance = self.last(self.convs(x).flatten(1)).sigmoid()
        return F.binary_cross_entropy(chance, (torch.arange(len(x)) % 2).float()[:, None])


@bug(
    "gan",
    "a discriminator whose probabilities are exactly 0 and 1",
    at="last",
    cause="saturat|sigmoid|logit|loss",
    fix="last",
    mend=lambda m: normal(m, "last.weight", 0.02),
)
def certain_critic(buggy: bool) -> Setting:
    model: Any = Critic()
    normal(model, "last.weight", 30.0 if buggy else 0.02)
    return Setting(model, images()[0])


@bug(
    "gan",
    "a WGAN critic clipped to 0.001",
    at="convs|last",
    cause="shrink|small|vanish|std|clip",
    fix="std|he|kaiming|clip|weight",
    mend=lambda m: he(m.convs),
)
def clipped_critic(buggy: bool) -> Setting:
    model: Any = Critic()
    if buggy:
        for weight in model.convs.parameters():
            weight.data.clamp_(-0.001, 0.001)
    return Setting(model, images()[0])


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.logvar = nn.Linear(64, 128), nn.Linear(128, 8), nn.Linear(128, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.encoder(x))
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        z = mean + (0.5 * logvar).exp() * noise(*mean.shape, seed=13)
        divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(-1).mean()
        return F.mse_loss(self.decoder(z), x) + 0.01 * divergence


@bug(
    "vae",
    "the log-variance of a VAE starts at 40",
    at="logvar",
    cause="exp|bias|large|overflow|loss",
    fix="logvar|bias",
    mend=lambda m: fill(m, "logvar.bias", 0.0),
)
def hot_vae(buggy: bool) -> Setting:
    model: Any = Vae()
    fill(model, "logvar.bias", 40.0 if buggy else 0.0)
    return Setting(model, noise(16, 64))


class Unet(nn.Module):
    """Two levels with a skip, a time embedding, and a last convolution of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32))
        self.enter, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, 2, 1)
        self.middle, self.up = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(64, 32, 3, padding=1)
        self.norm, self.last = nn.GroupNorm(4, 32), nn.Conv2d(32, 3, 3, padding=1)
        self.unit = 1000.0
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        first = F.silu(self.enter(x))
        inner = self.down(first) + self.time(t[:, None] / self.unit)[:, :, None, None]
        inner = F.interpolate(self.middle(F.silu(inner)), scale_factor=2.0)
        return self.last(F.silu(self.norm(self.up(torch.cat([first, inner], dim=1)))))


def denoised(model: nn.Module) -> Setting:
    clean = images(8)[0]
    wanted = noise(*clean.shape, seed=14)
    return Setting(
        model, {"x": clean + wanted, "t": torch.linspace(10, 990, 8)}, lambda output: F.mse_loss(output, wanted)
    )


@bug(
    "diffusion",
    "every convolution of a U-Net starts at zero",
    at="enter|down|middle|up",
    cause="zero",
    fix="only|last|initialize|random|normal|kaiming",
    mend=lambda m: he(nn.ModuleList([m.enter, m.down, m.middle, m.up])),
)
def all_zero(buggy: bool) -> Setting:
    model: Any = Unet()
    for layer in (model.enter, model.down, model.middle, model.up) if buggy else ():
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return denoised(model)


@bug(
    "diffusion",
    "times up to 1000 enter the network as they are",
    at="time",
    cause="time|input|large|drown",
    fix="scale|divide|1000|time",
    mend=lambda m: setattr(m, "unit", 1000.0),
)
def raw_times(buggy: bool) -> Setting:
    model: Any = Unet()
    model.unit = 1.0 if buggy else 1000.0
    return denoised(model)


class Dit(nn.Module):
    """Blocks modulated by the time, as adaLN-zero starts them."""

    offset = 1.0

    def __init__(self, depth: int = 3):
        super().__init__()
        self.patches, self.time = nn.Linear(48, WIDTH), nn.Sequential(nn.Linear(1, WIDTH), nn.SiLU())
        self.blocks = nn.ModuleList([Block(WIDTH, None).attn for _ in range(depth)])
        self.mlps = nn.ModuleList([Mlp(WIDTH) for _ in range(depth)])
        self.modulation = nn.ModuleList([nn.Linear(WIDTH, 6 * WIDTH) for _ in range(depth)])
        self.norm, self.last = nn.LayerNorm(WIDTH, elementwise_affine=False), nn.Linear(WIDTH, 48)
        small_weights(self, 0.1)
        for layer in self.modulation:
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x, time = self.patches(x), self.time(t[:, None] / 1000.0)
        for attention, mlp, modulation in zip(self.blocks, self.mlps, self.modulation, strict=True):
            parts: Any = modulation(time)[:, None].chunk(6, dim=-1)
            x = x + (self.offset - 1 + parts[2]) * attention(self.norm(x) * (self.offset + parts[0]) + parts[1])
            x = x + (self.offset - 1 + parts[5]) * mlp(self.norm(x) * (self.offset + parts[3]) + parts[4])
        return self.last(self.norm(x) * self.offset)


def patched(model: nn.Module) -> Setting:
    clean = noise(8, 16, 48)
    return Setting(model, {"x": clean, "t": torch.linspace(10, 990, 8)}, lambda output: F.mse_loss(output, 0.5 * clean))


@bug(
    "diffusion",
    "modulation by `scale` where it should be by `1 + scale`, both zero",
    at="modulation|blocks|norm|last",
    cause="zero",
    fix="1 \\+|one|scale",
    mend=lambda m: setattr(m, "offset", 1.0),
)
def modulated_by_zero(buggy: bool) -> Setting:
    model: Any = Dit()
    model.offset = 0.0 if buggy else 1.0
    return patched(model)


class Siren(nn.Module):
    """Sines of 30 times a linear map."""

    def __init__(self, divisor: float, depth: int = 5):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2 if i == 0 else 128, 128) for i in range(depth)])
        self.last = nn.Linear(128, 1)
        for place, layer in enumerate(self.layers):
            bound = 0.5 if place == 0 else math.sqrt(6 / 128) / divisor
            nn.init.uniform_(layer.weight, -bound, bound)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(30.0 * layer(x))
        return self.last(x)


def _siren_mend(model: Any) -> None:
    for layer in model.layers[1:]:
        layer.weight.div_(30.0)


@bug(
    "field",
    "hidden layers of a SIREN not divided by omega",
    at="layers",
    cause="gradient|chao|std|gain|grow",
    fix="layers|std|divide|omega|30",
    mend=_siren_mend,
)
def chaotic_siren(buggy: bool) -> Setting:
    x = noise(64, 2).tanh()
    wanted = torch.sin(3.0 * x.sum(-1, keepdim=True))
    return Setting(Siren(1.0 if buggy else 30.0), x, lambda output: F.mse_loss(output, wanted))


class Field(nn.Module):
    """A density by a ReLU, as the first radiance fields had it."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = he(nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()))
        self.density = nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.density(self.trunk(x)))


@bug(
    "field",
    "a density that is zero everywhere: its ReLU is dead",
    at="density",
    cause="dead|negative|bias|zero",
    fix="bias|density",
    mend=lambda m: fill(m, "density.bias", 0.5),
)
def empty_field(buggy: bool) -> Setting:
    model: Any = Field()
    fill(model, "density.bias", -30.0 if buggy else 0.5)
    x = noise(64, 3)
    return Setting(model, x, lambda output: F.mse_loss(output, x.square().sum(-1, keepdim=True)))

"""The networks of the eighth set that read no text: images, sound, graphs, tables, policies, forecasts."""

# ruff: noqa: E731

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

# -- images


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    def __init__(self, hidden: int, heads: int, ratio: int = 4):
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.proj, self.heads = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden), heads
        self.mlp = nn.Sequential(nn.Linear(hidden, ratio * hidden), nn.GELU("tanh"), nn.Linear(ratio * hidden, hidden))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 6 * hidden))

    def attn(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate_a.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_a, scale_a))
        return x + gate_m.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_m, scale_m))


class DiT(nn.Module):
    """The modulations keep Xavier's weights where `zero` is off, as after some training."""

    def __init__(self, depth: int = 2, hidden: int = 64, heads: int = 4, zero: bool = True):
        super().__init__()
        self.x_embedder, self.y_embedder = nn.Conv2d(4, hidden, 2, 2), nn.Embedding(11, hidden)
        self.t_embedder = nn.Sequential(nn.Linear(64, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.blocks = nn.ModuleList([DiTBlock(hidden, heads) for _ in range(depth)])
        self.norm_final, self.linear = nn.LayerNorm(hidden, elementwise_affine=False, eps=1e-6), nn.Linear(hidden, 16)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 16, hidden), requires_grad=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for block in self.blocks if zero else ():
            nn.init.zeros_(block.adaLN_modulation[-1].weight)  # type: ignore[index, union-attr]

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        freqs = torch.exp(-math.log(10000) * torch.arange(32) / 32)
        angles = t[:, None] * freqs[None]
        c = self.t_embedder(torch.cat([angles.cos(), angles.sin()], -1)) + self.y_embedder(y)
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            x = block(x, c)
        return self.linear(self.norm_final(x))


class WeightStandardizedConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.weight.mean((1, 2, 3), keepdim=True), self.weight.var((1, 2, 3), unbiased=False, keepdim=True)
        return F.conv2d(x, (self.weight - mean) * (var + 1e-5).rsqrt(), self.bias, self.stride, self.padding)


class ResnetBlock(nn.Module):
    def __init__(self, dim: int, out: int, time: int, groups: int = 8):
        super().__init__()
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(time, 2 * out))
        self.proj1, self.norm1 = WeightStandardizedConv2d(dim, out, 3, padding=1), nn.GroupNorm(groups, out)
        self.proj2, self.norm2 = WeightStandardizedConv2d(out, out, 3, padding=1), nn.GroupNorm(groups, out)
        self.res_conv = nn.Conv2d(dim, out, 1) if dim != out else nn.Identity()

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        scale, shift = self.mlp(emb)[..., None, None].chunk(2, dim=1)
        h = F.silu(self.norm1(self.proj1(x)) * (scale + 1) + shift)
        return F.silu(self.norm2(self.proj2(h))) + self.res_conv(x)


class LinearAttention(nn.Module):
    def __init__(self, dim: int, heads: int = 2, size: int = 16):
        super().__init__()
        self.heads, self.scale = heads, size**-0.5
        self.norm, self.to_qkv = nn.GroupNorm(1, dim), nn.Conv2d(dim, 3 * heads * size, 1, bias=False)
        self.to_out = nn.Sequential(nn.Conv2d(heads * size, dim, 1), nn.GroupNorm(1, dim))

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = (t.reshape(b, self.heads, -1, h * w) for t in self.to_qkv(self.norm(x)).chunk(3, dim=1))
        q, k = q.softmax(dim=-2) * self.scale, k.softmax(dim=-1)
        context = torch.einsum("bhdn,bhen->bhde", k, v)
        out = torch.einsum("bhde,bhdn->bhen", context, q)
        return x + self.to_out(out.reshape(b, -1, h, w))


class DiffusionUnet(nn.Module):
    def __init__(self, dim: int = 16):
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, 4 * dim))
        self.init_conv, self.dim = nn.Conv2d(3, dim, 7, padding=3), dim
        block = partial(ResnetBlock, time=4 * dim)
        self.down1, self.attn1, self.shrink = block(dim, dim), LinearAttention(dim), nn.Conv2d(dim, 2 * dim, 4, 2, 1)
        self.down2, self.mid_attn, self.mid = block(2 * dim, 2 * dim), LinearAttention(2 * dim), block(2 * dim, 2 * dim)
        self.grow = nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(2 * dim, dim, 3, padding=1))
        self.up1, self.final_res, self.final_conv = block(2 * dim, dim), block(2 * dim, dim), nn.Conv2d(dim, 3, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        half = self.dim // 2
        angles = time[:, None] * torch.exp(torch.arange(half) * -(math.log(10000) / (half - 1)))[None]
        t = self.time_mlp(torch.cat((angles.sin(), angles.cos()), dim=-1))
        x = r = self.init_conv(x)
        x = skip = self.attn1(self.down1(x, t))
        x = self.mid(self.mid_attn(self.down2(self.shrink(x), t)), t)
        x = self.up1(torch.cat((self.grow(x), skip), dim=1), t)
        return self.final_conv(self.final_res(torch.cat((x, r), dim=1), t))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, in_planes: int, planes: int, stride: int = 1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_planes, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, 4 * planes, 1, bias=False), nn.BatchNorm2d(4 * planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != 4 * planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, 4 * planes, 1, stride, bias=False), nn.BatchNorm2d(4 * planes)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(out)))))
        return F.relu(out + self.shortcut(x))


def bottlenecks() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    body = [Bottleneck(16, 8), Bottleneck(32, 8), Bottleneck(32, 12, 2), Bottleneck(48, 12)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))


class DenseLayer(nn.Module):
    def __init__(self, planes: int, growth: int = 12):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(planes), nn.Conv2d(planes, 4 * growth, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x)))))), x], 1)


def dense_net() -> nn.Module:
    between = [nn.BatchNorm2d(60), nn.ReLU(), nn.Conv2d(60, 30, 1, bias=False), nn.AvgPool2d(2)]
    layers = [nn.Conv2d(3, 24, 3, padding=1, bias=False), *(DenseLayer(24 + 12 * i) for i in range(3)), *between]
    layers += [*(DenseLayer(30 + 12 * i) for i in range(2)), nn.BatchNorm2d(54), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(54, 10))


class MBConv(nn.Module):
    """An inverted residual with squeeze and excitation."""

    def __init__(self, inp: int, oup: int, stride: int, expand: int = 4):
        super().__init__()
        hidden, self.identity = inp * expand, stride == 1 and inp == oup
        self.expand = nn.Sequential(nn.Conv2d(inp, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.SiLU())
        self.depth = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.SiLU()
        )
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(hidden, inp // 4, 1),
            nn.SiLU(),
            nn.Conv2d(inp // 4, hidden, 1),
            nn.Sigmoid(),
        )
        self.project = nn.Sequential(nn.Conv2d(hidden, oup, 1, bias=False), nn.BatchNorm2d(oup))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(self.expand(x))
        y = self.project(y * self.se(y))
        return x + y if self.identity else y


def efficient_net() -> nn.Module:
    layers = [
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        MBConv(16, 16, 1),
        MBConv(16, 24, 2),
        MBConv(24, 24, 1),
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0), nn.Linear(24, 10))


class MixerLayer(nn.Module):
    def __init__(self, tokens: int = 16, dim: int = 48):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mix = nn.Sequential(nn.Conv1d(tokens, 4 * tokens, 1), nn.GELU(), nn.Conv1d(4 * tokens, tokens, 1))
        self.channel_mix = nn.Sequential(nn.Linear(dim, dim // 2), nn.GELU(), nn.Linear(dim // 2, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token_mix(self.norm1(x))
        return x + self.channel_mix(self.norm2(x))


class Patches(nn.Module):
    """Patches through blocks, pooled."""

    def __init__(self, blocks: list[nn.Module], dim: int = 48):
        super().__init__()
        self.embed, self.blocks = nn.Conv2d(3, dim, 4, 4), nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(x).flatten(2).transpose(1, 2))).mean(1))


class SwinBlock(nn.Module):
    """Windows of two by two on a grid of four by four, every second time shifted by one."""

    def __init__(self, shift: int, dim: int = 48, heads: int = 3, grid: int = 4, window: int = 2):
        super().__init__()
        self.shift, self.heads, self.grid, self.window = shift, heads, grid, window
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        place = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (place[:, :, None] - place[:, None, :] + window - 1).permute(1, 2, 0)
        self.register_buffer("index", apart[..., 0] * (2 * window - 1) + apart[..., 1])
        region = torch.zeros(1, grid, grid, 1)
        if shift:
            for count, (a, b) in enumerate(
                (a, b) for a in (slice(0, -1), slice(-1, None)) for b in (slice(0, -1), slice(-1, None))
            ):
                region[:, a, b] = count
        groups = self.windows(region).squeeze(-1)
        self.register_buffer("mask", (groups[:, None] != groups[:, :, None]).float() * -100.0)

    def windows(self, x: Tensor) -> Tensor:
        b, c, w = x.shape[0], x.shape[-1], self.window
        return x.view(b, self.grid // w, w, self.grid // w, w, c).transpose(2, 3).reshape(-1, w * w, c)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        y = self.norm1(x).view(b, self.grid, self.grid, c)
        y = self.windows(torch.roll(y, (-self.shift, -self.shift), (1, 2)) if self.shift else y)
        q, k, v = self.qkv(y).reshape(len(y), -1, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q * (c // self.heads) ** -0.5 @ k.transpose(-2, -1) + self.table[self.index].permute(2, 0, 1)  # type: ignore[index]
        scores = scores + self.mask.repeat(b, 1, 1)[:, None]  # type: ignore[operator]
        y = self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(len(y), -1, c))
        w = self.window
        y = y.view(b, self.grid // w, self.grid // w, w, w, c).transpose(2, 3).reshape(b, self.grid, self.grid, c)
        y = torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y
        x = x + y.reshape(b, n, c)
        return x + self.mlp(self.norm2(x))


class ConvNextV2(nn.Module):
    def __init__(self, dim: int = 32):
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma, self.beta = nn.Parameter(torch.zeros(4 * dim)), nn.Parameter(torch.zeros(4 * dim))
        for layer in (self.dwconv, self.pwconv1, self.pwconv2):
            nn.init.trunc_normal_(layer.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        y = F.gelu(self.pwconv1(self.norm(self.dwconv(x).permute(0, 2, 3, 1))))
        size = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        y = self.gamma * (y * (size / (size.mean(dim=-1, keepdim=True) + 1e-6))) + self.beta + y
        return x + self.pwconv2(y).permute(0, 3, 1, 2)


class PoolFormer(nn.Module):
    def __init__(self, dim: int = 32, scale: float = 0.1):
        super().__init__()
        self.norm1, self.norm2, self.pool = (
            nn.GroupNorm(1, dim),
            nn.GroupNorm(1, dim),
            nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        )
        self.mlp = nn.Sequential(nn.Conv2d(dim, 4 * dim, 1), nn.GELU(), nn.Conv2d(4 * dim, dim, 1))
        self.layer_scale_1, self.layer_scale_2 = (nn.Parameter(scale * torch.ones(dim)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.layer_scale_1[:, None, None] * (self.pool(y) - y)
        return x + self.layer_scale_2[:, None, None] * self.mlp(self.norm2(x))


def staged(block: Any) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 4), block(), block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
    )


class ConvVae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        down = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU())
        up = lambda a, b: nn.Sequential(nn.ConvTranspose2d(a, b, 3, 2, 1, 1), nn.BatchNorm2d(b), nn.LeakyReLU())
        self.encoder, self.fc_mu, self.fc_var = (
            nn.Sequential(down(3, 16), down(16, 32)),
            nn.Linear(512, 12),
            nn.Linear(512, 12),
        )
        self.decoder_input, self.decoder = nn.Linear(12, 512), nn.Sequential(up(32, 16), up(16, 16))
        self.final_layer = nn.Sequential(nn.Conv2d(16, 3, 3, padding=1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x).flatten(1)
        mu, log_var = self.fc_mu(h), self.fc_var(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * log_var)
        return self.final_layer(self.decoder(self.decoder_input(z).view(-1, 32, 4, 4)))


class Detr(nn.Module):
    """The demo of DETR, smaller."""

    def __init__(self, hidden: int = 48):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 64, 3, 2, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )
        self.conv, self.transformer = nn.Conv2d(64, hidden, 1), nn.Transformer(hidden, 4, 1, 1, 96, 0.0)
        self.linear_class, self.linear_bbox = nn.Linear(hidden, 8), nn.Linear(hidden, 4)
        self.query_pos = nn.Parameter(torch.rand(10, hidden))
        self.row_embed, self.col_embed = (
            nn.Parameter(torch.rand(4, hidden // 2)),
            nn.Parameter(torch.rand(4, hidden // 2)),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.conv(self.backbone(x))
        H, W = h.shape[-2:]
        pos = (
            torch.cat(
                [self.col_embed[:W].unsqueeze(0).repeat(H, 1, 1), self.row_embed[:H].unsqueeze(1).repeat(1, W, 1)],
                dim=-1,
            )
            .flatten(0, 1)
            .unsqueeze(1)
        )
        h = self.transformer(
            pos + 0.1 * h.flatten(2).permute(2, 0, 1), self.query_pos.unsqueeze(1).repeat(1, len(x), 1)
        ).transpose(0, 1)
        return self.linear_class(h), self.linear_bbox(h).sigmoid()


class ConvBnSilu(nn.Sequential):
    def __init__(self, a: int, b: int, k: int = 1, s: int = 1):
        super().__init__(nn.Conv2d(a, b, k, s, k // 2, bias=False), nn.BatchNorm2d(b), nn.SiLU())


class C2f(nn.Module):
    def __init__(self, c1: int, c2: int, n: int = 1):
        super().__init__()
        self.c = c2 // 2
        self.cv1, self.cv2 = ConvBnSilu(c1, c2), ConvBnSilu((2 + n) * self.c, c2)
        self.m = nn.ModuleList(
            nn.Sequential(ConvBnSilu(self.c, self.c, 3), ConvBnSilu(self.c, self.c, 3)) for _ in range(n)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).split((self.c, self.c), 1))
        for m in self.m:
            y.append(y[-1] + m(y[-1]))
        return self.cv2(torch.cat(y, 1))


class Yolo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.p2, self.p3 = (
            ConvBnSilu(3, 16, 3, 2),
            nn.Sequential(C2f(16, 24), ConvBnSilu(24, 32, 3, 2)),
            C2f(32, 32),
        )
        self.cv1, self.cv2, self.pool = ConvBnSilu(32, 16), ConvBnSilu(64, 32), nn.MaxPool2d(5, 1, 2)
        self.merge, self.box, self.cls = C2f(32 + 16, 24), nn.Conv2d(24, 4, 1), nn.Conv2d(24, 5, 1)
        nn.init.constant_(self.cls.bias, math.log(5 / 5 / (640 / 8) ** 2))  # type: ignore[arg-type]
        nn.init.constant_(self.box.bias, 1.0)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        low = self.stem(x)
        y = self.cv1(self.p3(self.p2(low)))
        one = self.pool(y)
        two = self.pool(one)
        y = self.cv2(torch.cat([y, one, two, self.pool(two)], 1))
        y = self.merge(torch.cat([F.interpolate(y, scale_factor=2.0), low], 1))
        return torch.cat([self.box(y), self.cls(y)], 1).flatten(2)


# -- sound, graphs, tables, policies, forecasts


class Conformer(nn.Module):
    def __init__(self, dim: int = 48, heads: int = 4, kernel: int = 7):
        super().__init__()
        feed = lambda: nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))
        self.ff1, self.ff2, self.norm_mha, self.mha = (
            feed(),
            feed(),
            nn.LayerNorm(dim),
            nn.MultiheadAttention(dim, heads, batch_first=True),
        )
        self.norm_conv, self.pointwise1 = nn.LayerNorm(dim), nn.Conv1d(dim, 2 * dim, 1)
        self.depthwise, self.batch_norm = (
            nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim),
            nn.BatchNorm1d(dim),
        )
        self.pointwise2, self.norm_final = nn.Conv1d(dim, dim, 1), nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1(x)
        y = self.norm_mha(x)
        x = x + self.mha(y, y, y, need_weights=False)[0]
        y = F.glu(self.pointwise1(self.norm_conv(x).transpose(1, 2)), dim=1)
        x = x + self.pointwise2(F.silu(self.batch_norm(self.depthwise(y)))).transpose(1, 2)
        return self.norm_final(x + 0.5 * self.ff2(x))


class Recognizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU())
        self.linear, self.layers, self.ctc = (
            nn.Linear(16 * 4, 48),
            nn.Sequential(Conformer(), Conformer()),
            nn.Linear(48, 30),
        )

    def forward(self, mels: Tensor) -> Tensor:
        x = self.subsample(mels.unsqueeze(1))
        return self.ctc(self.layers(self.linear(x.transpose(1, 2).flatten(2)))).log_softmax(-1)


class HifiBlock(nn.Module):
    def __init__(self, channels: int, kernel: int):
        super().__init__()
        wide = lambda d: weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2))
        self.convs1, self.convs2 = nn.ModuleList([wide(1), wide(3)]), nn.ModuleList([wide(1), wide(1)])

    def forward(self, x: Tensor) -> Tensor:
        for one, two in zip(self.convs1, self.convs2, strict=True):
            x = x + two(F.leaky_relu(one(F.leaky_relu(x, 0.1)), 0.1))
        return x


class HifiGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_pre, self.conv_post = (
            weight_norm(nn.Conv1d(20, 32, 7, padding=3)),
            weight_norm(nn.Conv1d(8, 1, 7, padding=3)),
        )
        self.ups = nn.ModuleList([weight_norm(nn.ConvTranspose1d(32 // 2**i, 16 // 2**i, 4, 2, 1)) for i in range(2)])
        self.blocks = nn.ModuleList([nn.ModuleList([HifiBlock(16 // 2**i, k) for k in (3, 5)]) for i in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_pre(x)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)  # type: ignore[arg-type, union-attr]
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


class Egnn(nn.Module):
    """One layer of an equivariant graph network on a complete graph."""

    def __init__(self, dim: int = 32):
        super().__init__()
        self.edge_mlp = nn.Sequential(nn.Linear(2 * dim + 1, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.node_mlp = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.coord_mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1, bias=False))
        nn.init.xavier_uniform_(self.coord_mlp[-1].weight, gain=0.001)  # type: ignore[arg-type]

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        n = h.shape[1]
        apart = x[:, :, None] - x[:, None]
        pairs = torch.cat(
            [
                h[:, :, None].expand(-1, -1, n, -1),
                h[:, None].expand(-1, n, -1, -1),
                apart.square().sum(-1, keepdim=True),
            ],
            -1,
        )
        m = self.edge_mlp(pairs)
        x = x + (apart * self.coord_mlp(m)).mean(2)
        return h + self.node_mlp(torch.cat([h, m.sum(2)], -1)), x


class Molecules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_in, self.layers = nn.Linear(6, 32), nn.ModuleList([Egnn() for _ in range(3)])
        self.head = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))

    def forward(self, h: Tensor, x: Tensor) -> Tensor:
        h = self.embedding_in(h)
        for layer in self.layers:
            h, x = layer(h, x)
        return self.head(h).sum(1)


class Dlrm(nn.Module):
    def __init__(self, fields: int = 6, dim: int = 16):
        super().__init__()
        self.emb_l = nn.ModuleList([nn.EmbeddingBag(50, dim, mode="sum") for _ in range(fields)])
        self.bot_l, self.top_l = self.mlp(13, 64, dim), self.mlp(dim + fields * (fields + 1) // 2, 64, 32, 1)
        for emb in self.emb_l:
            nn.init.uniform_(emb.weight, -math.sqrt(1 / 50), math.sqrt(1 / 50))  # type: ignore[arg-type]

    def mlp(self, *sizes: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for n, m in pairwise(sizes):
            layer = nn.Linear(n, m)
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / (m + n)))
            nn.init.normal_(layer.bias, 0.0, math.sqrt(1 / m))
            layers += [layer, nn.Sigmoid() if m == 1 else nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bot_l(dense)
        both = torch.stack([x, *(emb(sparse[:, i : i + 1]) for i, emb in enumerate(self.emb_l))], 1)
        products = torch.bmm(both, both.transpose(1, 2))
        i, j = torch.tril_indices(both.shape[1], both.shape[1], -1)
        return self.top_l(torch.cat([x, products[:, i, j]], 1))


def layer_init(layer: Any, std: float = math.sqrt(2), bias: float = 0.0) -> Any:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias)
    return layer


class Agent(nn.Module):
    """PPO of CleanRL for continuous actions."""

    def __init__(self, seen: int = 17, actions: int = 6):
        super().__init__()
        trunk = lambda out, std: nn.Sequential(
            layer_init(nn.Linear(seen, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, out), std),
        )
        self.critic, self.actor_mean = trunk(1, 1.0), trunk(actions, 0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.actor_mean(x)
        return torch.cat([mean, self.actor_logstd.expand_as(mean), self.critic(x)], 1)


class Dueling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.value, self.advantage = (nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, n)) for n in (1, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.network(x / 255.0)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


class Nbeats(nn.Module):
    """Blocks that take from the past what they explain and add to the forecast."""

    def __init__(self, backcast: int = 24, forecast: int = 8, units: int = 64, blocks: int = 4):
        super().__init__()
        self.back = backcast
        trunk = lambda: nn.Sequential(
            nn.Linear(backcast, units),
            nn.ReLU(),
            nn.Linear(units, units),
            nn.ReLU(),
            nn.Linear(units, units),
            nn.ReLU(),
            nn.Linear(units, backcast + forecast),
        )
        self.blocks = nn.ModuleList([trunk() for _ in range(blocks)])

    def forward(self, x: Tensor) -> Tensor:
        total: Any = 0.0
        for block in self.blocks:
            theta = block(x)
            x, total = x - theta[:, : self.back], total + theta[:, self.back :]
        return total

"""Small models with one fault each, as people have reported them: what is wrong in each was known before it was run."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from sigprop.models import build

WIDTH, TOKENS, VOCABULARY = 32, 16, 64


def ids(tokens=TOKENS, vocabulary=VOCABULARY, seed=0):
    return torch.randint(vocabulary, (2, tokens), generator=torch.Generator().manual_seed(seed))


class Block(nn.Module):
    """Pre-LN, its attention spelt out."""

    def __init__(self, width, heads, causal=None, scale=None, skips=True, activation=F.gelu):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.scale, self.skips, self.activation = heads, scale, skips, activation
        self.causal = causal

    def attention(self, x):
        batch, tokens, width = x.shape
        query, key, value = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        scale = self.scale or (width // self.heads) ** -0.5
        scores = query @ key.transpose(-1, -2) * scale
        if self.causal is not None:
            scores = scores.masked_fill(self.causal(tokens), -math.inf)
        return self.proj((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, tokens, width))

    def forward(self, x):
        skip = x if self.skips else 0.0
        x = skip + self.attention(self.ln_1(x))
        skip = x if self.skips else 0.0
        return skip + self.out(self.activation(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    """nanoGPT in small: std 0.02 everywhere, the ends of branches over sqrt(2 L)."""

    def __init__(self, layers=4, width=WIDTH, heads=4, **block):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(256, width)
        self.h = nn.ModuleList(Block(width, heads, **block) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        for name, item in self.named_parameters():
            if item.dim() == 2:
                end = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(item, 0.0, 0.02 / math.sqrt(2 * layers) if end else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(item)

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln_f(x))
        if targets is None:
            return logits[:, [-1]]
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def upper(tokens):
    return torch.ones(tokens, tokens, dtype=torch.bool).triu(1)


def inverted_mask():
    """What should be seen is hidden: the last query sees nothing."""
    return GPT(causal=lambda tokens: ~upper(tokens)), (ids(), ids(seed=1))


class LoRA(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        base.requires_grad_(False)
        self.A = nn.Parameter(torch.zeros(rank, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.A.T @ self.B.T


def adapters_of_zeros():
    model = GPT(causal=upper)
    model.requires_grad_(False)
    for block in model.h:
        block.qkv = LoRA(block.qkv)
    return model, (ids(), ids(seed=1))


def adapters_of_noise():
    """A low-rank product beside frozen weights that is not zero at the start."""
    model, batch = adapters_of_zeros()
    for name, item in model.named_parameters():
        if name.endswith((".A", ".B")):
            nn.init.normal_(item)
    return model, batch


class RmsNorm(nn.Module):
    def __init__(self, width, power):
        super().__init__()
        self.weight, self.eps, self.power = nn.Parameter(torch.ones(width)), 1e-6, power

    def forward(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True) + self.eps) ** self.power


def norm_without_root(power=1.0):
    """A norm that divides by the mean square."""
    model = GPT(causal=upper)
    model.ln_f = RmsNorm(WIDTH, power)
    return model, (ids(), ids(seed=1))


class PlusOne(nn.LayerNorm):
    """Multiplies by one plus its weight, as Gemma and Nemotron do."""

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


def gains_around_zero(mean=0.0, plus=0.0):
    """N(0, 0.02) for every parameter, gains of norms among them."""
    model = GPT(causal=upper)
    for module in [item for item in model.modules() if isinstance(item, nn.LayerNorm)]:
        nn.init.normal_(module.weight, mean, 0.02)
        if plus:
            module.__class__ = PlusOne
    return model, (ids(), ids(seed=1))


def chaotic_chain(std=8.0, depth=12):
    """Every layer of tanh multiplies a small difference by more than two."""
    layers = [nn.Linear(64, 64) for _ in range(depth)]
    for layer in layers:
        nn.init.normal_(layer.weight, 0.0, std / 8)
    chain = [part for layer in layers for part in (layer, nn.Tanh())]
    return nn.Sequential(*chain), torch.randn(32, 64, generator=torch.Generator().manual_seed(0))


class Sines(GPT):
    """Sinusoidal positions, no module of their own, beside words of std 0.02; the loss a sum where asked for."""

    def __init__(self, reduction="mean", factor=1.0):
        super().__init__(causal=upper)
        del self.wpe
        self.reduction, self.factor = reduction, factor

    def forward(self, idx, targets):
        place, width = torch.arange(idx.shape[1])[:, None], self.wte.embedding_dim
        angle = place / 10000 ** (torch.arange(0, width, 2) / width)
        x = self.factor * self.wte(idx) + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=self.reduction)


def fixed_positions(factor=1.0):
    return Sines(factor=factor), (ids(), ids(seed=1))


def summed_loss():
    return Sines("sum", 30.0), (ids(), ids(seed=1))


class Padded(nn.Module):
    """torch's own attention behind a padding mask."""

    def __init__(self, shown):
        super().__init__()
        self.embedding, self.attn = nn.Embedding(VOCABULARY, WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.head, self.shown = nn.Linear(WIDTH, VOCABULARY), shown

    def forward(self, x):
        x = self.embedding(x)
        hidden = torch.full(x.shape[:2], not self.shown)
        return self.head(x + self.attn(x, x, x, key_padding_mask=hidden, need_weights=False)[0])


class Pooled(nn.Module):
    """A norm behind the pooling to one pixel."""

    def __init__(self, groups):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.norm, self.fc = nn.GroupNorm(groups, 32), nn.Linear(32, 4)

    def forward(self, x):
        x = torch.relu(self.conv1(x)).mean((2, 3), keepdim=True)
        return self.fc(torch.relu(self.norm(self.conv2(x))).flatten(1))


def norm_of_one_number(groups=32):
    return Pooled(groups), torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class TwiceSoftened(Block):
    def attention(self, x):
        query, key, value = self.qkv(x).chunk(3, -1)
        weights = (query @ key.transpose(-1, -2) * x.shape[-1] ** -0.5).softmax(-1)
        return self.proj(weights.softmax(-1) @ value)


def softmax_of_a_softmax():
    model = GPT(causal=upper)
    model.h = nn.ModuleList(TwiceSoftened(WIDTH, 4) for _ in range(3))
    return model, ids()


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x, returns):
        return F.mse_loss(self.layers(x), returns)


def far_targets(size=1e4):
    x, labels = vectors()
    return Critic(), (x, size * (1 + 0.1 * labels[:, None].float()))


def inverted_padding(shown=False):
    return Padded(shown), ids()


class Magnitudes(nn.Module):
    """A direction and a magnitude for each row, as in DoRA."""

    def __init__(self, magnitude):
        super().__init__()
        self.base, self.magnitude = nn.Linear(64, 64), nn.Parameter(torch.full((64,), magnitude))

    def forward(self, x):
        return F.linear(x, self.magnitude[:, None] * F.normalize(self.base.weight, dim=1), self.base.bias)


def magnitudes_of_forty(magnitude=40.0):
    model = nn.Sequential(*(part for _ in range(3) for part in (Magnitudes(magnitude), nn.LayerNorm(64), nn.GELU())))
    return model, torch.randn(32, 64, generator=torch.Generator().manual_seed(0))


def attention_without_skips():
    return GPT(layers=16, causal=None, skips=False), (ids(), ids(seed=1))


class Contrastive(nn.Module):
    def __init__(self, logit_scale=10.0):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 256))
        self.text = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 256))
        self.logit_scale = nn.Parameter(torch.tensor(logit_scale))

    def forward(self, image, text):
        image, text = (F.normalize(x, dim=-1) for x in (self.image(image), self.text(text)))
        logits = self.logit_scale.exp() * image @ text.T
        targets = torch.arange(len(logits))
        return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2


def contrastive_scale():
    generator = torch.Generator().manual_seed(0)
    return Contrastive(), tuple(torch.randn(16, 24, generator=generator) for _ in range(2))


class Similar(Contrastive):
    """Two towers whose similarities are multiplied by the temperature where they should be divided."""

    def __init__(self, turned=True, normalized=True):
        super().__init__(-math.log(100.0) if turned else math.log(1 / 0.07))
        self.normalized = normalized

    def forward(self, image, text):
        image, text = self.image(image), self.text(text)
        if self.normalized:
            image, text = F.normalize(image, dim=-1), F.normalize(text, dim=-1)
        return F.cross_entropy(self.logit_scale.exp() * image @ text.T, torch.arange(len(image)))


def turned_temperature(turned=True):
    return Similar(turned), contrastive_scale()[1]


class WeightNormChain(nn.Module):
    def __init__(self, depth=14, zero_at=12):
        super().__init__()
        layers = [nn.Linear(32, 32) for _ in range(depth)]
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight)
        layers = [nn.utils.parametrizations.weight_norm(layer) for layer in layers]
        self.layers = nn.ModuleList(layers)
        with torch.no_grad():
            layers[zero_at].parametrizations.weight.original0.zero_()

    def forward(self, x):
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
        return x


def weight_norm_gain_of_zero():
    return WeightNormChain(), torch.randn(32, 32, generator=torch.Generator().manual_seed(0))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.head = (
            nn.Embedding(64, 32),
            nn.LSTM(32, 32, batch_first=True),
            nn.Linear(32, 64),
        )

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0])


def forget_gates_shut():
    model = Recurrent()
    with torch.no_grad():
        model.lstm.bias_ih_l0[32:64] = -12.0
    return model, ids(24)


class Classifier(nn.Module):
    """A plain image-like classifier of vectors with a norm and dropout."""

    def __init__(self, dropout=0.0, eps=1e-5):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32, eps=eps), nn.GELU(), nn.Dropout(dropout))
            for _ in range(4)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x, labels):
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x), labels)


def vectors():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 32, generator=generator), torch.randint(10, (64,), generator=generator)


def dropout_of_nearly_all():
    return Classifier(dropout=0.99), vectors()


def epsilon_of_100():
    return Classifier(eps=100.0), vectors()


class Experts(nn.Module):
    """Sixteen experts, two chosen for each token, behind a router."""

    def __init__(self, favourite=0.0):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(64, 32), nn.LayerNorm(32)
        self.router = nn.Linear(32, 16)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(16))
        self.head = nn.Linear(32, 64)
        with torch.no_grad():
            self.router.bias[[3, 7]] += favourite

    def forward(self, x):
        x = self.embedding(x)
        flat = self.norm(x).flatten(0, 1)
        weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                mixed = mixed.index_add(0, token, expert(flat[token]) * weights[token, place, None])
        return self.head(x + mixed.view_as(x))


def two_experts_take_all():
    return Experts(favourite=20.0), ids(32)


class Highway(nn.Module):
    def __init__(self, depth=12, bias=-15.0):
        super().__init__()
        self.transform = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.head = nn.Linear(32, 10)
        for gate in self.gate:
            nn.init.constant_(gate.bias, bias)

    def forward(self, x):
        for transform, gate in zip(self.transform, self.gate, strict=True):
            opened = torch.sigmoid(gate(x))
            x = opened * torch.relu(transform(x)) + (1 - opened) * x
        return self.head(x)


def highway_gates_shut():
    return Highway(), torch.randn(32, 32, generator=torch.Generator().manual_seed(0))


class SquaredGain(nn.Module):
    """A gain of zero before relu squared (nanochat 498)."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)
        self.gain = nn.Parameter(torch.zeros(64))

    def forward(self, x):
        return x + self.down(torch.relu(self.gain * self.up(x)).square())


def gain_of_zero_before_a_square():
    return nn.Sequential(*(SquaredGain() for _ in range(3))), torch.randn(32, 32)


def missing_score_scale():
    """1/sqrt(d) was forgotten: head width 64."""
    model = GPT(layers=3, width=256, heads=4, scale=1.0, causal=upper)
    for block in model.h:
        nn.init.normal_(block.qkv.weight, 0.0, 256**-0.5)
    return model, (ids(), ids(seed=1))


def tied_table_of_unit_std():
    model = build("transformer", depth=3, width=256, heads=4, context=TOKENS, tied_head=True)
    nn.init.normal_(model.token_embedding.weight, 0.0, 1.0) if hasattr(model, "token_embedding") else None
    return model, None


def depth_scaling_forgotten(count, layers=12, width=64):
    model = GPT(layers=layers, width=width, causal=upper)
    for block in model.h[layers - count :]:
        nn.init.normal_(block.out.weight, 0.0, 0.02)
        nn.init.normal_(block.proj.weight, 0.0, 0.02)
    return model, (ids(), ids(seed=1))


class Focal(nn.Module):
    """RetinaNet's head: every class starts at probability 0.01."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.Sequential(*(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1) for i in range(4)))
        self.cls = nn.Conv2d(16, 5, 3, padding=1)
        nn.init.normal_(self.cls.weight, 0.0, 0.01)
        nn.init.constant_(self.cls.bias, -math.log(99.0))

    def forward(self, x):
        return self.cls(torch.relu(self.convolutions(x)))


def focal_head():
    return Focal(), torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class DyTBlock(nn.Module):
    """DyT in place of the norm: tanh(alpha x)."""

    def __init__(self, width):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        hidden = self.up(torch.tanh(self.alpha * x))
        return x + self.down(F.silu(hidden) * hidden)


class DyT(nn.Module):
    """An embedding of std 0.02: tanh(alpha x) is alpha x, and branches add nothing."""

    def __init__(self, depth=6, width=256):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(DyTBlock(width) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, 0.0, 0.02)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def branches_that_add_nothing():
    return DyT(), ids()

"""Bugs in language models: norms, positions, masks, attention, tied and gated weights, the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.planted_bugs.case import Setting, bug
from studies.planted_bugs.parts import (
    VOCABULARY,
    WIDTH,
    Block,
    Gated,
    Gpt,
    Mlp,
    RmsNorm,
    classified,
    fill,
    labels,
    noise,
    normal,
    small_weights,
    text,
    tokens,
)


def attentions(model: nn.Module) -> list[Any]:
    return [block.attn for block in model.blocks]  # type: ignore[union-attr]


def set_all(items: Any, name: str, value: Any) -> None:
    for item in items:
        setattr(item, name, value)


def norms(model: nn.Module) -> list[RmsNorm]:
    return [module for module in model.modules() if isinstance(module, RmsNorm)]


@bug(
    "language",
    "positions of std 2 beside words of std 0.02",
    at="wpe",
    cause="position",
    fix="wpe|position",
    mend=lambda m: normal(m, "wpe.weight", 0.02),
)
def loud_positions(buggy: bool) -> Setting:
    model: Any = Gpt()
    normal(model, "wpe.weight", 2.0 if buggy else 0.02)
    return Setting(model, text())


@bug(
    "language",
    "the gain of the final norm is 60",
    at="norm.weight|norm",
    cause="gain",
    fix="gain|norm",
    mend=lambda m: fill(m.norm, "weight", 1.0),
)
def loud_final_norm(buggy: bool) -> Setting:
    model: Any = Gpt()
    nn.init.constant_(model.norm.weight, 60.0 if buggy else 1.0)
    return Setting(model, text())


@bug(
    "masks",
    "a causal mask that starts below the diagonal: the first token sees nothing",
    at="attn",
    cause="mask|nothing to attend|no key",
    fix="mask|diagonal|itself",
    mend=lambda m: set_all(attentions(m), "diagonal", 0),
)
def strict_mask(buggy: bool) -> Setting:
    return Setting(Gpt(diagonal=-1 if buggy else 0), text())


@bug(
    "attention",
    "scores multiplied by sqrt(d) where they should be divided",
    at="attn",
    cause="scale|sqrt|saturat",
    fix="scale|sqrt",
    mend=lambda m: set_all(attentions(m), "scale", 0.25),
)
def inverted_scale(buggy: bool) -> Setting:
    model: Any = Gpt()
    for item in attentions(model):
        nn.init.normal_(item.qkv.weight, 0.0, WIDTH**-0.5)
        item.scale = 16.0**0.5 if buggy else 16.0**-0.5
    return Setting(model, text())


@bug(
    "attention",
    "softmax over the heads",
    at="attn",
    cause="sum to|softmax|axis|over the heads|not over keys",
    fix="axis|dim|keys",
    mend=lambda m: set_all(attentions(m), "axis", -1),
)
def softmax_over_heads(buggy: bool) -> Setting:
    model: Any = Gpt()
    for item in attentions(model):
        item.axis = 1 if buggy else -1
        item.diagonal = None
    return Setting(model, text())


class Unplaced(Gpt):
    placed = False

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) if self.placed else self.wte(ids)


@bug(
    "language",
    "a table of positions that is never added",
    at="wpe",
    cause="not used|unused|no gradient|never|not reach",
    fix="add|use|wpe",
    mend=lambda m: setattr(m, "placed", True),
)
def forgotten_positions(buggy: bool) -> Setting:
    model: Any = Unplaced()
    model.placed = not buggy
    return Setting(model, text())


class DetachedBlock(Block):
    detached = True

    def forward(self, x: Tensor) -> Tensor:
        skip = x.detach() if self.detached else x
        x = skip + self.attn(self.norm1(skip))
        return x + self.mlp(self.norm2(x))


@bug(
    "language",
    "every block detaches its input",
    at="blocks|wte",
    cause="detach",
    fix="detach",
    mend=lambda m: set_all(m.blocks, "detached", False),
)
def detached_stream(buggy: bool) -> Setting:
    model: Any = Gpt(block=DetachedBlock)
    set_all(model.blocks, "detached", buggy)
    return Setting(model, text())


@bug(
    "norms",
    "an RMSNorm without its root",
    at="norm",
    cause="norm",
    fix="root|sqrt|norm",
    mend=lambda m: set_all(norms(m), "power", 0.5),
)
def norm_without_root(buggy: bool) -> Setting:
    model: Any = Gpt(norm=RmsNorm, mlp=Gated)
    set_all(norms(model), "power", 1.0 if buggy else 0.5)
    return Setting(model, text())


def _inner_gains(model: Any, value: float) -> None:
    for block in model.blocks:
        fill(block, "norm1.weight", value)
        fill(block, "norm2.weight", value)


@bug(
    "norms",
    "gains of all norms inside the blocks are zero",
    at="norm[12]",
    cause="gain|zero",
    fix="one|1",
    mend=lambda m: _inner_gains(m, 1.0),
)
def gains_of_zero(buggy: bool) -> Setting:
    model: Any = Gpt()
    _inner_gains(model, 0.0 if buggy else 1.0)
    return Setting(model, text())


@bug(
    "norms",
    "the epsilon of an RMSNorm is 10 before inputs of std 0.02",
    at="norm",
    cause="eps",
    fix="eps",
    mend=lambda m: set_all(norms(m), "eps", 1e-6),
)
def large_epsilon(buggy: bool) -> Setting:
    model: Any = Gpt(norm=RmsNorm, mlp=Gated)
    set_all(norms(model), "eps", 10.0 if buggy else 1e-6)
    return Setting(model, text())


def _query_gains(model: Any, value: float) -> None:
    fill(model, "norm_query.weight", value)
    fill(model, "norm_key.weight", value)


@bug(
    "attention",
    "the gains of the query and key norms are 12",
    at="norm_(query|key)|attn",
    cause="gain|quer|saturat",
    fix="gain|norm_query|norm_key",
    mend=lambda m: _query_gains(m, 1.0),
)
def loud_query_norm(buggy: bool) -> Setting:
    model: Any = Gpt()
    for item in attentions(model):
        item.norm_query, item.norm_key = RmsNorm(16), RmsNorm(16)
    _query_gains(model, 12.0 if buggy else 1.0)
    return Setting(model, text())


@bug(
    "attention",
    "ALiBi with the sign turned: the farthest token is preferred",
    at="attn",
    cause="bias|position|slope|added to the scores",
    fix="sign|slope|bias",
    mend=lambda m: set_all(attentions(m), "slope", 0.5),
)
def turned_alibi(buggy: bool) -> Setting:
    model: Any = Gpt()
    set_all(attentions(model), "slope", -2.0 if buggy else 0.5)
    return Setting(model, text())


@bug(
    "gated",
    "the gates of SwiGLU are shut by their bias",
    at="gate",
    cause="bias|shut|closed|dead|negative",
    fix="bias|gate",
    mend=lambda m: fill(m, "gate.bias", 0.0),
)
def shut_gates(buggy: bool) -> Setting:
    model: Any = Gpt(mlp=Gated, norm=RmsNorm)
    fill(model, "gate.bias", -30.0 if buggy else 0.0)
    return Setting(model, text())


class Rezero(nn.Module):
    def __init__(self, width: int, diagonal: int | None, norm: Any, mlp: Any):
        super().__init__()
        self.attn, self.mlp = Block(width, diagonal).attn, Mlp(width)
        self.alpha = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.alpha[0] * self.attn(x)
        return x + self.alpha[1] * self.mlp(x)


@bug(
    "norms",
    "ReZero whose scales start at one",
    at="alpha|blocks",
    cause="alpha|norm|branch",
    fix="alpha",
    mend=lambda m: fill(m, "alpha", 0.0),
)
def rezero_of_one(buggy: bool) -> Setting:
    model: Any = Gpt(depth=10, block=Rezero)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "blocks" in name:
            nn.init.normal_(weight, 0.0, (2.0 / weight.shape[1]) ** 0.5)
    normal(model, "wte.weight", 1.0)
    fill(model, "alpha", 1.0 if buggy else 0.0)
    return Setting(model, text())


class SeededBlock(Block):
    def __init__(self, *arguments: Any):
        torch.manual_seed(0)
        super().__init__(*arguments)


class Seeded(nn.Module):
    def __init__(self, block: Any):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(block(WIDTH, 0, nn.LayerNorm, Mlp) for _ in range(5)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.wte(ids))).flatten(0, 1), targets.flatten())


def _anew(model: Any) -> None:
    for weight in model.blocks.parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, weight.shape[1] ** -0.5)


@bug(
    "language",
    "the seed is set in the constructor of every block",
    at="blocks",
    cause="identical|equal|copies|same",
    fix="re-?initialize|initialize|seed|again",
    mend=_anew,
)
def seeded_blocks(buggy: bool) -> Setting:
    return Setting(Seeded(SeededBlock if buggy else Block), text())


@bug(
    "dtype",
    "branches too small for a stream in bfloat16",
    at="blocks|wte",
    cause="bf16|bfloat16|lost|round|drown",
    fix="wte|embedding|std",
    mend=lambda m: normal(m, "wte.weight", 0.02),
)
def rounded_branches(buggy: bool) -> Setting:
    model: Any = Gpt(norm=RmsNorm)
    normal(model, "wte.weight", 200.0 if buggy else 0.02)
    return Setting(model.bfloat16(), text())


class Tied(Gpt):
    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, 0.0, 1.0)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.factor * super().forward(ids)
        assert targets is not None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@bug(
    "language",
    "logits multiplied by the root of the width instead of divided, tied head",
    at="wte|head",
    cause="logit|tied|readout|loss starts",
    fix="wte|scale|head",
    mend=lambda m: setattr(m, "factor", WIDTH**-0.5),
)
def tied_logits(buggy: bool) -> Setting:
    model: Any = Tied()
    model.factor = WIDTH**0.5 if buggy else WIDTH**-0.5
    return Setting(model, text())


class Padded(nn.Module):
    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.turned = turned

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x, present = self.wte(ids), ids >= 0
        padding = present if self.turned else ~present
        x = x + self.attn(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@bug(
    "masks",
    "key_padding_mask the wrong way round: no token may be seen",
    at="attn",
    cause="mask|no key|nothing to attend",
    fix="mask|invert|~",
    mend=lambda m: setattr(m, "turned", False),
)
def turned_padding(buggy: bool) -> Setting:
    return Setting(Padded(buggy), text())


class Softened(Gpt):
    twice = True

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        assert targets is not None
        logits = logits.softmax(-1) if self.twice else logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@bug(
    "loss",
    "a softmax before the cross entropy",
    at="head|softmax|loss|logits",
    cause="softmax|probabilit",
    fix="softmax|logits",
    mend=lambda m: setattr(m, "twice", False),
)
def softmax_twice(buggy: bool) -> Setting:
    model: Any = Softened()
    model.twice = buggy
    return Setting(model, text())


class Summed(Gpt):
    reduction = "sum"

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        assert targets is not None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=self.reduction)


@bug(
    "loss",
    "the loss is summed over tokens",
    at="loss",
    cause="sum",
    fix="mean|divide",
    mend=lambda m: setattr(m, "reduction", "mean"),
)
def summed_loss(buggy: bool) -> Setting:
    model: Any = Summed()
    model.reduction = "sum" if buggy else "mean"
    return Setting(model, text())


class Ignoring(Gpt):
    ignored = True

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        assert targets is not None
        wanted = torch.where(targets >= 0, -100, targets) if self.ignored else targets
        return logits, F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)


@bug(
    "loss",
    "every label is ignored",
    at="loss|label",
    cause="label|ignore|no target|0 / 0|over nothing|loss is nan",
    fix="label|ignore|target",
    mend=lambda m: setattr(m, "ignored", False),
)
def ignored_labels(buggy: bool) -> Setting:
    model: Any = Ignoring()
    model.ignored = buggy
    return Setting(model, text())


class Looped(nn.Module):
    """One block without a norm, visited several times."""

    def __init__(self, gain: float, visits: int = 16):
        super().__init__()
        self.wte, self.mlp, self.visits = nn.Embedding(VOCABULARY, WIDTH), Mlp(WIDTH), visits
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        small_weights(self)
        nn.init.normal_(self.wte.weight)
        nn.init.normal_(self.mlp.up.weight, 0.0, WIDTH**-0.5)
        nn.init.normal_(self.mlp.down.weight, 0.0, gain * (4 * WIDTH) ** -0.5)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids)
        for _ in range(self.visits):
            x = x + self.mlp(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@bug(
    "language",
    "a looped block whose branch grows with each of 16 visits",
    at="mlp",
    cause="visit|loop|shared|reuse|grow|each time",
    fix="down|std|scale",
    mend=lambda m: nn.init.normal_(m.mlp.down.weight, 0.0, (4 * WIDTH) ** -0.5 / 16),
)
def looped(buggy: bool) -> Setting:
    return Setting(Looped(6.0 if buggy else 1 / 16), text())


class Translator(nn.Module):
    """An encoder, its norm, and a decoder that reads it by cross attention."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        layer: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, 4, 128, **layer) for _ in range(2)])
        self.memory_norm = nn.LayerNorm(WIDTH)
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(WIDTH, 4, 128, **layer) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        memory = self.source(targets)
        for layer in self.encoder:
            memory = layer(memory)
        memory, x = self.memory_norm(memory), self.target(ids)
        for layer in self.decoder:
            x = layer(x, memory)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@bug(
    "norms",
    "the norm behind the encoder has gain zero: the decoder cannot see the source",
    at="memory_norm|encoder",
    cause="zero|gain|does not depend",
    fix="memory_norm|gain|one",
    mend=lambda m: fill(m, "memory_norm.weight", 1.0),
)
def blind_decoder(buggy: bool) -> Setting:
    model: Any = Translator()
    fill(model, "memory_norm.weight", 0.0 if buggy else 1.0)
    return Setting(model, text())


class Latents(nn.Module):
    """Perceiver: a few learned latents read the input."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.latents = nn.Parameter(0.5 * torch.randn(8, WIDTH))
        self.read = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.blocks = nn.ModuleList([Block(WIDTH, None) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.latents.expand(len(ids), -1, -1)
        words = self.wte(ids)
        x = x + self.read(x, words, words, need_weights=False)[0]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)


def first_tokens(output: Tensor) -> Tensor:
    return F.cross_entropy(output, tokens()[:, :8])


@bug(
    "attention",
    "all latents of a Perceiver are zero",
    at="latents",
    cause="identical|equal|same|correlat|zero",
    fix="latents|random|normal",
    mend=lambda m: normal(m, "latents", 0.5),
)
def latents_of_zero(buggy: bool) -> Setting:
    model: Any = Latents()
    normal(model, "latents", 0.0 if buggy else 0.5)
    return Setting(model, tokens(), first_tokens)


class Dropped(Block):
    keep = 0.97

    def _drop(self, x: Tensor) -> Tensor:
        kept = torch.rand(len(x), 1, 1) < self.keep
        return x * kept / self.keep

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._drop(self.attn(self.norm1(x)))
        return x + self._drop(self.mlp(self.norm2(x)))


@bug(
    "language",
    "a drop path that keeps 3 % of the branches",
    at="drop|blocks",
    cause="drop",
    fix="drop|probab|keep",
    mend=lambda m: set_all(m.blocks, "keep", 0.97),
)
def drop_path(buggy: bool) -> Setting:
    model: Any = Gpt(depth=6, block=Dropped)
    set_all(model.blocks, "keep", 0.03 if buggy else 0.97)
    return Setting(model.train(), text())


@bug(
    "dtype",
    "one matrix was scaled in float16 and underflowed to zero",
    at="blocks.2",
    cause="zero",
    fix="initialize|std|siblings|normal",
    mend=lambda m: normal(m.blocks[2].mlp, "up.weight", 0.02),
)
def underflowed(buggy: bool) -> Setting:
    model: Any = Gpt()
    if buggy:
        weight = model.blocks[2].mlp.up.weight
        weight.data = (weight.data * 1e-8).half().float()
    return Setting(model, text())


@bug(
    "language",
    "weights filled with one constant",
    at="up.weight",
    cause="constant|same|identical|symmetr",
    fix="random|normal|initialize",
    mend=lambda m: normal(m, "up.weight", 0.02),
)
def constant_weights(buggy: bool) -> Setting:
    model: Any = Gpt()
    if buggy:
        fill(model, "up.weight", 0.02)
    return Setting(model, text())


class Deep(nn.Module):
    """Post-LN in the manner of DeepNet: skips multiplied by alpha."""

    def __init__(self, alpha: float):
        super().__init__()
        self.blocks = nn.ModuleList([Mlp(WIDTH) for _ in range(8)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(8)])
        self.alpha, self.head = alpha, nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block, norm in zip(self.blocks, self.norms, strict=True):
            x = norm(self.alpha * x + block(x))
        return self.head(x)


@bug(
    "norms",
    "Post-LN whose skip is multiplied by 0.03",
    at="blocks|norms",
    cause="skip|branch|sensitiv",
    fix="skip|alpha|1",
    mend=lambda m: setattr(m, "alpha", 2.0),
)
def faint_skip(buggy: bool) -> Setting:
    return Setting(Deep(0.03 if buggy else 2.0), noise(32, WIDTH), classified(labels(32, 4)))


def _words(model: nn.Module, std: float) -> None:
    normal(model, "wte.weight", std)
    normal(model, "wpe.weight", std)


@bug(
    "language",
    "words of std 1e-4 before a first norm with epsilon 1e-5",
    at="wte|norm",
    cause="eps",
    fix="wte|eps|std",
    mend=lambda m: _words(m, 0.02),
)
def tiny_words(buggy: bool) -> Setting:
    model: Any = Gpt()
    _words(model, 1e-4 if buggy else 0.02)
    return Setting(model, text())

"""The threads of `shared/THREADS.md` with small models; expected words were written before anything was run."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sigprop as sp
from studies.planted_bugs.parts import (
    VOCABULARY,
    WIDTH,
    Attention,
    Block,
    Gated,
    Gpt,
    Mlp,
    RmsNorm,
    each,
    fill,
    noise,
    normal,
    text,
    tokens,
)
from studies.threads.case import Answer, checked, command, differing, thread

TRANSFORMERS = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512}


def hugging_face(name: str, **settings: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{name.partition('For')[0]}Config")(**settings)
    return getattr(transformers, name)(config).eval()


def loss_of(model: Any, batch: Any = None) -> float:
    batch = text() if batch is None else batch
    output = model(**batch)
    return float(output[1] if isinstance(output, tuple) else getattr(output, "loss", output))


def gradient_ratio(model: Any, first: str, last: str) -> float:
    """Mean square of one gradient over another's."""
    model.zero_grad()
    with torch.enable_grad():
        output = model(**text())
        (output[1] if isinstance(output, tuple) else output).backward()
    weights = dict(model.named_parameters())
    return float(weights[first].grad.square().mean() / weights[last].grad.square().mean())


# 1 to 3: torch's own Transformer, and its truncated normal


class Encoder(nn.Module):
    def __init__(self, depth: int, copied: bool = True, first: bool = True):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        layers = [
            nn.TransformerEncoderLayer(WIDTH, 4, 128, 0.0, batch_first=True, norm_first=first) for _ in range(depth)
        ]
        self.encoder = nn.TransformerEncoder(layers[0], depth, enable_nested_tensor=False)
        if not copied:
            self.encoder.layers = nn.ModuleList(layers)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.emb(ids)))


def _layers_differ(model: Any) -> bool:
    first, second = model.encoder.layers[0].linear1.weight, model.encoder.layers[1].linear1.weight
    return not torch.equal(first, second) and 0.5 < float(first.std() / second.std()) < 2.0


@thread(
    1,
    "pytorch 86274",
    "nn.TransformerEncoder: do all layers start equal?",
    "identical|equal|copies",
    "layers",
    "initialize",
    works=_layers_differ,
)
def equal_layers() -> Answer:
    return checked(lambda: Encoder(4), tokens())


@thread(
    2,
    "pytorch 55270",
    "Post-LN with Xavier is unstable beyond 12 layers",
    "sensitiv|tokens (are|become).*(identical|correlated)|token correlation",
    "unit|deepnorm|depth_scaling|plan|multiply the ends of the residual branches",
    "rate",
)
def deep_post() -> Answer:
    def make() -> nn.Module:
        model: Any = Encoder(20, copied=False, first=False)
        for weight in model.encoder.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)
        return model

    return checked(make, tokens())


def _no_outliers(model: Any) -> bool:
    return max(float(w.abs().max() / w.std()) for w in model.parameters() if w.dim() > 1) < 8


@thread(
    3,
    "torchtitan 2269",
    "trunc_normal_ in bf16 puts 0.4 % of entries at the lower bound",
    "outlier|far out|bound",
    "up.weight|qkv.weight",
    "initialize",
    works=_no_outliers,
)
def truncated() -> Answer:
    def make() -> nn.Module:
        model: Any = Gpt()
        for weight in each(model, "up.weight"):
            with torch.no_grad():
                weight[torch.rand(weight.shape, generator=torch.Generator().manual_seed(1)) < 0.004] = -2.0
        return model

    return checked(make, text())


# 4 to 9: readouts, gates, depth


@thread(
    4,
    "torchtitan 2342",
    "Qwen3 tied, embedding N(0, 1): loss past 500",
    "tied",
    "embed_tokens",
    "0\\.0\\d+|std",
    never=("healthy", "no problems"),
    works=lambda model: float(model.get_input_embeddings().weight.std()) < 0.15,
)
def tied() -> Answer:
    def make() -> nn.Module:
        sizes: dict[str, Any] = {**TRANSFORMERS, "hidden_size": 256, "num_key_value_heads": 2, "head_dim": 16}
        model: Any = hugging_face(
            "Qwen3ForCausalLM", num_hidden_layers=3, intermediate_size=512, tie_word_embeddings=True, **sizes
        )
        nn.init.normal_(model.model.embed_tokens.weight)
        return model

    return checked(make)


@thread(
    5,
    "transformers 16749",
    "T5 v1.1 from scratch starts at loss 110",
    "loss starts|logits",
    "lm_head|shared",
    "std|d\\^|sqrt|0\\.\\d+",
    never=("healthy", "no problems"),
    works=lambda model: float(model.lm_head.weight.std()) < 0.2,
)
def t5() -> Answer:
    def make() -> nn.Module:
        return hugging_face(
            "T5ForConditionalGeneration",
            d_model=256,
            d_ff=256,
            num_layers=3,
            num_heads=4,
            d_kv=32,
            vocab_size=512,
            tie_word_embeddings=False,
            feed_forward_proj="gated-gelu",
        )

    return checked(make)


class Tanh(nn.Module):
    """DyT."""

    def __init__(self, width: int):
        super().__init__()
        self.alpha, self.weight = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(self.alpha * x)


@thread(
    6,
    "DyT 6",
    "a Llama with DyT does not converge",
    "nothing|tiny|little|lost|too small|vanish|drown",
    "embedding|wte|alpha",
    never=("no problems", "healthy"),
)
def dyt() -> Answer:
    return checked(lambda: Gpt(depth=6, norm=Tanh, mlp=Gated), text())


class Squared(nn.Module):
    def __init__(self, width: int, gain: float = 0.0):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.gain = nn.Parameter(torch.full((4 * width,), gain))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.gain * self.up(x)).square())


@thread(
    7,
    "nanochat 498",
    "a zero gain before relu squared gets no gradient",
    "gain",
    "zero",
    "squar|slope|never",
    never=("negative mean", "bias to zero", "start to learn once"),
    works=lambda model: gradient_ratio(model, "blocks.0.mlp.gain", "head.weight") > 0,
)
def squared_gain() -> Answer:
    return checked(lambda: Gpt(mlp=Squared), text())


class Nanochat(Gpt):
    """Returns the loss only; smear gates at a positive value on purpose."""

    def __init__(self) -> None:
        super().__init__(norm=lambda width: nn.RMSNorm(width, elementwise_affine=False))
        self.smear = nn.Linear(12, 1, bias=False)
        self.smear_lambda = nn.Parameter(torch.full((1,), 0.001))
        nn.init.zeros_(self.smear.weight)

    def embed(self, ids: Tensor) -> Tensor:
        x = super().embed(ids)
        gate = self.smear_lambda * torch.sigmoid(self.smear(x[:, 1:, :12]))
        return torch.cat([x[:, :1], x[:, 1:] + gate * x[:, :-1]], dim=1)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        assert targets is not None
        return super().forward(ids, targets)[1]


@thread(
    8,
    "nanochat 481",
    "is the recipe sound? no alarm about its gates",
    "no problems|healthy",
    never=("\\d+ problem", "smear"),
)
def nanochat() -> Answer:
    return checked(Nanochat, text())


@thread(
    8, "nanochat 644", "which parameters does Muon take when forward returns the loss?", "head.*(readout|adam)|readout"
)
def nanochat_groups() -> Answer:
    return Answer(str(sp.plan(Nanochat(), "own", batch=text(), optimizer="muon").table(all=True)))


@thread(
    9,
    "torchtitan 1257",
    "why are w2 and w3 scaled by depth?",
    "bf16|bfloat16|lost|round",
    "down|up|mlp",
    never=("gradient.*explode",),
)
def torchtitan() -> Answer:
    def make() -> nn.Module:
        model: Any = Gpt(depth=16, norm=nn.RMSNorm, mlp=Gated)
        normal(model, "wte.weight", 1.0)
        for place, block in enumerate(model.blocks):
            for weight in (block.mlp.up.weight, block.mlp.down.weight, block.attn.proj.weight):  # type: ignore[union-attr]
                nn.init.trunc_normal_(weight, 0.0, 0.02 / math.sqrt(2 * (place + 1)))  # type: ignore[arg-type]
        return model

    return checked(make, text())


@thread(
    10,
    "bionemo 1368",
    "meta device, to_empty and reset_parameters lost the custom initialization",
    "wte|head|qkv|up",
    "default|std|0\\.02|uniform",
)
def reset() -> Answer:
    custom, lost = Gpt(), Gpt()
    for module in lost.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.reset_parameters()
    return differing(custom, lost)


# 11, 12: hyper-connections and loops


class Hyper(nn.Module):
    """Four streams, mixed by a doubly stochastic matrix of learned logits."""

    def __init__(self, depth: int = 4, streams: int = 4, temperature: float = 0.05):
        super().__init__()
        self.wte, self.norm, self.head = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.RMSNorm(WIDTH),
            nn.Linear(WIDTH, VOCABULARY),
        )
        self.mlps = nn.ModuleList([nn.Sequential(nn.RMSNorm(WIDTH), Mlp(WIDTH)) for _ in range(depth)])
        logits = torch.full((streams, streams), -8.0).fill_diagonal_(0.0)
        self.h_res_logits = nn.ParameterList([logits.clone() for _ in range(depth)])
        self.h_pre = nn.ParameterList([torch.full((streams,), 1 / streams) for _ in range(depth)])
        self.h_post = nn.ParameterList([torch.ones(streams) for _ in range(depth)])
        self.temperature, self.streams = temperature, streams

    def _mixing(self, logits: Tensor) -> Tensor:
        mixing = (logits / self.temperature).exp()
        for _ in range(5):
            mixing = mixing / mixing.sum(1, keepdim=True)
            mixing = mixing / mixing.sum(0, keepdim=True)
        return mixing

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids)[:, :, None].expand(-1, -1, self.streams, -1)
        for mlp, logits, pre, post in zip(self.mlps, self.h_res_logits, self.h_pre, self.h_post, strict=True):
            branch = mlp(torch.einsum("s,btsc->btc", pre, x))
            x = torch.einsum("rs,btsc->btrc", self._mixing(logits), x) + post[:, None] * branch[:, :, None]
        return F.cross_entropy(self.head(self.norm(x.sum(2))).flatten(0, 1), targets.flatten())


@thread(
    11,
    "mHC 2",
    "do the H_res logits of hyper-connections learn?",
    "h_res_logits",
    "underflow|exponential|temperature|zero gradient|exactly zero",
    never=("h_p(re|ost).*which is zero", "wte.*which is zero"),
)
def hyper_connections() -> Answer:
    return checked(Hyper, text())


class Loop(nn.Module):
    """One block, visited again and again."""

    def __init__(self, visits: int = 24):
        super().__init__()
        self.wte, self.block = nn.Embedding(VOCABULARY, WIDTH), Block(WIDTH, 0)
        self.norm, self.head, self.visits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY), visits

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids)
        for _ in range(self.visits):
            x = self.block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@thread(
    12,
    "OpenMythos 79",
    "residual growth in looped stacks",
    "visit|shared|loop|reuse|times",
    "grow|coherent|depth\\^",
    never=("nothing normalizes",),
)
def looped() -> Answer:
    return checked(Loop, text(), verbose=True)


@thread(13, "modded-nanogpt 267", "which std per module under norm-preserving Muon?", "0\\.0(26|27|25|31|36)")
def muon_stds() -> Answer:
    plan = sp.plan(Gpt(depth=12, width=768), "spectral", batch=text())
    return Answer(str(plan))


# 14: query-key norms without a scale


class Gemma(nn.Module):
    def __init__(self, width: int, diagonal: int | None, norm: Any, mlp: Any):
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = norm(width), Attention(width, 2), norm(width), mlp(width)
        self.attn.scale = 1.0
        self.attn.norm_query, self.attn.norm_key = RmsNorm(width // 2), RmsNorm(width // 2)

    forward = Block.forward


def _quiet_scores(model: Any) -> bool:
    gain = model.blocks[0].attn.norm_query.weight.abs().mean() * model.blocks[0].attn.norm_key.weight.abs().mean()
    return float(gain) * model.blocks[0].attn.scale < 0.3


@thread(
    14,
    "NeMo Automodel 3443",
    "Gemma 4 from random initialization: spikes, NaN at step 1",
    "scale|1 / ?sqrt|head_dim",
    "quer|norm_query|multiply the scores",
    "saturat|score|one-hot",
    works=_quiet_scores,
)
def gemma() -> Answer:
    return checked(lambda: Gpt(depth=6, width=128, norm=RmsNorm, mlp=Gated, block=Gemma), text())


# 15 to 20: width


def _mup(width: int, scale: float, multiplier: bool = False) -> Any:
    model = Gpt(depth=1, width=width)
    for block in model.blocks:
        block.attn.scale = scale if scale else 8.0 / (width // 4)
    return model


@thread(
    15, "mixle 258", "muP by hand, and the optimum still moves", "attention|score", "1 ?/ ?sqrt|scale|exponent|power"
)
def attention_left() -> Answer:
    make = lambda width: _mup(width, (width // 4) ** -0.5)  # noqa: E731

    def by_hand(model: Any, base: Any) -> Any:
        return sp.plan(model, "own", base=base, width="mup", attention="keep", optimizer="adamw")

    return Answer(sp.coord_check(make, [32, 64, 128], batch=text()["ids"], plan=by_hand, steps=2).summary())


@thread(16, "mup 71", "which line of the coordinate check is wrong?", "fail", "head")
def culprit() -> Answer:
    def own(model: Any, base: Any) -> Any:
        return sp.plan(model, "sp", base=base, optimizer="adamw")

    return Answer(
        sp.coord_check(
            lambda w: Gpt(depth=1, width=w), [32, 64, 128], batch=text()["ids"], plan=own, steps=2, seeds=1
        ).summary()
    )


@thread(19, "nanoGPT-mup 8", "why 0.02 at base 256?", "0\\.0625|sqrt|1/sqrt", "0\\.02")
def base_std() -> Answer:
    model = Gpt(depth=2, width=256)
    return checked(lambda: model, text(), plan=sp.plan(model, "lecun", batch=text()))


@thread(
    20,
    "fla 739",
    "Mamba-2's dt_bias was left at ones",
    "dt_bias",
    "class|initialize",
    works=lambda model: float(model.backbone.layers[0].mixer.dt_bias.std()) > 0.1,
)
def dt_bias() -> Answer:
    def make() -> nn.Module:
        model: Any = hugging_face(
            "Mamba2ForCausalLM",
            hidden_size=64,
            num_heads=8,
            head_dim=16,
            state_size=16,
            num_hidden_layers=3,
            vocab_size=256,
            n_groups=1,
            chunk_size=16,
        )
        fill(model, "dt_bias", 1.0)
        return model

    return checked(make)


@thread(
    21,
    "Megatron 1469",
    "16B experts, std 0.006, 28 layers",
    "embedding|token correlation|std 0\\.006|margin",
    never=("diverges at step",),
)
def small_experts() -> Answer:
    def make() -> nn.Module:
        return hugging_face(
            "MixtralForCausalLM",
            num_hidden_layers=6,
            intermediate_size=128,
            num_key_value_heads=2,
            num_local_experts=4,
            initializer_range=0.006,
            **TRANSFORMERS,
        )

    return checked(make, verbose=True)


# 23 to 30: whose initialization is this?


def _llama(std: float = 0.02, **settings: Any) -> Any:
    return hugging_face(
        "LlamaForCausalLM",
        num_hidden_layers=3,
        intermediate_size=128,
        initializer_range=std,
        **{**TRANSFORMERS, **settings},
    )


@thread(23, "torchtitan 4104", "Qwen3's initialization is not Qwen's", "o_proj|down_proj", "std|0\\.0")
def other_scheme() -> Answer:
    own, other = _llama(), _llama()
    for name, weight in other.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data.mul_(6**-0.5)
    return differing(own, other)


@thread(24, "OLMo 678", "initial loss 10 in one version, 60 in the next", "lm_head|embed", "std|loss")
def version() -> Answer:
    first, second = _llama(), _llama()
    second.lm_head.weight.data.mul_(50.0)
    return differing(first, second)


@thread(25, "granite-tsfm 524", "transformers 4 against 5 differ", "input_layernorm|norm|q_proj", "mean|std|1")
def upgrade() -> Answer:
    first, second = _llama(), _llama()
    for weight in each(second, "q_proj.weight"):
        nn.init.xavier_uniform_(weight)
    return differing(first, second)


@thread(
    26,
    "transformers 35913",
    "an inner class overwrites the outer initialization",
    "layers.1",
    "std|factor|times",
    works=lambda m: abs(float(m.model.layers[1].mlp.up_proj.weight.std()) / 0.02 - 1) < 0.1,
)
def overwritten() -> Answer:
    def make() -> nn.Module:
        model: Any = hugging_face("LlamaForCausalLM", num_hidden_layers=5, intermediate_size=128, **TRANSFORMERS)
        nn.init.kaiming_uniform_(model.model.layers[1].mlp.up_proj.weight, a=5**0.5)
        return model

    return checked(make)


@thread(
    27,
    "litgpt 1150",
    "pretraining from scratch never re-initializes",
    "torch's (own )?default|default",
    "linear|weight",
)
def never_initialized() -> Answer:
    model = Gpt()
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.reset_parameters()
    return checked(lambda: model, text(), verbose=True)


@thread(
    28,
    "PaddleFormers 4771",
    "runs diverge by rounding at std 0.02, not at 0.001",
    "sensitiv|perturbation|chao|rounding",
)
def rounding() -> Answer:
    return checked(lambda: Gpt(depth=12), text(), verbose=True)


def _down_is_right(model: Any) -> bool:
    return abs(float(model.blocks[1].mlp.down.weight.std()) / (0.02 / math.sqrt(8)) - 1) < 0.15


@thread(
    29,
    "tt-metal 48716",
    "the down projection is initialized by the hidden size: 2.75 times the variance",
    "down",
    "fan|width|hidden|factor|std",
)
def wrong_fan() -> Answer:
    def make() -> nn.Module:
        model: Any = Gpt(depth=4)
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "blocks" in name:
                nn.init.normal_(weight, 0.0, (64 if name.endswith("down.weight") else weight.shape[1]) ** -0.5)
        return model

    return checked(make, text())


@thread(30, "LayerNorm-Scaling 6", "an embedding of std 0.6 was left in", "embed|wte", "std|share|stream")
def loud_embedding() -> Answer:
    def make() -> nn.Module:
        model: Any = Gpt(depth=6)
        normal(model, "wte.weight", 0.6)
        return model

    return checked(make, text(), verbose=True)


class Sines(Gpt):
    """Sinusoidal positions."""

    factor = 1.0

    def embed(self, ids: Tensor) -> Tensor:
        place, width = torch.arange(ids.shape[1])[:, None], self.wte.embedding_dim
        angle = place / 10000 ** (torch.arange(0, width, 2) / width)
        return self.factor * self.wte(ids) + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


@thread(31, "espnet 3454", "why sqrt(d) on embeddings?", "position", "wte|token|embedding", "sqrt|std|scale|multiply")
def sinusoidal() -> Answer:
    return checked(Sines, text())


@thread(32, "build-nanogpt 18", "positions of std 0.02, 0.01 or 0?", "no problems|healthy", never=("\\d+ problem",))
def no_positions() -> Answer:
    def make() -> nn.Module:
        model: Any = Gpt()
        fill(model, "wpe.weight", 0.0)
        return model

    return checked(make, text())


class Plain(nn.Module):
    """Branches without norms, scaled by a number."""

    def __init__(self, width: int, diagonal: int | None, norm: Any, mlp: Any):
        super().__init__()
        self.attn, self.mlp = Attention(width), mlp(width)
        self.resweight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.resweight * self.attn(x)
        return x + self.resweight * self.mlp(x)


@thread(
    33,
    "rezero 8",
    "a BERT with ReZero gives NaN",
    "resweight|scale",
    "grow|explo|not finite",
    works=lambda model: math.isfinite(loss_of(model)) and loss_of(model) < 8,
)
def rezero() -> Answer:
    def make() -> nn.Module:
        model: Any = Gpt(depth=12, block=Plain)
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "blocks" in name:
                nn.init.normal_(weight, 0.0, 2 * weight.shape[1] ** -0.5)
        normal(model, "wte.weight", 1.0)
        return model

    return checked(make, text())


class Unet(nn.Module):
    """A Transformer whose late blocks read early ones."""

    def __init__(self, depth: int = 12):
        super().__init__()
        self.wte, self.norm, self.head = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, VOCABULARY),
        )
        self.blocks = nn.ModuleList([Block(WIDTH, 0) for _ in range(depth)])
        self.merge = nn.ModuleList([nn.Linear(2 * WIDTH, WIDTH) for _ in range(depth // 2)])

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x, kept = self.wte(ids), []
        half = len(self.merge)
        for block in self.blocks[:half]:
            x = block(x)
            kept.append(x)
        for block, merge in zip(self.blocks[half:], self.merge, strict=True):
            x = block(merge(torch.cat([x, kept.pop()], -1)))
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@thread(
    34,
    "voicebox-pytorch 23",
    "24 layers do not converge, 12 do",
    "gradient|shrink|vanish|grow",
    "times|per block|depth\\^",
)
def voicebox() -> Answer:
    return checked(lambda: Unet(24), text())


@thread(35, "admin-torch 1", "the wider model diverges", "width", "0\\.02|std", "fan|sqrt|rate|exponent")
def wider() -> Answer:
    def make() -> nn.Module:
        return _llama(hidden_size=256)

    return checked(make, base=_llama(hidden_size=64))


@thread(36, "TransformerEngine 962", "fp8 gives NaN in the first batch", "fp8|overflow|range|fp16", "scal")
def fp8() -> Answer:
    def make() -> nn.Module:
        model: Any = Gpt()
        model.blocks[1].mlp.up.weight.data.mul_(1e6)  # type: ignore[union-attr]
        return model

    return checked(make, text(), verbose=True)


class Unscaled(Gpt):
    """Values that all tokens share."""

    def embed(self, ids: Tensor) -> Tensor:
        return super().embed(ids) + 3.0


@thread(
    37, "unit-scaling 84", "DiT: std after attention 10", "token correlation|tokens (are|become)|identical|correlated"
)
def shared_part() -> Answer:
    def make() -> nn.Module:
        model: Any = Encoder(12, copied=False)
        with torch.no_grad():
            model.emb.weight.add_(torch.randn(WIDTH) * 6)
        return model

    return checked(make, tokens())


@thread(38, "Muon 49", "which Muon rate, which factor?", "muon", "0\\.2|sqrt|rms|factor|×")
def muon() -> Answer:
    return Answer(
        "\n".join(str(sp.plan(Gpt(), "unit", batch=text(), optimizer=f"muon{form}")) for form in ("", ":rms"))
    )


@thread(39, "marin 4849", "does this initialization multiplier matter?", "up|qkv|down|proj", "std|times|factor")
def multiplier() -> Answer:
    first, second = Gpt(), Gpt()
    for weight in each(second, "proj.weight"):
        weight.data.mul_(0.5)
    return differing(first, second)


@thread(40, "marin 5177", "a depth rule with experts", "down|proj|experts", "rate|multiplier|depth")
def experts_depth() -> Answer:
    model = hugging_face(
        "MixtralForCausalLM",
        num_hidden_layers=4,
        intermediate_size=128,
        num_key_value_heads=2,
        num_local_experts=4,
        **TRANSFORMERS,
    )
    base = hugging_face(
        "MixtralForCausalLM",
        num_hidden_layers=2,
        intermediate_size=128,
        num_key_value_heads=2,
        num_local_experts=4,
        **TRANSFORMERS,
    )
    plan = sp.plan(model, width="mup", depth="linear", base=base, optimizer="adamw")
    return Answer(f"{plan.summary()}\n{plan.table(all=True)}")


@thread(41, "FLAME-MoE 3", "loss spikes by framework", "router|gate", "std|differ")
def framework() -> Answer:
    from studies.planted_bugs.experts import Experts

    first, second = Gpt(mlp=Experts, depth=2), Gpt(mlp=Experts, depth=2)
    for weight in each(second, "router.weight"):
        weight.data.mul_(4.0)
    return differing(first, second)


@thread(42, "wandb 5218", "log update ratios and activations", "update|of its size in one step", "blocks|head")
def watched() -> Answer:
    model = Gpt(depth=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    with sp.Watch(model, optimizer, every=2) as watch:
        for _ in range(8):
            loss = model(**text())[1]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.step(loss)
    return Answer("\n".join(f"{item.title} {item.cause}" for item in watch.findings))


@thread(
    43, "transformers 11181", "kill bad starts", "not finite|nan|infin", "blocks.1", never=("no problems", "healthy")
)
def bad_start() -> Answer:
    def make() -> nn.Module:
        model: Any = Gpt()
        model.blocks[1].mlp.up.weight.data[3, 4] = math.inf  # type: ignore[union-attr]
        return model

    return checked(make, text())


@thread(
    44,
    "Mish 37",
    "the gain for my activation",
    "std = ?\\d|1\\.\\d+ ?/ ?sqrt|\\d\\.\\d+/sqrt",
    never=("e\\+0[3-9]", "[4-9]\\d*\\.\\d*/sqrt"),
)
def mish() -> Answer:
    return command("critical", "mish")


@thread(
    45,
    "pytorch 15314",
    "why sqrt(5)?",
    "default",
    "shrink|vanish",
    "kaiming|gain|std|sqrt",
    works=lambda model: float(model(noise(16, 64)).std()) > 0.1,
)
def root_five() -> Answer:
    return checked(
        lambda: nn.Sequential(*(m for _ in range(16) for m in (nn.Linear(64, 64), nn.ReLU()))), noise(16, 64)
    )


@thread(46, "DeepSpeed 7657", "separate rates for Muon and Adam groups", "muon", "adam")
def groups() -> Answer:
    model = Gpt()
    optimizers = sp.plan(model, "own", batch=text(), optimizer="muon").optimizers(model, lr=0.02)
    groups = [(type(item).__name__, group) for item in optimizers for group in item.param_groups]
    return Answer("\n".join(f"{kind}: {len(group['params'])} tensors, lr {group['lr']:g}" for kind, group in groups))

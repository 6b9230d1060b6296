"""Models of many kinds that predictions are compared with, and what was measured of them.

One function each from a setting to a factory, a batch and a loss. `docs/data/accuracy_measurements.json.gz` has means
and standard errors over 100 initializations, made by `studies.accuracy_measurements`, which commit c73ab39 still has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sigprop.inputs.synthetic import zipf_ids
from sigprop.models import mixer, resnet
from sigprop.results import ParameterRow, Profile, SiteRow
from studies.stored import read

STORED = Path("docs/data/accuracy_measurements.json.gz")
COLUMNS = {"sites": ("variance", "token_correlation", "grad_variance"), "parameters": ("grad_second_moment",)}
IMAGES = ("vit", "resnet", "mixer")
OWN_INIT = ("t5", "resnet", "mixer")


@dataclass(frozen=True)
class Setting:
    """One cell of the study."""

    name: str
    width: int = 256
    depth: int = 12
    tokens: int = 128
    vocabulary: int = 4096
    tied: bool = False
    init: str = "standard"

    @property
    def label(self) -> str:
        return f"{self.name}-{self.depth}-{self.init}-{'tied' if self.tied else 'untied'}"

    @property
    def deviation(self) -> float:
        return 0.02 if self.init == "standard" else self.width**-0.5


@dataclass(frozen=True)
class Case:
    """A way to make the model, its batch, and the loss if the model has none of its own."""

    make: Callable[[], nn.Module]
    batch: Any
    loss: Callable[[Any], Tensor] | None = None


def decoder(kind: str, **extra: Any) -> Callable[[Setting], Case]:
    """A causal language model of transformers with Llama's config names."""

    def case(s: Setting) -> Case:
        import transformers

        settings = {
            "hidden_size": s.width,
            "intermediate_size": 2 * s.width,
            "num_hidden_layers": s.depth,
            "num_attention_heads": 4,
            "vocab_size": s.vocabulary,
            "initializer_range": s.deviation,
            "tie_word_embeddings": s.tied,
            **_special(),
        }
        width = s.width // 4
        given = {key: width if value == "head" else value for key, value in extra.items()}
        config = getattr(transformers, f"{kind}Config")(**(settings | given))
        ids = zipf_ids(s.vocabulary, (1, s.tokens))
        model = getattr(transformers, f"{kind}ForCausalLM")
        return Case(lambda: model(config), {"input_ids": ids, "labels": ids})

    return case


def _special() -> dict[str, Any]:
    return {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}


def gpt2(s: Setting) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=s.depth, n_embd=s.width, n_head=4, vocab_size=s.vocabulary, initializer_range=s.deviation,
        tie_word_embeddings=s.tied, **_special(),
    )  # fmt: skip
    ids = zipf_ids(s.vocabulary, (1, s.tokens))
    return Case(lambda: GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids})


def bert(s: Setting) -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=s.width, intermediate_size=4 * s.width, num_hidden_layers=s.depth, num_attention_heads=4,
        vocab_size=s.vocabulary, initializer_range=s.deviation, tie_word_embeddings=s.tied, **_special(),
    )  # fmt: skip
    ids = zipf_ids(s.vocabulary, (1, s.tokens))
    hidden = torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15
    labels = ids.masked_fill(~hidden, -100)
    return Case(lambda: BertForMaskedLM(config), {"input_ids": ids.masked_fill(hidden, 3), "labels": labels})


def t5(s: Setting) -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=s.width, d_ff=2 * s.width, d_kv=s.width // 4, num_layers=s.depth // 2, num_heads=4,
        vocab_size=s.vocabulary, **{"tie_word_embeddings": s.tied, "decoder_start_token_id": 2, **_special()},
    )  # fmt: skip
    return Case(lambda: T5ForConditionalGeneration(config), _pair(s))


def bart(s: Setting) -> Case:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        d_model=s.width, encoder_ffn_dim=4 * s.width, decoder_ffn_dim=4 * s.width, encoder_layers=s.depth // 2,
        decoder_layers=s.depth // 2, encoder_attention_heads=4, decoder_attention_heads=4, vocab_size=s.vocabulary,
        init_std=s.deviation, tie_word_embeddings=s.tied, decoder_start_token_id=2, **_special(),
    )  # fmt: skip
    return Case(lambda: BartForConditionalGeneration(config), _pair(s))


def _pair(s: Setting) -> dict[str, Tensor]:
    ids, labels = zipf_ids(s.vocabulary, (1, s.tokens)), zipf_ids(s.vocabulary, (1, s.tokens), 1)
    return {"input_ids": ids, "labels": labels}


def vit(s: Setting) -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=s.width, intermediate_size=4 * s.width, num_hidden_layers=s.depth, num_attention_heads=4,
        image_size=32, patch_size=4, initializer_range=s.deviation,
    )  # fmt: skip
    config.num_labels = 100
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batch = {"pixel_values": pixels, "labels": torch.tensor([3, 7])}
    return Case(lambda: ViTForImageClassification(config), batch)


class Encoder(nn.Module):
    """`nn.TransformerEncoder` between an embedding and a head; every layer initialized anew."""

    def __init__(self, s: Setting):
        super().__init__()
        layer = nn.TransformerEncoderLayer(s.width, 4, 4 * s.width, 0.0, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(s.vocabulary, s.width)
        self.encoder = nn.TransformerEncoder(layer, s.depth, nn.LayerNorm(s.width), enable_nested_tensor=False)
        self.head = nn.Linear(s.width, s.vocabulary, bias=False)
        for layer in self.encoder.layers:  # copies of one layer: their biases too are drawn again
            for linear in (layer.linear1, layer.linear2):
                linear.reset_parameters()  # type: ignore[operator]
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0.0, s.deviation)
        if s.tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(ids)))


def encoder(s: Setting) -> Case:
    ids = zipf_ids(s.vocabulary, (1, s.tokens))
    targets = zipf_ids(s.vocabulary, (s.tokens,), 1)
    return Case(lambda: Encoder(s), ids, lambda out: F.cross_entropy(out.flatten(0, 1), targets.to(out.device)))


def _images(model: Callable[[], nn.Module], count: int, size: int) -> Case:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(count, 3, size, size, generator=generator)
    targets = torch.randint(10, (count,), generator=generator)
    return Case(model, pixels, lambda out: F.cross_entropy(out, targets.to(out.device)))


CASES: dict[str, Callable[[Setting], Case]] = {
    "gpt2": gpt2,
    "llama": decoder("Llama", num_key_value_heads=2),
    "bert": bert,
    "vit": vit,
    "t5": t5,
    "bart": bart,
    "qwen3": decoder("Qwen3", num_key_value_heads=2, head_dim="head"),
    "gemma2": decoder("Gemma2", num_key_value_heads=2, head_dim="head", sliding_window=32),
    "neox": decoder("GPTNeoX"),
    "mixtral": decoder("Mixtral", num_key_value_heads=2, num_local_experts=4),
    "encoder": encoder,
    "resnet": lambda s: _images(lambda: resnet(width=s.width // 4, depth=max(1, s.depth // 6)), 8, 8),
    "mixer": lambda s: _images(lambda: mixer(width=s.width, depth=s.depth, image=32, patch=4), 2, 32),
}


def all_settings() -> list[Setting]:
    """All combinations that differ: image models have nothing to tie; some scale their own initialization by width."""
    return [
        Setting(name, init=init, tied=tied)
        for name in CASES
        for init in ("standard", "width")
        for tied in (False, True)
        if not (tied and name in IMAGES) and (init == "standard" or name not in OWN_INIT)
    ]


def stored_profiles(path: Path = STORED) -> dict[str, Profile]:
    """By setting, the measured profile."""
    stored = read(path)
    seeds = list(range(stored["first seed"], stored["first seed"] + stored["draws"]))
    found = {}
    for entry in stored["settings"]:
        sites = [_unpacked(SiteRow(row[0], 0), row[1:], COLUMNS["sites"]) for row in entry["sites"]]
        parameters = [
            _unpacked(ParameterRow(row[0], ()), row[1:], COLUMNS["parameters"]) for row in entry["parameters"]
        ]
        found[entry["label"]] = Profile(sites, parameters, {"source": "measure", "seeds": seeds})
    return found


def _unpacked(row: Any, pairs: list[Any], columns: tuple[str, ...]) -> Any:
    for column, pair in zip(columns, pairs, strict=True):
        if pair is not None:
            setattr(row, column, pair[0])
            row.errors[column] = pair[1]
    return row

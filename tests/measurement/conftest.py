"""A zoo of small models that measuring must survive, shared by the tests of this folder.

A test that takes `specimen` runs once for each; it gets a fresh (model, batch, loss function) each time.
"""

import random
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from sigprop.models import build

TOKENS = torch.arange(36).reshape(3, 12) * 7 % 29
IMAGES = torch.linspace(-2, 2, 3 * 8 * 8).sin().reshape(3, 1, 8, 8)
SMALL = {"vocabulary": 29, "context": 12, "width": 16, "depth": 2, "heads": 2}
PICTURE = {"image": 8, "channels": 1, "patch": 4, "width": 12, "depth": 2}


class Specimen(NamedTuple):
    model: nn.Module
    batch: object
    loss: object = None


def square(output):
    return output.square().mean()


def transformer(**settings):
    return lambda: Specimen(build("transformer", **{**SMALL, **settings}), TOKENS, square)


def padded():
    mask = torch.ones(3, 12, dtype=torch.long)
    mask[1, 7:] = 0
    mask[2, 1:] = 0
    return Specimen(build("transformer", **SMALL), {"tokens": TOKENS, "attention_mask": mask}, square)


def image_model(name, **settings):
    return lambda: Specimen(build(name, **settings), IMAGES)


def perceptron(**settings):
    settings = {"inputs": 64, "width": 20, "depth": 3, "outputs": 5, **settings}
    return lambda: Specimen(build("mlp", **settings), IMAGES, square)


def hugging_face(kind, **settings):
    def make():
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, kind[0])(**settings)
        model = getattr(transformers, kind[1])(config)
        if kind[0] == "ViTConfig":
            return Specimen(model, {"pixel_values": IMAGES}, lambda output: square(output.logits))
        labels = {"labels": TOKENS % 2} if kind[0] == "T5Config" else {"labels": TOKENS}
        mask = torch.ones_like(TOKENS)
        mask[0, 9:] = 0
        return Specimen(model, {"input_ids": TOKENS, "attention_mask": mask, **labels})

    return make


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(29, 8)
        self.lstm = nn.LSTM(8, 10, batch_first=True)
        self.head = nn.Linear(10, 4)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


class Shared(nn.Module):
    """One layer used three times, as in ALBERT."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(29, 8)
        self.layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, tokens):
        x = self.embedding(tokens)
        for _ in range(3):
            x = x + self.layer(x)
        return x


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.embedding = nn.Embedding(29, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.2)) for _ in range(3))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(6, 3)

    def forward(self, images):
        x = self.relu(self.norm(self.conv(images)))
        out = self.head(x.mean((2, 3)))
        out += 1.0
        return out


class Odd(nn.Module):
    """Modules that return a tuple, a dictionary and nothing."""

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return self.linear(x), (x * 2, None), 3

    class Named(nn.Module):
        def forward(self, x):
            return {"hidden": x.tanh(), "count": torch.tensor(3)}

    class Silent(nn.Module):
        def forward(self, x):
            return None

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(29, 8)
        self.pair, self.named, self.silent = self.Pair(), self.Named(), self.Silent()

    def forward(self, tokens):
        first, (second, _), _ = self.pair(self.embedding(tokens))
        self.silent(first)
        return self.named(first + second)["hidden"]


class Codebook(nn.Module):
    """Rewrites its parameter and buffers in the forward pass, as vector quantizers with moving averages do."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("seen", torch.zeros(8))
        self.register_buffer("steps", torch.tensor(0))
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        self.weight = nn.Parameter(self.weight.detach() * 0.9)
        self.scale.data.mul_(1.5)
        self.linear.eval()
        self.seen = self.seen + x.detach().mean((0, 1))
        self.steps += 1
        return self.linear(x @ self.weight) * self.scale


class Lucky(nn.Module):
    """Uses every source of random numbers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        import numpy as np

        factor = random.random() + np.random.rand()  # noqa: NPY002
        return self.dropout(self.linear(x)) * factor + torch.rand(8)


class InnerGradient(nn.Module):
    """Differentiates inside its forward pass, as force fields do."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return force


FEATURES = torch.linspace(-3, 3, 3 * 5 * 8).cos().reshape(3, 5, 8)


def frozen():
    model = build("transformer", **SMALL)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("blocks.1" in name)
    return Specimen(model, TOKENS, square)


def with_gradients():
    specimen = transformer(tied_head=True)()
    for parameter in specimen.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    specimen.model.blocks[0].register_forward_hook(lambda *arguments: None)
    specimen.model.blocks[0].eval()
    return specimen


def pytorch_encoder(training):
    def make():
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        return Specimen(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training), FEATURES)

    return make


ZOO = {
    "decoder": transformer(),
    "decoder padded": padded,
    "decoder tied, gradients kept": with_gradients,
    "encoder post rms swiglu rotary": transformer(
        kind="encoder", norm_placement="post", norm="rms_norm", activation="swiglu", positions="rotary"
    ),
    "sandwich sinusoidal dropout": transformer(norm_placement="sandwich", positions="sinusoidal", dropout=0.1),
    "no norm, learned scales, fused": transformer(
        norm_placement="none", learnable_scales=True, skip_scale=0.9, fused_qkv=True
    ),
    "encoder-decoder": lambda: Specimen(
        build("transformer", **SMALL, kind="encoder_decoder"), (TOKENS, TOKENS[:, :9]), square
    ),
    "vit": image_model("vit", **PICTURE, heads=2),
    "vit post-norm relu": image_model("vit", **PICTURE, heads=2, norm_placement="post", activation="relu"),
    "mlp": perceptron(),
    "mlp norm on preactivations": perceptron(norm_placement="preactivation", activation="erf", sigma_b=0.3),
    "mlp norm on activations": perceptron(norm_placement="activation", mu=0.5),
    "resnet layer norm": image_model("resnet", channels=1, width=4, depth=1, norm="layer_norm", mu=0.7),
    "resnet batch norm": image_model("resnet", channels=1, width=4, depth=2),
    "mixer": image_model("mixer", **PICTURE),
    "gpt2": hugging_face(
        ("GPT2Config", "GPT2LMHeadModel"), n_layer=2, n_embd=16, n_head=2, vocab_size=29, n_positions=12
    ),
    "llama": hugging_face(
        ("LlamaConfig", "LlamaForCausalLM"),
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=29,
    ),
    "bert": hugging_face(
        ("BertConfig", "BertForMaskedLM"),
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        vocab_size=29,
    ),
    "t5": hugging_face(
        ("T5Config", "T5ForConditionalGeneration"),
        num_layers=2,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_heads=2,
        vocab_size=29,
        decoder_start_token_id=0,
    ),
    "hf vit": hugging_face(
        ("ViTConfig", "ViTForImageClassification"),
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
        num_channels=1,
    ),
    "lstm": lambda: Specimen(Recurrent(), TOKENS),
    "pytorch encoder": pytorch_encoder(True),
    "pytorch encoder in eval": pytorch_encoder(False),
    "shared layer": lambda: Specimen(Shared(), TOKENS, square),
    "checkpointed": lambda: Specimen(Checkpointed(False), TOKENS, square),
    "checkpointed reentrant": lambda: Specimen(Checkpointed(True), TOKENS, square),
    "in place": lambda: Specimen(InPlace(), IMAGES, lambda output: F.cross_entropy(output, torch.arange(3))),
    "odd outputs": lambda: Specimen(Odd(), TOKENS),
    "rewrites itself": lambda: Specimen(Codebook(), FEATURES),
    "random": lambda: Specimen(Lucky(), FEATURES),
    "inner gradient": lambda: Specimen(InnerGradient(), FEATURES),
    "frozen": frozen,
    "scripted": lambda: Specimen(torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh())), FEATURES),
}


def pytest_generate_tests(metafunc):
    if "specimen" in metafunc.fixturenames:
        metafunc.parametrize("specimen", list(ZOO), indirect=True)


@pytest.fixture
def specimen(request):
    torch.manual_seed(0)
    return ZOO[request.param]()


@pytest.fixture
def make_specimen():
    def make(name):
        torch.manual_seed(0)
        return ZOO[name]()

    return make

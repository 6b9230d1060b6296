"""A third set of models from packages on PyPI, of packages and classes that the first two lack; written before any of
them was predicted."""

# ruff: noqa: E501  (a model is a line)
from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from studies.corpus.case import Case, ids, noise
from studies.corpus.packages import built, timm_cases

TIMM = {
    "rexnet_100": {"width_mult": 0.3},
    "hrnet_w18_small": {},
    "res2net50_14w_8s": {"layers": (1, 1, 1, 1)},
    "resnest14d": {"layers": (1, 1, 1, 1)},
    "cspresnet50": {},
    "ese_vovnet19b_dw": {},
    "fastvit_t8": {},
    "repghostnet_050": {},
    "tinynet_e": {},
    "sequencer2d_s": {"img_size": 32, "layers": (1, 1, 1, 1), "embed_dims": (16, 24, 24, 24), "hidden_sizes": (8, 8, 8, 8)},
    "maxvit_nano_rw_256": {"img_size": 64},
}  # fmt: skip


def sequence_cases() -> Iterator[Case]:
    sequence = lambda: noise(2, 16, 64)  # noqa: E731
    tokens = lambda: ids(50, 2, 32)  # noqa: E731
    short = {"num_tokens": 50, "dim": 48, "depth": 2, "heads": 4, "dim_head": 12}
    plain = {"num_tokens": 50, "dim": 48, "depth": 2}
    for name, module, kind, settings, batch in [
        ("block recurrent", "block_recurrent_transformer_pytorch", "BlockRecurrentTransformer", short | {"max_seq_len": 32, "block_width": 16, "recurrent_layers": (1,)}, tokens),
        ("equivariant transformer", "en_transformer", "EnTransformer", {"dim": 32, "depth": 2, "heads": 2, "dim_head": 32, "neighbors": 0}, lambda: (noise(1, 10, 32), noise(1, 10, 3, seed=1))),
        ("exponential smoothing", "etsformer_pytorch", "ETSFormer", {"time_features": 4, "model_dim": 32, "layers": 2, "heads": 4, "K": 3}, lambda: noise(2, 24, 4)),
        ("feedback", "feedback_transformer_pytorch", "FeedbackTransformer", short | {"seq_len": 2, "mem_len": 16}, lambda: ids(50, 2, 8)),
        ("cosine attention module", "memory_efficient_attention_pytorch", "CosineSimAttention", {"dim": 64, "seq_len": 16, "heads": 4, "dim_head": 16}, sequence),
        ("causal attention module", "memory_efficient_attention_pytorch", "Attention", {"dim": 64, "heads": 4, "dim_head": 16, "causal": True}, sequence),
        ("gated experts", "mixture_of_experts", "MoE", {"dim": 64, "num_experts": 4, "hidden_dim": 96}, sequence),
        ("moving averages", "mega_pytorch", "Mega", {"num_tokens": 50, "dim": 48, "depth": 2, "ema_heads": 4, "attn_dim_qk": 16, "attn_dim_value": 48, "laplacian_attn_fn": True}, tokens),
        ("compressive", "compressive_transformer_pytorch", "CompressiveTransformer", plain | {"seq_len": 32, "heads": 4}, tokens),
        ("xl memory", "memory_transformer_xl", "MemoryTransformerXL", plain | {"seq_len": 32, "heads": 4}, tokens),
        ("token shift", "token_shift_gpt", "TokenShiftGPT", plain | {"max_seq_len": 32}, tokens),
        ("all layers attended", "omninet_pytorch", "Omninet", {"dim": 48, "depth": 2, "heads": 4, "dim_head": 12}, lambda: noise(2, 16, 48)),
        ("mogrifier", "mogrifier", "Mogrifier", {"dim": 48, "iters": 4, "factorize_k": 12}, lambda: (noise(2, 8, 48), noise(2, 8, 48, seed=1))),
        ("a million experts", "PEER_pytorch", "PEER", {"dim": 48, "heads": 2, "num_experts": 64, "num_experts_per_head": 4, "dim_key": 16}, lambda: noise(2, 12, 48)),
        ("agent attention", "agent_attention_pytorch", "AgentTransformer", {"dim": 48, "num_agent_tokens": 6, "depth": 2, "heads": 4, "dim_head": 12}, lambda: noise(2, 16, 48)),
        ("megabyte", "MEGABYTE_pytorch", "MEGABYTE", {"num_tokens": 50, "dim": (48, 32), "depth": (2, 1), "max_seq_len": (8, 4), "dim_head": 12, "heads": 4}, lambda: ids(49, 2, 32) + 1),
        ("recurrent memory", "recurrent_memory_transformer_pytorch", "RecurrentMemoryTransformer", short | {"num_memory_tokens": 4, "seq_len": 32}, tokens),
        ("infinite context", "infini_transformer_pytorch", "InfiniTransformer", short, tokens),
        ("light and heavy tokens", "colt5_attention", "ConditionalRoutedFeedForward", {"dim": 48, "num_heavy_tokens": 4}, lambda: noise(2, 16, 48)),
        ("finite scalars", "vector_quantize_pytorch", "FSQ", {"levels": [8, 5, 5], "dim": 24}, lambda: noise(2, 12, 24)),
        ("film", "x_mlps_pytorch", "FiLMableMLP", {}, None),
        ("hierarchies", "simple_hierarchical_transformer", "HierarchicalTransformer", {"num_tokens": 50, "dim": 48, "depth": 2, "seq_len": 32, "dim_head": 12, "heads": 4, "hierarchies": (1, 2), "window_sizes": (16, None), "use_flash_attn": False}, tokens),
    ]:  # fmt: skip
        if batch is None:
            make: Callable[[], nn.Module] = _film
            batch = lambda: (noise(8, 12), noise(8, 6, seed=1))  # noqa: E731
        else:
            make = built(module, kind, settings)
        yield Case(f"various/{name}", "sequences and sets", make, batch, added=3)


def _film() -> nn.Module:
    return importlib.import_module("x_mlps_pytorch").FiLMableMLP(12, 48, 48, 5, cond_dim=6)


class Flow(nn.Module):
    """Steps of a normalizing flow, and the logarithm of their determinant."""

    def __init__(self, kind: str):
        super().__init__()
        transforms: Any = importlib.import_module("nflows.transforms")
        make = {
            "affine autoregressive": lambda: transforms.MaskedAffineAutoregressiveTransform(12, 48),
            "spline autoregressive": lambda: transforms.MaskedPiecewiseRationalQuadraticAutoregressiveTransform(
                12, 48, num_bins=4, tails="linear", tail_bound=3.0
            ),
        }[kind]
        self.steps = nn.ModuleList(make() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros(len(x))
        for step in self.steps:
            x, volume = step(x)
            total = total + volume
        return torch.cat((x, total[:, None]), -1)


class Spiking(nn.Module):
    """Two layers of leaky neurons over eight steps."""

    def __init__(self) -> None:
        super().__init__()
        neurons: Any = importlib.import_module("snntorch")
        self.a, self.b = nn.Linear(12, 48), nn.Linear(48, 5)
        self.first, self.second = neurons.Leaky(beta=0.9), neurons.Leaky(beta=0.9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two, seen = self.first.init_leaky(), self.second.init_leaky(), []
        for _ in range(8):
            spikes, one = self.first(self.a(x), one)
            _, two = self.second(self.b(spikes), two)
            seen.append(two)
        return torch.stack(seen, 1)


class Sparse(nn.Module):
    """Attention with sparse weights."""

    def __init__(self, kind: str):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(48, 48) for _ in range(3))
        self.weights = getattr(importlib.import_module("entmax"), kind)(dim=-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weights(self.q(x) @ self.k(x).mT / 2) @ self.v(x)


def other_cases() -> Iterator[Case]:
    for kind in ("affine autoregressive", "spline autoregressive"):
        yield Case(f"nflows/{kind}", "flows", lambda kind=kind: Flow(kind), lambda: noise(16, 12), added=3)
    yield Case("snntorch/leaky", "recurrent", Spiking, lambda: noise(8, 12), added=3)
    for kind in ("Sparsemax", "Entmax15"):
        yield Case(f"entmax/{kind}", "attention", lambda kind=kind: Sparse(kind), lambda: noise(2, 12, 48), added=3)
    step = lambda *shape: lambda: (noise(*shape), torch.tensor([3, 7]))  # noqa: E731
    for name, settings, batch in [
        ("Unet", {"dim": 16, "dim_mults": (1, 2), "attn_dim_head": 8, "attn_heads": 2}, step(2, 3, 16, 16)),
        (
            "Unet1D",
            {"dim": 16, "dim_mults": (1, 2), "channels": 4, "attn_dim_head": 8, "attn_heads": 2},
            step(2, 4, 32),
        ),
    ]:
        make = built("denoising_diffusion_pytorch", name, settings)
        yield Case(f"denoising-diffusion/{name}", "diffusion", make, batch, added=3)
    yield Case(
        "uformer-pytorch/Uformer",
        "convolutional",
        built(
            "uformer_pytorch",
            "Uformer",
            {"dim": 16, "stages": 2, "num_blocks": 1, "window_size": 4, "dim_head": 8, "heads": 2},
        ),
        lambda: noise(1, 3, 32, 32),
        added=3,
    )
    yield Case(
        "x-unet/XUnet",
        "convolutional",
        built(
            "x_unet",
            "XUnet",
            {
                "dim": 16,
                "dim_mults": (1, 2),
                "num_blocks_per_stage": (1, 1),
                "num_self_attn_per_stage": (0, 1),
                "nested_unet_depths": (0, 0),
            },
        ),
        lambda: noise(1, 3, 16, 16),
        added=3,
    )
    yield Case(
        "segformer-pytorch/Segformer",
        "convolutional",
        built(
            "segformer_pytorch",
            "Segformer",
            {
                "dims": (16, 24, 32, 48),
                "heads": (1, 2, 2, 4),
                "ff_expansion": (2, 2, 2, 2),
                "num_layers": 1,
                "decoder_dim": 32,
            },
        ),
        lambda: noise(1, 3, 64, 64),
        added=3,
    )
    yield Case("efficientnet-pytorch/b0", "convolutional", _efficient, lambda: noise(4, 3, 32, 32), added=3)


def _efficient() -> nn.Module:
    return importlib.import_module("efficientnet_pytorch").EfficientNet.from_name("efficientnet-b0", num_classes=10)


def zoo_cases() -> Iterator[Case]:
    provider: Any = importlib.import_module("pytorchcv.model_provider")
    for name in ("nin_cifar10", "ror3_56_cifar10", "rir_cifar10", "shakeshakeresnet20_2x16d_cifar10", "shakedropresnet20_cifar10", "preresnet20_cifar10", "resnext20_16x4d_cifar10", "xdensenet40_2_k24_bc_cifar10", "diaresnet20_cifar10", "resneta10"):  # fmt: skip
        size = 32 if "cifar" in name else 64
        make = lambda name=name: provider.get_model(name, pretrained=False, num_classes=10)  # noqa: E731
        yield Case(f"pytorchcv/{name}", "convolutional", make, lambda size=size: noise(4, 3, size, size), added=3)


class Layers(nn.Module):
    """Layers of torch_geometric that keep the width, and a first and a last one."""

    def __init__(self, make: Callable[[Any], nn.Module], extra: Callable[..., tuple]):
        super().__init__()
        package: Any = importlib.import_module("torch_geometric.nn")
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)
        self.layers = nn.ModuleList(make(package) for _ in range(2))
        self._extra = extra

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = first = torch.relu(self.first(x))
        for layer in self.layers:
            x = torch.relu(layer(x, *self._extra(first, edge_index)))
        return self.last(x)


def graph_cases() -> Iterator[Case]:
    batch = lambda: {"x": noise(20, 16), "edge_index": ids(20, 2, 160)}  # noqa: E731
    edges = lambda first, index: (index,)  # noqa: E731
    kinds = ids(3, 160, seed=2)
    for name, layer, extra in [
        ("GCN2Conv", lambda g: g.GCN2Conv(32, alpha=0.2), lambda first, index: (first, index)),
        ("GatedGraphConv", lambda g: g.GatedGraphConv(32, 2), edges),
        ("RGCNConv", lambda g: g.RGCNConv(32, 32, 3), lambda first, index: (index, kinds)),
        (
            "PNAConv",
            lambda g: g.PNAConv(32, 32, ["mean", "max", "std"], ["identity"], torch.tensor([0, 4, 8, 8])),
            edges,
        ),
        ("EdgeConv", lambda g: g.EdgeConv(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32))), edges),
        ("FAConv", lambda g: g.FAConv(32), lambda first, index: (first, index)),
        ("AGNNConv", lambda g: g.AGNNConv(), edges),
        ("HypergraphConv", lambda g: g.HypergraphConv(32, 32), edges),
        ("MixHopConv", lambda g: g.MixHopConv(32, 16, powers=[0, 1]), edges),
        ("AntiSymmetricConv", lambda g: g.AntiSymmetricConv(32), edges),
        ("DirGNNConv", lambda g: g.DirGNNConv(g.SAGEConv(32, 32)), edges),
        ("GPSConv", lambda g: g.GPSConv(32, g.SAGEConv(32, 32), heads=2), edges),
    ]:
        yield Case(
            f"torch_geometric/{name}", "graph", lambda layer=layer, extra=extra: Layers(layer, extra), batch, added=3
        )


def imaging_cases() -> Iterator[Case]:
    image = lambda: noise(2, 1, 32, 32)  # noqa: E731
    flat = {"spatial_dims": 2, "in_channels": 1}
    for name, settings, batch in [
        ("VNet", flat | {"out_channels": 2, "act": "prelu"}, lambda: noise(1, 1, 32, 32)),
        ("SegResNetVAE", flat | {"out_channels": 2, "init_filters": 8, "input_image_size": (32, 32), "vae_nz": 16}, image),
        ("ViT", {"in_channels": 1, "img_size": (32, 32), "patch_size": (8, 8), "hidden_size": 48, "mlp_dim": 96, "num_layers": 2, "num_heads": 4, "spatial_dims": 2, "classification": True}, image),
        ("SwinUNETR", flat | {"out_channels": 2, "feature_size": 12}, lambda: noise(1, 1, 64, 64)),
        ("VarAutoEncoder", {"spatial_dims": 2, "in_shape": (1, 32, 32), "out_channels": 1, "latent_size": 8, "channels": (8, 16), "strides": (2, 2)}, image),
        ("Critic", {"in_shape": (1, 32, 32), "channels": (8, 16), "strides": (2, 2)}, image),
        ("SEResNet50", flat | {"num_classes": 3}, lambda: noise(2, 1, 64, 64)),
        ("DenseNet", flat | {"out_channels": 3, "init_features": 16, "growth_rate": 8, "block_config": (2, 2, 2)}, image),
        ("DecoderOnlyTransformer", {"num_tokens": 50, "max_seq_len": 32, "attn_layers_dim": 48, "attn_layers_depth": 2, "attn_layers_heads": 4}, lambda: ids(50, 2, 24)),
    ]:  # fmt: skip
        yield Case(f"monai/{name}", "convolutional", built("monai.networks.nets", name, settings), batch, added=3)
    for name, settings, size in (
        ("convnext_tiny", {}, 32),
        ("efficientnet_b0", {}, 32),
        ("alexnet", {}, 64),
    ):
        make = built("torchvision.models", name, {"num_classes": 10, **settings})
        yield Case(f"torchvision/{name}", "convolutional", make, lambda size=size: noise(2, 3, size, size), added=3)


def vit_pytorch_cases() -> Iterator[Case]:
    image = lambda: noise(2, 3, 32, 32)  # noqa: E731
    common = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 48, "depth": 2, "heads": 4, "mlp_dim": 96}
    for module, name, changes in [
        ("simple_uvit", "SimpleUViT", {"num_register_tokens": 2}),
        ("simple_vit_with_specialized_cls", None, {}),
        ("vit_with_decorr", "ViT", {}),
        ("vit_with_keel_post_ln", "ViT", {}),
        ("jumbo_vit", "JumboViT", {"num_jumbo_cls": 1, "jumbo_cls_k": 2, "jumbo_ff_mult": 1}),
        ("simple_vit_with_relative_proj_pos_bias", None, {}),
    ]:
        yield Case(f"vit-pytorch/{module}", "vit-pytorch", _vit(module, name, common | changes), image, added=3)
    yield Case(
        "vit-pytorch/cross_vit",
        "vit-pytorch",
        built(
            "vit_pytorch.cross_vit",
            "CrossViT",
            {
                "image_size": 32,
                "num_classes": 10,
                "sm_dim": 24,
                "lg_dim": 32,
                "sm_patch_size": 8,
                "sm_enc_depth": 1,
                "sm_enc_heads": 2,
                "sm_enc_mlp_dim": 48,
                "lg_patch_size": 16,
                "lg_enc_depth": 1,
                "lg_enc_heads": 2,
                "lg_enc_mlp_dim": 48,
                "cross_attn_depth": 1,
                "cross_attn_heads": 2,
                "depth": 1,
            },
        ),
        image,
        added=3,
    )
    yield Case(
        "vit-pytorch/mobile_vit",
        "vit-pytorch",
        built(
            "vit_pytorch.mobile_vit",
            "MobileViT",
            {
                "image_size": (64, 64),
                "dims": [24, 32, 40],
                "channels": [8, 8, 16, 16, 16, 16, 24, 24, 24, 24, 48],
                "num_classes": 10,
            },
        ),
        lambda: noise(2, 3, 64, 64),
        added=3,
    )
    yield Case(
        "vit-pytorch/nest",
        "vit-pytorch",
        built(
            "vit_pytorch.nest",
            "NesT",
            {
                "image_size": 32,
                "patch_size": 4,
                "dim": 24,
                "heads": 2,
                "num_hierarchies": 2,
                "block_repeats": (1, 1),
                "num_classes": 10,
            },
        ),
        image,
        added=3,
    )


def _vit(module: str, name: str | None, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        found: Any = importlib.import_module(f"vit_pytorch.{module}")
        kind = (
            getattr(found, name)
            if name
            else next(getattr(found, n) for n in ("SimpleViT", "ViT", "LoopedViT") if hasattr(found, n))
        )
        return kind(**settings)

    return make


def diffusion_cases() -> Iterator[Case]:
    steps = torch.tensor([3, 7])
    for name, settings, batch in [
        ("UVit2DModel", {"hidden_size": 48, "cond_embed_dim": 24, "micro_cond_encode_dim": 8, "micro_cond_embed_dim": 40, "encoder_hidden_size": 24, "vocab_size": 32, "codebook_size": 30, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "in_channels": 32, "block_out_channels": 32, "block_num_heads": 4, "num_res_blocks": 1, "sample_size": 4},
            lambda: {"input_ids": ids(30, 2, 4, 4), "encoder_hidden_states": noise(2, 5, 24), "pooled_text_emb": noise(2, 24), "micro_conds": noise(2, 5)}),
        ("FluxTransformer2DModel", {"in_channels": 16, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 3, "joint_attention_dim": 24, "pooled_projection_dim": 20, "axes_dims_rope": (4, 6, 6)},
            lambda: {"hidden_states": noise(2, 16, 16), "encoder_hidden_states": noise(2, 5, 24), "pooled_projections": noise(2, 20), "timestep": steps / 10, "img_ids": noise(16, 3).abs(), "txt_ids": torch.zeros(5, 3)}),
        ("SanaTransformer2DModel", {"in_channels": 4, "out_channels": 4, "num_attention_heads": 4, "attention_head_dim": 12, "num_layers": 2, "num_cross_attention_heads": 4, "cross_attention_head_dim": 12, "cross_attention_dim": 48, "caption_channels": 24, "sample_size": 8, "mlp_ratio": 2.0},
            lambda: {"hidden_states": noise(2, 4, 8, 8), "encoder_hidden_states": noise(2, 5, 24), "timestep": steps}),
    ]:  # fmt: skip
        yield Case(f"diffusers/{name}", "diffusion", built("diffusers", name, settings), batch, added=3)


def x_transformers_cases() -> Iterator[Case]:
    package: Any = importlib.import_module("x_transformers")
    tokens = lambda: ids(50, 2, 24)  # noqa: E731
    layers = {"dim": 64, "depth": 3, "heads": 4}
    for name, settings in [
        ("sparse topk", {"attn_sparse_topk": 4}),
        ("forgetting", {"attn_data_dependent_alibi": True}),
        ("normalized", {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True}),
        ("post gate", {"attn_gate_value_heads": True}),
        ("dynamic tanh", {"use_dynamic_tanh": True}),
        ("xpos", {"rotary_pos_emb": True, "rotary_xpos": True}),
        ("sigmoid gates", {"ff_glu": True, "ff_glu_mult_bias": True}),
    ]:

        def make(s=settings) -> nn.Module:
            return package.TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=package.Decoder(**layers | s))

        yield Case(f"x-transformers/{name}", "x-transformers", make, tokens, added=3)


def cases() -> Iterator[Case]:
    families = (
        partial(timm_cases, TIMM, 3),
        vit_pytorch_cases,
        x_transformers_cases,
        sequence_cases,
        diffusion_cases,
        graph_cases,
    )
    return itertools.chain(*(family() for family in (*families, imaging_cases, other_cases, zoo_cases)))

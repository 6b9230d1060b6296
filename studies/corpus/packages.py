"""Models from packages on PyPI, small, at the versions in `requirements.txt` beside this file."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from studies.corpus.case import Case, ids, noise

TIMM = {
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 4},
    "deit3_small_patch16_224": {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4, "num_heads": 4},
    "eva02_tiny_patch14_224": {"img_size": 28, "patch_size": 7, "embed_dim": 48, "depth": 3, "num_heads": 4},
    "beit_base_patch16_224": {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4},
    "cait_xxs24_224": {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4},
    "convnext_atto": {"depths": (1, 1, 2, 1), "dims": (16, 32, 48, 64)},
    "convnextv2_atto": {"depths": (1, 1, 2, 1), "dims": (16, 32, 48, 64)},
    "resnet18": {"channels": (16, 32, 48, 64)},
    "resnet26": {"channels": (16, 32, 48, 64)},
    "resnet10t": {},
    "mobilenetv3_small_050": {},
    "mobilenetv2_035": {},
    "efficientnet_lite0": {},
    "regnetx_002": {},
    "regnety_002": {},
    "ghostnet_050": {},
    "mnasnet_small": {},
    "lcnet_035": {},
    "densenet121": {"growth_rate": 8, "block_config": (2, 2, 2, 2)},
    "nf_regnet_b0": {},
    "swin_tiny_patch4_window7_224": {
        "img_size": 32,
        "window_size": 4,
        "embed_dim": 24,
        "depths": (1, 1),
        "num_heads": (2, 4),
    },
    "poolformer_s12": {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 48, 64)},
    "xcit_nano_12_p16_224": {"img_size": 32, "patch_size": 16, "depth": 2},
    "pit_ti_224": {"img_size": 64},
    "levit_128s": {"img_size": 64},
    "mobilevit_xxs": {},
    "repvgg_a0": {},
    "edgenext_xx_small": {},
}


def timm_cases(models: dict[str, dict[str, Any]] = TIMM, added: int = 1) -> Iterator[Case]:
    """Models of a set, by name, with the settings that make them small."""
    timm = importlib.import_module("timm")
    for name, settings in models.items():
        size = settings.get("img_size", 32)
        make = _timm(timm, name, settings)
        yield Case(f"timm/{name}", "timm", make, lambda size=size: noise(4, 3, size, size), added=added)


def _timm(timm: Any, name: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=10, **settings)


def vit_pytorch_cases() -> Iterator[Case]:
    common = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 64, "depth": 3, "heads": 4, "mlp_dim": 96}
    image = lambda: noise(2, 3, 32, 32)  # noqa: E731
    for module, name, changes in [
        ("vit", "ViT", {}),
        ("simple_vit", "SimpleViT", {}),
        ("deepvit", "DeepViT", {}),
        ("cait", "CaiT", {"cls_depth": 1}),
        ("parallel_vit", "ViT", {"num_parallel_branches": 2}),
        ("vit_for_small_dataset", "ViT", {}),
        ("simple_vit_with_qk_norm", "SimpleViT", {}),
        ("simple_vit_with_register_tokens", "SimpleViT", {}),
        ("simple_vit_with_value_residual", "SimpleViT", {}),
        ("simple_vit_with_hyper_connections", "SimpleViT", {"num_residual_streams": 2}),
        ("simple_vit_with_fft", "SimpleViT", {"freq_patch_size": 8}),
        ("normalized_vit", "nViT", {}),
        ("rvt", "RvT", {}),
        ("simple_vit_orthog_residual_update", "SimpleViT", {}),
        ("vit_with_patch_merger", "ViT", {"patch_merge_layer": 1, "patch_merge_num_tokens": 4}),
        ("learnable_memory_vit", "ViT", {}),
    ]:
        settings = common | changes
        make = built(f"vit_pytorch.{module}", name, settings)
        yield Case(f"vit-pytorch/{module}", "vit-pytorch", make, image)
    one = {"seq_len": 32, "patch_size": 4, "num_classes": 10, "dim": 64, "depth": 2, "heads": 4, "mlp_dim": 96}
    yield Case("vit-pytorch/vit_1d", "vit-pytorch", built("vit_pytorch.vit_1d", "ViT", one), lambda: noise(4, 3, 32))


def built(module: str, name: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        return getattr(importlib.import_module(module), name)(**settings)

    return make


def x_transformers_cases() -> Iterator[Case]:
    package: Any = importlib.import_module("x_transformers")
    Decoder, Encoder, TransformerWrapper = package.Decoder, package.Encoder, package.TransformerWrapper

    def wrapper(kind: Any, **settings: Any) -> Callable[[], nn.Module]:
        layers = {"dim": 64, "depth": 3, "heads": 4} | settings
        return lambda: TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=kind(**layers))

    tokens = lambda: ids(50, 2, 24)  # noqa: E731
    for name, kind, settings in [
        ("decoder", Decoder, {}),
        ("encoder", Encoder, {}),
        ("rotary", Decoder, {"rotary_pos_emb": True}),
        ("alibi", Decoder, {"alibi_pos_bias": True}),
        ("t5 bias", Encoder, {"rel_pos_bias": True}),
        ("rmsnorm swiglu", Decoder, {"use_rmsnorm": True, "ff_swish": True, "ff_glu": True}),
        ("scalenorm", Encoder, {"use_scalenorm": True}),
        ("post-norm", Encoder, {"pre_norm": False}),
        ("sandwich", Decoder, {"sandwich_coef": 1}),
        ("macaron", Encoder, {"macaron": True}),
        ("residual attention", Encoder, {"residual_attn": True}),
        ("talking heads", Decoder, {"attn_pre_talking_heads": True}),
        ("qk norm", Decoder, {"attn_qk_norm": True}),
        ("one kv head", Decoder, {"attn_one_kv_head": True}),
        ("gate values", Decoder, {"attn_gate_values": True}),
        ("shift tokens", Decoder, {"shift_tokens": 1}),
        ("gated residual", Encoder, {"gate_residual": True}),
        ("relu squared", Decoder, {"ff_relu_squared": True}),
    ]:
        yield Case(f"x-transformers/{name}", "x-transformers", wrapper(kind, **settings), tokens)


def lucid_cases() -> Iterator[Case]:
    sequence = lambda: noise(2, 16, 64)  # noqa: E731
    tokens = lambda: ids(50, 2, 32)  # noqa: E731
    image = lambda: noise(2, 3, 32, 32)  # noqa: E731
    for name, module, kind, settings, batch in [
        (
            "linear-attention-transformer",
            "linear_attention_transformer",
            "LinearAttentionTransformerLM",
            {"num_tokens": 50, "dim": 64, "heads": 4, "depth": 2, "max_seq_len": 32},
            tokens,
        ),
        (
            "performer",
            "performer_pytorch",
            "PerformerLM",
            {"num_tokens": 50, "dim": 64, "heads": 4, "depth": 2, "max_seq_len": 32},
            tokens,
        ),
        (
            "nystromformer",
            "nystrom_attention",
            "Nystromformer",
            {"dim": 64, "dim_head": 16, "heads": 4, "depth": 2, "num_landmarks": 8},
            sequence,
        ),
        (
            "local-attention",
            "local_attention",
            "LocalTransformer",
            {"num_tokens": 50, "dim": 64, "depth": 2, "local_attn_window_size": 8, "max_seq_len": 32},
            tokens,
        ),
        (
            "mlp-mixer",
            "mlp_mixer_pytorch",
            "MLPMixer",
            {"image_size": 32, "channels": 3, "patch_size": 8, "dim": 48, "depth": 3, "num_classes": 10},
            image,
        ),
        ("gMLP", "g_mlp_pytorch", "gMLP", {"num_tokens": 50, "dim": 48, "depth": 2, "seq_len": 32}, tokens),
        (
            "perceiver",
            "perceiver_pytorch",
            "Perceiver",
            {
                "input_channels": 3,
                "num_freq_bands": 4,
                "max_freq": 8.0,
                "depth": 2,
                "num_latents": 8,
                "latent_dim": 48,
                "num_classes": 10,
                "latent_heads": 4,
                "cross_dim_head": 16,
                "latent_dim_head": 12,
            },
            lambda: noise(2, 8, 8, 3),
        ),
        ("conformer", "conformer", "ConformerBlock", {"dim": 64, "dim_head": 16, "heads": 4}, sequence),
        (
            "axial-attention",
            "axial_attention",
            "AxialAttention",
            {"dim": 32, "dim_index": 1, "heads": 4, "num_dimensions": 2},
            lambda: noise(2, 32, 8, 8),
        ),
        (
            "lambda-layer",
            "lambda_networks",
            "LambdaLayer",
            {"dim": 32, "dim_out": 32, "r": 5, "dim_k": 16, "heads": 4, "dim_u": 1},
            lambda: noise(2, 32, 8, 8),
        ),
        ("minGRU", "minGRU_pytorch", "minGRU", {"dim": 64}, sequence),
        ("soft-moe", "soft_moe_pytorch", "SoftMoE", {"dim": 64, "seq_len": 16, "num_experts": 4}, sequence),
        ("gateloop", "gateloop_transformer", "Transformer", {"num_tokens": 50, "dim": 48, "depth": 2}, tokens),
        ("linformer", "linformer", "Linformer", {"dim": 64, "seq_len": 16, "depth": 2, "heads": 4, "k": 8}, sequence),
    ]:
        yield Case(f"lucidrains/{name}", "attention and mixers", built(module, kind, settings), batch)


def diffusers_cases() -> Iterator[Case]:
    two = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    unet = {
        "sample_size": 16,
        "in_channels": 3,
        "out_channels": 3,
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "attention_head_dim": 8,
    } | two
    step = lambda *shape: lambda: {"sample": noise(*shape), "timestep": torch.tensor([3, 7])}  # noqa: E731
    yield Case("diffusers/UNet2D", "diffusion", built("diffusers", "UNet2DModel", unet), step(2, 3, 16, 16))
    vae = {
        "in_channels": 3,
        "out_channels": 3,
        "block_out_channels": (16, 32),
        "norm_num_groups": 8,
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "latent_channels": 4,
    }
    yield Case(
        "diffusers/AutoencoderKL", "diffusion", built("diffusers", "AutoencoderKL", vae), lambda: noise(1, 3, 16, 16)
    )
    vq = vae | {"num_vq_embeddings": 32, "latent_channels": 4}
    yield Case("diffusers/VQModel", "diffusion", built("diffusers", "VQModel", vq), lambda: noise(1, 3, 16, 16))
    dit = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "in_channels": 4,
        "num_layers": 2,
        "sample_size": 8,
        "norm_num_groups": 4,
    }
    yield Case(
        "diffusers/DiT",
        "diffusion",
        built("diffusers", "DiTTransformer2DModel", dit),
        lambda: {
            "hidden_states": noise(2, 4, 8, 8),
            "timestep": torch.tensor([3, 7]),
            "class_labels": torch.tensor([1, 2]),
        },
    )
    cond = unet | {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "cross_attention_dim": 24,
    }
    yield Case(
        "diffusers/UNet2DCondition",
        "diffusion",
        built("diffusers", "UNet2DConditionModel", cond),
        lambda: {
            "sample": noise(2, 3, 16, 16),
            "timestep": torch.tensor([3, 7]),
            "encoder_hidden_states": noise(2, 5, 24),
        },
    )


class Graph(nn.Module):
    """Layers of torch_geometric over a fixed graph, ReLU between."""

    def __init__(self, kind: str, **settings: Any):
        super().__init__()
        layers = importlib.import_module("torch_geometric.nn")
        widths = (16, 48, 48, 8)
        make = getattr(layers, kind)
        self.layers = nn.ModuleList(make(*pair, **settings) for pair in itertools.pairwise(widths))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, edge_index))
        return self.layers[-1](x, edge_index)


def graph_cases() -> Iterator[Case]:
    batch = lambda: {"x": noise(20, 16), "edge_index": ids(20, 2, 160)}  # noqa: E731
    for kind, settings in [
        ("GCNConv", {}),
        ("SAGEConv", {}),
        ("GraphConv", {}),
        ("GATConv", {}),
        ("GATv2Conv", {}),
        ("TransformerConv", {}),
        ("TAGConv", {}),
        ("SGConv", {"K": 2}),
        ("ChebConv", {"K": 2}),
        ("LEConv", {}),
        ("ARMAConv", {}),
    ]:
        yield Case(f"torch_geometric/{kind}", "graph", lambda kind=kind, s=settings: Graph(kind, **s), batch)


def monai_cases() -> Iterator[Case]:
    image = lambda: noise(2, 1, 32, 32)  # noqa: E731
    flat = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
    for name, settings in [
        ("UNet", flat | {"channels": (8, 16, 32), "strides": (2, 2), "num_res_units": 1}),
        ("AttentionUnet", flat | {"channels": (8, 16, 32), "strides": (2, 2)}),
        ("BasicUNet", flat | {"features": (8, 8, 16, 16, 32, 8)}),
        ("SegResNet", flat | {"init_filters": 8}),
        (
            "DynUNet",
            flat
            | {"kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2], "filters": [8, 16, 32]},
        ),
        ("HighResNet", {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}),
    ]:
        yield Case(f"monai/{name}", "convolutional", built("monai.networks.nets", name, settings), image)


def vision_cases() -> Iterator[Case]:
    for name in ("resnet18", "squeezenet1_1", "shufflenet_v2_x0_5", "googlenet", "mnasnet0_5"):
        extra = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
        size = 64 if name in ("squeezenet1_1", "googlenet") else 32
        make = built("torchvision.models", name, {"num_classes": 10, **extra})
        yield Case(f"torchvision/{name}", "convolutional", make, lambda size=size: noise(4, 3, size, size))
    for name in ("Unet", "FPN", "Linknet"):
        make = built(
            "segmentation_models_pytorch",
            name,
            {"encoder_name": "timm-mobilenetv3_small_minimal_100", "encoder_weights": None},
        )
        yield Case(f"segmentation_models/{name}", "convolutional", make, lambda: noise(2, 3, 64, 64))


def other_cases() -> Iterator[Case]:
    for name, settings in [
        ("MLP", {"d_in": 12, "d_out": 3, "n_blocks": 3, "d_block": 64, "dropout": 0.0}),
        (
            "ResNet",
            {
                "d_in": 12,
                "d_out": 3,
                "n_blocks": 3,
                "d_block": 64,
                "d_hidden": None,
                "d_hidden_multiplier": 2.0,
                "dropout1": 0.0,
                "dropout2": 0.0,
            },
        ),
    ]:
        yield Case(f"rtdl/{name}", "tabular", built("rtdl_revisiting_models", name, settings), lambda: noise(16, 12))
    for name in ("CfC", "LTC"):
        make = built("ncps.torch", name, {"input_size": 12, "units": 24})
        yield Case(f"ncps/{name}", "recurrent", make, lambda: noise(2, 6, 12))
    egnn = {"dim": 32, "m_dim": 16}
    yield Case(
        "egnn-pytorch/EGNN",
        "graph",
        built("egnn_pytorch", "EGNN", egnn),
        lambda: (noise(2, 8, 32), noise(2, 8, 3, seed=1)),
    )
    clip = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 16},
        "text_cfg": {"context_length": 16, "vocab_size": 60, "width": 48, "heads": 4, "layers": 2},
    }
    yield Case(
        "open_clip/CLIP",
        "contrastive",
        built("open_clip", "CLIP", clip),
        lambda: (noise(2, 3, 32, 32), ids(60, 2, 16)),
    )


def cases() -> Iterator[Case]:
    """All of them; what cannot be imported is missing from the corpus, not from its count."""
    _without_torchvision_ops()
    for family in (
        timm_cases,
        vit_pytorch_cases,
        x_transformers_cases,
        lucid_cases,
        diffusers_cases,
        graph_cases,
        monai_cases,
        vision_cases,
        other_cases,
    ):
        yield from family()


_KEPT: list[Any] = []


def _without_torchvision_ops() -> None:
    """torchvision's compiled ops, which no model here uses, are declared where they do not load."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        if not _KEPT:
            library = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _KEPT.append(library)

"""A fourth set of models from packages on PyPI, of families that the first three lack; written before any of them was
predicted, and all of it held out."""

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
from studies.corpus.third_packages import Layers

TIMM = {
    "gernet_s": {},
    "mixnet_s": {},
    "mixer_s32_224": {"img_size": 64},
    "gmlp_ti16_224": {"img_size": 64},
    "pvt_v2_b0": {},
    "convit_tiny": {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "local_up_to_layer": 2},
    "efficientvit_b0": {},
    "mambaout_femto": {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48)},
    "davit_tiny": {"depths": (1, 1, 1, 1), "embed_dims": (24, 32, 48, 64), "num_heads": (2, 2, 4, 4)},
    "repvit_m0_9": {},
    "mobileone_s0": {},
    "hgnetv2_b0": {},
    "vit_relpos_small_patch16_224": {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 4},
    "gcresnext26ts": {},
    "fasternet_t0": {},
    "swinv2_tiny_window8_256": {"img_size": 32, "window_size": 4, "embed_dim": 24, "depths": (1, 1), "num_heads": (2, 4)},
}  # fmt: skip


def imaging_cases() -> Iterator[Case]:
    image = lambda: noise(2, 1, 32, 32)  # noqa: E731
    flat = {"spatial_dims": 2, "in_channels": 1}
    for name, settings, batch in [
        ("SEResNext50", flat | {"num_classes": 3, "layers": (1, 1, 1, 1)}, lambda: noise(2, 1, 64, 64)),
        ("ResNet", {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [16, 24, 32, 48], "spatial_dims": 3, "n_input_channels": 1, "num_classes": 3}, lambda: noise(2, 1, 16, 16, 16)),
        ("SegResNetDS", flat | {"out_channels": 2, "init_filters": 8, "blocks_down": (1, 1, 1)}, image),
        ("VarFullyConnectedNet", {"in_channels": 24, "out_channels": 6, "latent_size": 8, "encode_channels": (48, 32), "decode_channels": (32, 48)}, lambda: noise(16, 24)),
        ("Classifier", {"in_shape": (1, 32, 32), "classes": 3, "channels": (8, 16), "strides": (2, 2)}, image),
        ("VQVAE", flat | {"out_channels": 1, "channels": (16, 24), "num_res_channels": (16, 24), "num_res_layers": 1, "downsample_parameters": ((2, 4, 1, 1), (2, 4, 1, 1)), "upsample_parameters": ((2, 4, 1, 1, 0), (2, 4, 1, 1, 0)), "num_embeddings": 16, "embedding_dim": 8}, image),
        ("RegUNet", flat | {"num_channel_initial": 8, "depth": 2, "out_channels": 2}, image),
        ("VoxelMorphUNet", flat | {"in_channels": 2, "unet_out_channels": 8, "channels": (8, 16, 16, 8, 8, 8), "final_conv_channels": (8,)}, lambda: noise(2, 2, 32, 32)),
    ]:  # fmt: skip
        yield Case(f"monai/{name}", "convolutional", built("monai.networks.nets", name, settings), batch, added=4)
    for name, settings, batch in [
        ("mobilenet_v3_small", {}, lambda: noise(4, 3, 64, 64)),
        ("vgg11", {}, lambda: noise(2, 3, 32, 32)),
        ("wide_resnet50_2", {}, lambda: noise(4, 3, 64, 64)),
        ("resnext50_32x4d", {}, lambda: noise(4, 3, 64, 64)),
        ("mc3_18", {}, lambda: noise(2, 3, 4, 32, 32)),
        ("lraspp_mobilenet_v3_large", {"weights_backbone": None}, lambda: noise(2, 3, 64, 64)),
    ]:  # fmt: skip
        make = built("torchvision.models", name, {"num_classes": 10, **settings})
        if name == "mc3_18":
            make = built("torchvision.models.video", name, {"num_classes": 10})
        if name.startswith("lraspp"):
            make = built("torchvision.models.segmentation", name, {"num_classes": 10, **settings})
        yield Case(f"torchvision/{name}", "convolutional", make, batch, added=4)
    for name, settings in [
        ("UnetPlusPlus", {"encoder_depth": 3, "decoder_channels": (32, 16, 8)}),
        ("UPerNet", {"encoder_depth": 4, "decoder_channels": 16}),
        ("Segformer", {"encoder_depth": 4, "decoder_segmentation_channels": 16}),
    ]:
        common = {"encoder_name": "resnet18", "encoder_weights": None, "classes": 3}
        make = built("segmentation_models_pytorch", name, common | settings)
        yield Case(f"segmentation_models/{name}", "convolutional", make, lambda: noise(2, 3, 64, 64), added=4)


def sequence_cases() -> Iterator[Case]:
    sequence = lambda: noise(2, 16, 48)  # noqa: E731
    tokens = lambda: ids(50, 2, 32)  # noqa: E731
    for name, module, kind, settings, batch in [
        ("routed tokens", "routing_transformer", "RoutingTransformerLM", {"num_tokens": 50, "dim": 48, "depth": 2, "max_seq_len": 32, "heads": 4, "dim_head": 12, "window_size": 8, "n_local_attn_heads": 4, "causal": True}, tokens),
        ("invariant points", "invariant_point_attention", "IPABlock", {"dim": 48, "heads": 4, "require_pairwise_repr": False}, lambda: {"x": noise(1, 12, 48), "rotations": torch.eye(3).expand(1, 12, 3, 3), "translations": noise(1, 12, 3, seed=1)}),
        ("temporal convolutions of a series", "pytorch_tcn", "TCN", {"num_inputs": 6, "num_channels": [24, 24, 24], "kernel_size": 3, "dropout": 0.0, "use_norm": "layer_norm", "activation": "gelu"}, lambda: noise(4, 6, 40)),
        ("normed perceptron", "x_mlps_pytorch", "ResidualNormedMLP", {"dim": 48, "depth": 3, "residual_every": 1, "dim_in": 12, "dim_out": 5}, lambda: noise(16, 12)),
        ("residual codes", "vector_quantize_pytorch", "ResidualFSQ", {"dim": 24, "levels": [8, 5, 5], "num_quantizers": 2}, lambda: noise(2, 12, 24)),
        ("tables by transformer", "rtdl_revisiting_models", "FTTransformer", {"n_cont_features": 6, "cat_cardinalities": [4, 5], "d_out": 3, "n_blocks": 2, "d_block": 32, "attention_n_heads": 4, "attention_dropout": 0.0, "ffn_d_hidden_multiplier": 2, "ffn_dropout": 0.0, "residual_dropout": 0.0}, lambda: {"x_cont": noise(16, 6), "x_cat": ids(4, 16, 2)}),
        ("attention of text on images", "open_clip.transformer", "AttentionalPooler", {"d_model": 48, "context_dim": 48, "n_head": 4, "n_queries": 6}, sequence),
        ("blocks of a vision tower", "open_clip.transformer", "Transformer", {"width": 48, "layers": 2, "heads": 4, "ls_init_value": 0.1}, sequence),
    ]:  # fmt: skip
        yield Case(f"various/{name}", "sequences and sets", built(module, kind, settings), batch, added=4)


def vit_pytorch_cases() -> Iterator[Case]:
    for module, name, settings, batch in [
        ("sep_vit", "SepViT", {"num_classes": 10, "dim": 16, "dim_head": 8, "heads": (1, 2), "depth": (1, 1)}, lambda: noise(2, 3, 56, 56)),
        ("simple_vit_3d", "SimpleViT", {"image_size": 16, "image_patch_size": 8, "frames": 4, "frame_patch_size": 2, "num_classes": 10, "dim": 48, "depth": 2, "heads": 4, "mlp_dim": 96}, lambda: noise(2, 3, 4, 16, 16)),
    ]:  # fmt: skip
        yield Case(
            f"vit-pytorch/{module}", "vit-pytorch", built(f"vit_pytorch.{module}", name, settings), batch, added=4
        )


def x_transformers_cases() -> Iterator[Case]:
    package: Any = importlib.import_module("x_transformers")
    tokens = lambda: ids(50, 2, 24)  # noqa: E731
    layers = {"dim": 64, "depth": 3, "heads": 4}
    for name, kind, settings in [
        ("laser", "Decoder", {"attn_laser": True}),
        ("selective", "Decoder", {"attn_selective": True}),
        ("polynorm", "Encoder", {"ff_swish": True, "sandwich_norm": True}),
    ]:

        def make(s=settings, kind=kind) -> nn.Module:
            layer = getattr(package, kind)(**layers | s)
            return package.TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layer)

        yield Case(f"x-transformers/{name}", "x-transformers", make, tokens, added=4)


def graph_cases() -> Iterator[Case]:
    batch = lambda: {"x": noise(20, 16), "edge_index": ids(20, 2, 160)}  # noqa: E731
    edges = lambda first, index: (index,)  # noqa: E731
    along = noise(160, 8, seed=2)
    places = noise(20, 3, seed=3)
    for name, layer, extra in [
        ("CGConv", lambda g: g.CGConv(32, 8), lambda first, index: (index, along)),
        ("NNConv", lambda g: g.NNConv(32, 32, nn.Linear(8, 1024)), lambda first, index: (index, along)),
        ("GMMConv", lambda g: g.GMMConv(32, 32, 8, 3), lambda first, index: (index, along)),
        ("PointNetConv", lambda g: g.PointNetConv(nn.Linear(35, 32), nn.Linear(32, 32)), lambda first, index: (places, index)),
        ("PointTransformerConv", lambda g: g.PointTransformerConv(32, 32), lambda first, index: (places, index)),
        ("APPNP", lambda g: g.APPNP(3, 0.2), edges),
        ("GINEConv", lambda g: g.GINEConv(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), edge_dim=8), lambda first, index: (index, along)),
        ("PDNConv", lambda g: g.PDNConv(32, 32, 8, 16), lambda first, index: (index, along)),
    ]:  # fmt: skip
        make: Callable[[], nn.Module] = lambda layer=layer, extra=extra: Layers(layer, extra)  # noqa: E731
        yield Case(f"torch_geometric/{name}", "graph", make, batch, added=4)


def diffusion_cases() -> Iterator[Case]:
    steps = torch.tensor([3, 7])
    for name, settings, batch in [
        ("UNet1DModel", {"sample_size": 32, "in_channels": 4, "out_channels": 4, "extra_in_channels": 32, "down_block_types": ("DownBlock1DNoSkip", "DownBlock1D"), "up_block_types": ("UpBlock1D", "UpBlock1DNoSkip"), "mid_block_type": "UNetMidBlock1D", "block_out_channels": (16, 32)},
            lambda: (noise(2, 4, 32), steps)),
        ("AuraFlowTransformer2DModel", {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 12, "num_attention_heads": 4, "joint_attention_dim": 24, "caption_projection_dim": 48, "out_channels": 4, "pos_embed_max_size": 64},
            lambda: {"hidden_states": noise(2, 4, 8, 8), "encoder_hidden_states": noise(2, 5, 24), "timestep": steps / 10}),
        ("CogVideoXTransformer3DModel", {"num_attention_heads": 4, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "time_embed_dim": 16, "text_embed_dim": 24, "num_layers": 2, "sample_width": 8, "sample_height": 8, "sample_frames": 5, "patch_size": 2, "max_text_seq_length": 5},
            lambda: {"hidden_states": noise(1, 2, 4, 8, 8), "encoder_hidden_states": noise(1, 5, 24), "timestep": steps[:1]}),
        ("Transformer2DModel", {"num_attention_heads": 4, "attention_head_dim": 12, "in_channels": 16, "num_layers": 1, "norm_num_groups": 4, "cross_attention_dim": 24},
            lambda: {"hidden_states": noise(2, 16, 8, 8), "encoder_hidden_states": noise(2, 5, 24)}),
    ]:  # fmt: skip
        yield Case(f"diffusers/{name}", "diffusion", built("diffusers", name, settings), batch, added=4)


def zoo_cases() -> Iterator[Case]:
    provider: Any = importlib.import_module("pytorchcv.model_provider")
    for name in ("wrn16_10_cifar10", "seresnet20_cifar10", "pyramidnet110_a48_cifar10", "densenet40_k12_cifar10", "sepreresnet20_cifar10", "resdropresnet20_cifar10", "shakeshakeresnet26_2x32d_cifar10"):  # fmt: skip
        make = lambda name=name: provider.get_model(name, pretrained=False, num_classes=10)  # noqa: E731
        size = 32 if "cifar" in name else 64
        yield Case(f"pytorchcv/{name}", "convolutional", make, lambda size=size: noise(4, 3, size, size), added=4)


def cases() -> Iterator[Case]:
    families = (
        partial(timm_cases, TIMM, 4),
        imaging_cases,
        vit_pytorch_cases,
        x_transformers_cases,
        sequence_cases,
        graph_cases,
        diffusion_cases,
        zoo_cases,
    )
    return itertools.chain(*(family() for family in families))

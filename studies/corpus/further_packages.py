"""More models from packages on PyPI, added after the first corpus had been looked at."""

# ruff: noqa: E501  (a model is a line)
from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from studies.corpus.case import Case, ids, noise
from studies.corpus.packages import Graph, built, timm_cases

TIMM = {
    "visformer_tiny": {"img_size": 64},
    "coat_tiny": {"img_size": 64, "embed_dims": (16, 32, 32, 32), "serial_depths": (1, 1, 1, 1), "parallel_depth": 1},
    "seresnet18": {"channels": (16, 24, 32, 48)},
    "skresnet18": {"channels": (16, 32, 32, 48)},
    "hardcorenas_a": {},
    "fbnetc_100": {},
    "dla34": {"channels": (8, 16, 16, 24, 32, 48)},
    "twins_svt_small": {"img_size": 64, "embed_dims": (16, 32, 32, 48), "depths": (1, 1, 1, 1), "wss": (4, 4, 4, 4)},
    "inception_next_atto": {"depths": (1, 1, 2, 1), "dims": (16, 32, 48, 64)},
    "starnet_s050": {},
}  # fmt: skip


def vit_pytorch_cases() -> Iterator[Case]:
    image = lambda: noise(2, 3, 32, 32)  # noqa: E731
    stages = {f"s{n}_{key}": value for n in (1, 2, 3) for key, value in {"emb_dim": 16 * n, "depth": 1}.items()}
    common = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 64, "depth": 3, "heads": 4, "mlp_dim": 96}
    for module, name, settings in [
        ("t2t", "T2TViT", {"image_size": 32, "num_classes": 10, "dim": 48, "depth": 2, "heads": 4, "mlp_dim": 96, "t2t_layers": ((7, 4), (3, 2))}),
        ("cct", "CCT", {"img_size": 32, "embedding_dim": 48, "n_conv_layers": 1, "kernel_size": 7, "stride": 2, "padding": 3, "pooling_kernel_size": 3, "pooling_stride": 2, "pooling_padding": 1, "num_layers": 2, "num_heads": 4, "mlp_ratio": 2.0, "num_classes": 10, "positional_embedding": "learnable"}),
        ("levit", "LeViT", {"image_size": 64, "num_classes": 10, "stages": 2, "dim": (32, 48), "depth": 1, "heads": (2, 3), "mlp_mult": 2, "dropout": 0.0}),
        ("cvt", "CvT", stages | {"num_classes": 10}),
        ("scalable_vit", "ScalableViT", {"num_classes": 10, "dim": 32, "heads": (2, 2, 2, 2), "depth": (1, 1, 1, 1), "ssa_dim_key": 16, "reduction_factor": (4, 2, 2, 1), "window_size": (2, 2, 1, 1)}),
        ("xcit", "XCiT", common | {"cls_depth": 1}),
        ("pit", "PiT", common | {"depth": (1, 1)}),
        ("vit_with_patch_dropout", "ViT", common | {"patch_dropout": 0.25}),
        ("vit_1d", "ViT", {"seq_len": 24, "patch_size": 4, "num_classes": 10, "dim": 48, "depth": 2, "heads": 4, "mlp_dim": 64, "channels": 5}),
    ]:  # fmt: skip
        batch = {"levit": lambda: noise(2, 3, 64, 64), "vit_1d": lambda: noise(4, 5, 24)}.get(module, image)
        label = f"{module} of five channels" if module == "vit_1d" else module
        yield Case(
            f"vit-pytorch/{label}", "vit-pytorch", built(f"vit_pytorch.{module}", name, settings), batch, added=2
        )


def x_transformers_cases() -> Iterator[Case]:
    package: Any = importlib.import_module("x_transformers")
    Decoder, Encoder, TransformerWrapper = package.Decoder, package.Encoder, package.TransformerWrapper

    tokens = lambda: ids(50, 2, 24)  # noqa: E731
    layers = {"dim": 64, "depth": 3, "heads": 4}
    for name, settings in [
        ("deepnorm residual scaling", {"scale_residual": True}),
        ("squared relu and no bias", {"ff_relu_squared": True, "ff_no_bias": True}),
        ("memory keys", {"attn_num_mem_kv": 4}),
        ("value residual", {"add_value_residual": True}),
        ("softclamped logits", {"attn_softclamp_logits": True}),
        ("dynamic position bias", {"dynamic_pos_bias": True}),
        ("adaptive layerscale", {"use_layerscale": True}),
        ("grouped queries", {"attn_kv_heads": 2}),
        ("hyper connections", {"num_residual_streams": 2}),
        ("simple rmsnorm", {"use_simple_rmsnorm": True}),
    ]:

        def make(s=settings) -> nn.Module:
            return TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=Decoder(**layers | s))

        yield Case(f"x-transformers/{name}", "x-transformers", make, tokens, added=2)
    yield Case(
        "x-transformers/continuous",
        "x-transformers",
        lambda: package.ContinuousTransformerWrapper(
            dim_in=12, dim_out=8, max_seq_len=32, attn_layers=Encoder(**layers)
        ),
        lambda: noise(2, 16, 12),
        added=2,
    )
    yield Case(
        "x-transformers/vision",
        "x-transformers",
        lambda: package.ViTransformerWrapper(
            image_size=32, patch_size=8, num_classes=10, attn_layers=Encoder(**layers)
        ),
        lambda: noise(2, 3, 32, 32),
        added=2,
    )
    yield Case(
        "x-transformers/tied embedding",
        "x-transformers",
        lambda: TransformerWrapper(num_tokens=50, max_seq_len=32, tie_embedding=True, attn_layers=Decoder(**layers)),
        tokens,
        added=2,
    )


def sequence_cases() -> Iterator[Case]:
    """Recurrent, state-space, routed and otherwise unusual sequence models."""
    sequence = lambda: noise(2, 16, 64)  # noqa: E731
    tokens = lambda: ids(50, 2, 32)  # noqa: E731
    short = {"num_tokens": 50, "dim": 48, "depth": 2, "heads": 4}
    for name, module, kind, settings, batch in [
        ("siren", "siren_pytorch", "SirenNet", {"dim_in": 2, "dim_hidden": 64, "dim_out": 3, "num_layers": 3}, lambda: noise(32, 2)),
        ("sinkhorn", "sinkhorn_transformer", "SinkhornTransformerLM", short | {"max_seq_len": 32, "bucket_size": 8}, tokens),
        ("reformer full attention", "reformer_pytorch", "ReformerLM", short | {"max_seq_len": 32, "bucket_size": 8, "use_full_attn": True, "dim_head": 12}, tokens),
        ("bottleneck", "bottleneck_transformer_pytorch", "BottleStack", {"dim": 32, "fmap_size": 8, "dim_out": 48, "proj_factor": 2, "num_layers": 2, "heads": 2, "dim_head": 16}, lambda: noise(2, 32, 8, 8)),
        ("halonet", "halonet_pytorch", "HaloAttention", {"dim": 32, "block_size": 4, "halo_size": 2, "dim_head": 16, "heads": 2}, lambda: noise(2, 32, 8, 8)),
        ("glom", "glom_pytorch", "Glom", {"dim": 48, "levels": 3, "image_size": 32, "patch_size": 8}, lambda: noise(1, 3, 32, 32)),
        ("resmlp", "res_mlp_pytorch", "ResMLP", {"image_size": 32, "patch_size": 8, "dim": 48, "depth": 3, "num_classes": 10}, lambda: noise(2, 3, 32, 32)),
        ("attention free", "aft_pytorch", "AFTFull", {"max_seqlen": 16, "dim": 64, "hidden_dim": 32}, sequence),
        ("induced set attention", "isab_pytorch", "ISAB", {"dim": 64, "heads": 4, "num_latents": 6}, sequence),
        ("taylor attention", "taylor_series_linear_attention", "TaylorSeriesLinearAttn", {"dim": 64, "dim_head": 8, "heads": 4}, sequence),
        ("hierarchical", "h_transformer_1d", "HTransformer1D", short | {"max_seq_len": 32, "block_size": 8, "dim_head": 12}, tokens),
        ("multistream", "multistream_transformers", "MultistreamTransformer", short | {"max_seq_len": 32, "dim_head": 12, "num_streams": 2}, tokens),
        ("hamburger", "hamburger_pytorch", "Hamburger", {"dim": 48, "n": 64, "ratio": 4, "K": 3}, lambda: noise(2, 48, 8, 8)),
        ("character blocks", "charformer_pytorch", "GBST", {"num_tokens": 50, "dim": 48, "max_block_size": 4, "downsample_factor": 4}, tokens),
        ("timesformer", "timesformer_pytorch", "TimeSformer", {"dim": 48, "num_frames": 3, "num_classes": 10, "image_size": 16, "patch_size": 8, "depth": 2, "heads": 4, "dim_head": 12}, lambda: noise(1, 3, 3, 16, 16)),
        ("space and time", "stam_pytorch", "STAM", {"dim": 48, "image_size": 16, "patch_size": 8, "num_frames": 3, "num_classes": 10, "space_depth": 1, "space_heads": 4, "space_mlp_dim": 64, "time_depth": 1, "time_heads": 4, "time_mlp_dim": 64, "space_dim_head": 12, "time_dim_head": 12}, lambda: noise(2, 3, 3, 16, 16)),
        ("inverted", "iTransformer", "iTransformer", {"num_variates": 7, "lookback_len": 24, "depth": 2, "dim": 48, "pred_length": 6, "dim_head": 12, "heads": 4, "flash_attn": False}, lambda: noise(2, 24, 7)),
        ("point transformer", "point_transformer_pytorch", "PointTransformerLayer", {"dim": 48, "pos_mlp_hidden_dim": 24, "attn_mlp_hidden_mult": 2}, lambda: (noise(1, 12, 48), noise(1, 12, 3, seed=1))),
        ("temporal convolutions", "pytorch_tcn", "TCN", {"num_inputs": 12, "num_channels": [24, 24, 24], "dropout": 0.0}, lambda: noise(4, 12, 32)),
        ("product keys", "product_key_memory", "PKM", {"dim": 64, "heads": 2, "num_keys": 16, "topk": 4, "dim_head": 32}, sequence),
        ("feature tokens", "tab_transformer_pytorch", "FTTransformer", {"categories": (5, 7, 3), "num_continuous": 6, "dim": 32, "depth": 2, "heads": 4, "num_residual_streams": 1}, lambda: (torch.stack([ids(n, 8, seed=n) for n in (5, 7, 3)], 1), noise(8, 6))),
        ("tabnet", "pytorch_tabnet.tab_network", "TabNetNoEmbeddings", {"input_dim": 12, "output_dim": 3}, lambda: noise(32, 12)),
        ("n-beats", "nbeats_pytorch.model", "NBeatsNet", {"backcast_length": 16, "hidden_layer_units": 32, "nb_blocks_per_stack": 2}, lambda: noise(8, 16)),
        ("attended residuals", "x_mlps_pytorch", "AttnResidualNormedMLP", {"dim": 48, "depth": 4, "dim_in": 12, "dim_out": 5}, lambda: noise(16, 12)),
        ("slots", "slot_attention", "SlotAttention", {"num_slots": 4, "dim": 48, "hidden_dim": 64}, lambda: noise(2, 12, 48)),
    ]:  # fmt: skip
        yield Case(f"various/{name}", "sequences and sets", built(module, kind, settings), batch, added=2)
    yield Case("various/mamba", "state space", _mamba, lambda: noise(2, 16, 32), added=2)


def _mamba() -> nn.Module:
    mamba = importlib.import_module("mambapy.mamba")
    return mamba.Mamba(mamba.MambaConfig(d_model=32, n_layers=2, d_state=8, pscan=False))


def diffusion_cases() -> Iterator[Case]:
    steps = torch.tensor([3, 7])
    vae = {"in_channels": 3, "out_channels": 3}
    for name, settings, batch in [
        ("AutoencoderTiny", vae | {"encoder_block_out_channels": (16, 16), "decoder_block_out_channels": (16, 16), "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1), "upsampling_scaling_factor": 2}, lambda: noise(2, 3, 16, 16)),
        ("PixArtTransformer2DModel", {"num_attention_heads": 4, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "num_layers": 2, "cross_attention_dim": 48, "sample_size": 8, "caption_channels": 24, "use_additional_conditions": False},
            lambda: {"hidden_states": noise(2, 4, 8, 8), "encoder_hidden_states": noise(2, 5, 24), "timestep": steps, "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}),
        ("SD3Transformer2DModel", {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_layers": 2, "attention_head_dim": 12, "num_attention_heads": 4, "joint_attention_dim": 24, "caption_projection_dim": 48, "pooled_projection_dim": 20, "out_channels": 4, "pos_embed_max_size": 8},
            lambda: {"hidden_states": noise(2, 4, 8, 8), "encoder_hidden_states": noise(2, 5, 24), "pooled_projections": noise(2, 20), "timestep": steps}),
        ("PriorTransformer", {"num_attention_heads": 4, "attention_head_dim": 12, "num_layers": 2, "embedding_dim": 20, "num_embeddings": 6, "additional_embeddings": 4},
            lambda: {"hidden_states": noise(2, 20), "timestep": steps, "proj_embedding": noise(2, 20, seed=1), "encoder_hidden_states": noise(2, 6, 20)}),
    ]:  # fmt: skip
        yield Case(f"diffusers/{name}", "diffusion", built("diffusers", name, settings), batch, added=2)


class Isomorphism(nn.Module):
    """Graph isomorphism layers, each with a perceptron of its own."""

    def __init__(self) -> None:
        super().__init__()
        layers: Any = importlib.import_module("torch_geometric.nn")
        self.layers = nn.ModuleList(
            layers.GINConv(nn.Sequential(nn.Linear(a, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, b)))
            for a, b in ((16, 32), (32, 8))
        )

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, edge_index)
        return x


def graph_cases() -> Iterator[Case]:
    batch = lambda: {"x": noise(20, 16), "edge_index": ids(20, 2, 160)}  # noqa: E731
    for kind, settings in [
        ("SuperGATConv", {}),
        ("ClusterGCNConv", {}),
        ("FiLMConv", {}),
        ("ResGatedGraphConv", {}),
        ("EGConv", {"num_heads": 4, "num_bases": 2}),
        ("GeneralConv", {}),
        ("MFConv", {"max_degree": 4}),
        ("SSGConv", {"alpha": 0.2, "K": 2}),
        ("FeaStConv", {"heads": 2}),
        ("GENConv", {}),
    ]:
        yield Case(f"torch_geometric/{kind}", "graph", lambda kind=kind, s=settings: Graph(kind, **s), batch, added=2)
    yield Case("torch_geometric/GINConv", "graph", Isomorphism, batch, added=2)


def imaging_cases() -> Iterator[Case]:
    image = lambda: noise(2, 1, 32, 32)  # noqa: E731
    flat = {"spatial_dims": 2, "in_channels": 1}
    for name, settings, batch in [
        ("UNETR", flat | {"out_channels": 2, "img_size": 32, "feature_size": 8, "hidden_size": 48, "mlp_dim": 64, "num_heads": 4}, image),
        ("ViTAutoEnc", flat | {"img_size": (32, 32), "patch_size": (16, 16), "hidden_size": 48, "mlp_dim": 64, "num_layers": 2, "num_heads": 4}, image),
        ("AutoEncoder", flat | {"out_channels": 1, "channels": (8, 16), "strides": (2, 2)}, image),
        ("Regressor", {"in_shape": (1, 32, 32), "out_shape": (3,), "channels": (8, 16), "strides": (2, 2)}, image),
        ("Discriminator", {"in_shape": (1, 32, 32), "channels": (8, 16, 16), "strides": (2, 2, 2)}, image),
        ("Generator", {"latent_shape": (24,), "start_shape": (16, 4, 4), "channels": (16, 8), "strides": (2, 2)}, lambda: noise(4, 24)),
        ("BasicUNetPlusPlus", flat | {"out_channels": 2, "features": (8, 8, 16, 16, 16, 8)}, image),
        ("MedNeXt", flat | {"out_channels": 2, "init_filters": 8, "blocks_down": (1, 1, 1, 1), "blocks_up": (1, 1, 1, 1)}, image),
        ("FullyConnectedNet", {"in_channels": 12, "out_channels": 3, "hidden_channels": (32, 32)}, lambda: noise(16, 12)),
        ("DiffusionModelUNet", flat | {"out_channels": 1, "channels": (8, 16), "attention_levels": (False, True), "num_res_blocks": 1, "norm_num_groups": 4, "num_head_channels": 8}, lambda: {"x": noise(2, 1, 16, 16), "timesteps": torch.tensor([3, 7])}),
        ("PatchDiscriminator", flat | {"channels": 8, "num_layers_d": 2, "out_channels": 1}, image),
    ]:  # fmt: skip
        yield Case(f"monai/{name}", "convolutional", built("monai.networks.nets", name, settings), batch, added=2)
    for name, settings in (("mobilenet_v2", {"width_mult": 0.35}), ("regnet_y_400mf", {})):
        size = 64 if name == "regnet_y_400mf" else 32
        make = built("torchvision.models", name, {"num_classes": 10, **settings})
        yield Case(f"torchvision/{name}", "convolutional", make, lambda size=size: noise(4, 3, size, size), added=2)
    for name in ("PSPNet", "DeepLabV3Plus", "MAnet"):
        settings = {"encoder_name": "timm-mobilenetv3_small_minimal_100", "encoder_weights": None}
        make = built("segmentation_models_pytorch", name, settings)
        yield Case(f"segmentation_models/{name}", "convolutional", make, lambda: noise(2, 3, 64, 64), added=2)


def contrastive_cases() -> Iterator[Case]:
    text = {"context_length": 16, "vocab_size": 60, "width": 48, "heads": 4, "layers": 2}
    convolved = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 64, "layers": (1, 1, 1, 1), "width": 16},
        "text_cfg": text,
    }
    yield Case(
        "open_clip/CLIP with a ResNet",
        "contrastive",
        built("open_clip", "CLIP", convolved),
        lambda: (noise(2, 3, 64, 64), ids(60, 2, 16)),
        added=2,
    )


def cases() -> Iterator[Case]:
    for family in (
        partial(timm_cases, TIMM, 2),
        vit_pytorch_cases,
        x_transformers_cases,
        sequence_cases,
        diffusion_cases,
        graph_cases,
        imaging_cases,
        contrastive_cases,
    ):
        yield from family()

"""Small models of transformers at any width and depth, for the sweeps of the prescriptions (`plan_sweeps.py`).

Heads have 16 channels and their number grows with the width, unless `heads` fixes it; the mlp is twice as wide as the
stream. What a config does not know is left out, so that one table serves them all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WORDS, TOKENS, HEAD = 48, 12, 16
SKIPPED = ("rope_theta", "rope_parameters")
EXPERTS = ("Mixtral", "Qwen2Moe", "Qwen3Moe", "Olmoe", "GptOss", "GraniteMoe", "Phimoe")
CAUSAL = (
    "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3", "Phi", "Phi3", "GPT2", "GPTNeo", "GPTNeoX",
    "GPTJ", "OPT", "Bloom", "Mpt", "Falcon", "Cohere", "Cohere2", "Granite", "Olmo", "Olmo2", "Olmo3", "Exaone4",
    "Glm", "Glm4", "StableLm", "Starcoder2", "Persimmon", "Nemotron", "CodeGen", "OpenAIGPT", "BioGpt",
    "Helium", "Arcee", "SmolLM3", "Ernie4_5", "GPTBigCode", *EXPERTS,
)  # fmt: skip
MASKED = ("Bert", "Roberta", "DistilBert", "Electra", "Esm", "MPNet", "ModernBert", "Camembert")
IMAGES = ("ViT", "DeiT", "Dinov2", "Beit", "Data2VecVision", "IJepa")
SPECIAL = {
    "OpenAIGPT": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig"),
    "GPT2": ("GPT2LMHeadModel", "GPT2Config"),
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig"),
}


def settings(width: int, layers: int, heads: int | None = None) -> dict[str, Any]:
    """Values by every name that configs use for them."""
    heads = heads or width // HEAD
    head = width // heads
    by_value: dict[Any, tuple[str, ...]] = {
        width: ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim_out", "word_embed_proj_dim"),
        2 * width: ("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "ffn_hidden_size", "moe_intermediate_size",
                    "shared_expert_intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim"),
    }  # fmt: skip
    found = {name: value for value, names in by_value.items() for name in names}
    found |= dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), layers)
    found |= dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), heads)
    found |= {"num_key_value_heads": heads, "head_dim": head, "query_pre_attn_scalar": head, "rotary_dim": head // 2}
    found |= {"max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64, "vocab_size": WORDS}
    found |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1, "use_cache": False, "sliding_window": 64}
    found |= {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 4}
    found |= {"image_size": 16, "patch_size": 4, "num_labels": 10, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    found |= {"q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": head}
    found |= {"ssm_cfg": None, "state_size": 8, "embedding_size": width, "first_k_dense_replace": 0}
    return found


def config_of(name: str, width: int, layers: int, heads: int | None = None, **others: Any) -> tuple[Any, Any]:
    """(model class, config) of a name at a size."""
    import transformers as hf

    hf.logging.set_verbosity_error()
    kind = "ForMaskedLM" if name in MASKED else "ForImageClassification" if name in IMAGES else "ForCausalLM"
    model_name, config_name = SPECIAL.get(name, (f"{name}{kind}", f"{name}Config"))
    config_class = getattr(hf, config_name)
    known = config_class().to_dict()
    wanted = {key: value for key, value in settings(width, layers, heads).items() if key in known}
    if name == "Falcon":
        wanted |= {"ffn_hidden_size": 4 * width, "new_decoder_architecture": False, "multi_query": False}
    if name == "GPTNeo":
        wanted |= {
            "attention_types": [[["global"], layers]],
            "num_layers": layers,
            "hidden_size": width,
            "num_heads": width // HEAD,
        }
        wanted |= {"intermediate_size": 2 * width, "window_size": 32}
    if name in ("Bloom", "Mpt", "XGLM"):
        wanted |= {"hidden_size": width, "n_layer": layers, "n_head": heads or width // HEAD, "num_layers": layers}
    if name in ("Beit", "Data2VecVision"):
        wanted |= {"use_relative_position_bias": False, "out_indices": [0]}
    if name == "CodeGen":
        wanted |= {"n_head": 4, "num_attention_heads": 4, "rotary_dim": 4}
    if "layer_types" in known:
        wanted["layer_types"] = ["full_attention"] * layers
    for key in (
        "attention_dropout",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "dropout",
        "hidden_dropout",
        "classifier_dropout",
        "activation_dropout",
        "resid_dropout",
    ):
        if key in known and isinstance(known[key], float):
            wanted[key] = 0.0
    return getattr(hf, model_name), config_class(**{**wanted, **others})


def build(name: str, width: int = 32, layers: int = 3, heads: int | None = None, **others: Any) -> nn.Module:
    """The model in evaluation mode, without dropout."""
    model_class, config = config_of(name, width, layers, heads, **others)
    config.use_cache = False
    if name in EXPERTS:
        config._experts_implementation = "eager"  # the fused one takes no float64
    return model_class(config).eval()


def batch_of(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if name in IMAGES:
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator).to(dtype)}
    return {"input_ids": torch.randint(2, WORDS, (2, TOKENS), generator=generator)}

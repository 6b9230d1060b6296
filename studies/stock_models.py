"""What `check` says of stock models at the configuration that transformers publishes for them, without weights.

    python -m studies.stock_models               # writes docs/data/stock_models.json; goes on where it stopped
    python -m studies.stock_models Llama Qwen3   # only these

A problem or warning here is an alarm to be judged: the page of evidence has the judgements.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from datetime import date
from pathlib import Path
from typing import Any

import torch

import sigprop as sp
from sigprop.inputs import TOKENS
from sigprop.inputs.hugging_face import fresh

STORED = Path("docs/data/stock_models.json")
LLAMA_3 = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3 8B": ("LlamaForCausalLM", LLAMA_3),
    "GPT-2": ("GPT2LMHeadModel", {}),
    "BERT": ("BertForMaskedLM", {}),
    "Qwen3": ("Qwen3ForCausalLM", {}),
    "Mistral": ("MistralForCausalLM", {}),
    "ViT": ("ViTForImageClassification", {}),
    "T5": ("T5ForConditionalGeneration", {}),
    "Gemma": ("GemmaForCausalLM", {}),
    "Qwen2": ("Qwen2ForCausalLM", {}),
    "OLMo 2": ("Olmo2ForCausalLM", {}),
    "Phi": ("PhiForCausalLM", {}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", {}),
    "RoBERTa": ("RobertaForMaskedLM", {}),
    "OPT": ("OPTForCausalLM", {}),
    "BART": ("BartForConditionalGeneration", {}),
    "Gemma 2": ("Gemma2ForCausalLM", {}),
    "DINOv2": ("Dinov2ForImageClassification", {}),
    "Mixtral": ("MixtralForCausalLM", {}),
    "Phi 3": ("Phi3ForCausalLM", {}),
    "Pythia": ("GPTNeoXForCausalLM", {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                                     "intermediate_size": 3072}),
    "BLOOM": ("BloomForCausalLM", {}),
    "Falcon": ("FalconForCausalLM", {}),
    "GPT-J": ("GPTJForCausalLM", {}),
    "CodeGen": ("CodeGenForCausalLM", {}),
    "StableLM": ("StableLmForCausalLM", {}),
    "StarCoder 2": ("Starcoder2ForCausalLM", {}),
    "OLMo": ("OlmoForCausalLM", {}),
    "Cohere": ("CohereForCausalLM", {}),
    "Granite": ("GraniteForCausalLM", {"attention_multiplier": 0.0078125, "embedding_multiplier": 12.0,
                                       "residual_multiplier": 0.22, "logits_scaling": 16.0,
                                       "tie_word_embeddings": True}),
    "Nemotron": ("NemotronForCausalLM", {"num_key_value_heads": 8}),
    "Gemma 3": ("Gemma3ForCausalLM", {}),
    "Gemma 4": ("Gemma4ForCausalLM", {}),
    "Qwen2-MoE": ("Qwen2MoeForCausalLM", {}),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", {"norm_topk_prob": True}),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", {}),
    "Mamba": ("MambaForCausalLM", {"num_hidden_layers": 4}),
    "Mamba-2": ("Mamba2ForCausalLM", {"num_hidden_layers": 4}),
    "RWKV": ("RwkvForCausalLM", {"num_hidden_layers": 4}),
    "DistilBERT": ("DistilBertForMaskedLM", {}),
    "ALBERT": ("AlbertForMaskedLM", {}),
    "ELECTRA": ("ElectraForMaskedLM", {}),
    "DeBERTa v2": ("DebertaV2ForMaskedLM", {}),
    "ModernBERT": ("ModernBertForMaskedLM", {}),
    "Pegasus": ("PegasusForConditionalGeneration", {}),
    "Marian": ("MarianMTModel", {}),
    "Whisper": ("WhisperForConditionalGeneration", {"max_source_positions": 250}),  # 5 s of sound; 30 are published
    "DeiT": ("DeiTForImageClassification", {}),
    "BEiT": ("BeitForImageClassification", {}),
    "Swin": ("SwinForImageClassification", {}),
    "ConvNeXt": ("ConvNextForImageClassification", {}),
    "ResNet": ("ResNetForImageClassification", {}),
    "CLIP": ("CLIPModel", {}),
}  # fmt: skip
SHORT = {"RWKV": 16}
"""Tokens, where the library loops over them and 128 would take minutes."""


def examined(name: str) -> dict[str, Any]:
    """All problems and warnings of one model."""
    import transformers

    kind, settings = MODELS[name]
    model_class = getattr(transformers, kind)
    config = model_class.config_class(**settings)
    config.use_cache = False

    def make() -> torch.nn.Module:
        return fresh(model_class(config))

    started = time.process_time()
    row: dict[str, Any] = {"model": name, "class": kind, "date": str(date.today())}
    try:
        report = sp.check(make, prescription=False, tokens=SHORT.get(name, TOKENS))
        row["alarms"] = [[item.severity, item.name, item.title] for item in report.findings if item.severity != "note"]
    except Exception as error:
        row["reason"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return row | {"seconds": round(time.process_time() - started, 1)}


def main(*names: str) -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = {row["model"]: row for row in (json.loads(STORED.read_text()) if STORED.exists() else [])}
    for name in names or [name for name in MODELS if name not in rows]:
        rows[name] = examined(name)
        print(json.dumps(rows[name]), flush=True)
        STORED.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows.values()) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

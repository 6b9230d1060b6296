"""Hooks on the junctions and scales folded into weights give one function, also where branches share modules."""

import copy

import pytest
import torch
from torch import nn

from sigprop.plans.recipes import plan


class Block(nn.Module):
    """One dropout for both branches, as in most hand-written blocks."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2, self.drop = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(0.1)
        self.mix, self.up, self.down = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.drop(self.mix(self.norm1(x)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class Written(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head, self.final = nn.Embedding(50, 16), nn.Linear(16, 50), nn.LayerNorm(16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(3))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


def hugging_face(name):
    hf = pytest.importorskip("transformers")
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    words = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    if name in ("ViT", "DeiT", "Dinov2"):
        config = getattr(hf, f"{name}Config")(**shape, image_size=8, patch_size=4, num_channels=3)
        return getattr(hf, f"{name}ForImageClassification")(config)
    extra = {"num_key_value_heads": 4} if name in ("Phi", "Llama") else {}
    return getattr(hf, f"{name}ForCausalLM")(getattr(hf, f"{name}Config")(**shape, **words, **extra))


def batch_of(name):
    generator = torch.Generator().manual_seed(0)
    if name in ("ViT", "DeiT", "Dinov2"):
        return {"pixel_values": torch.randn(1, 3, 8, 8, generator=generator).double()}
    return {"input_ids": torch.randint(2, 50, (1, 12), generator=generator)}


@pytest.mark.parametrize("name", ["written", "ViT", "Dinov2", "Phi", "Llama", "GPTNeoX"])
def test_hooked_and_folded_scales_are_one_function(name):
    torch.manual_seed(0)
    model = (Written() if name == "written" else hugging_face(name)).eval().double()
    for module in model.modules():
        for attribute in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 1e-30)
    batch = batch_of(name)
    options = {"batch": batch, "k": 0.5, "alpha": 0.5}
    folded, hooked = plan(model, "depth_scaling", **options), plan(model, "depth_scaling", surgery=True, **options)
    twin = copy.deepcopy(model)
    folded.apply_(model)
    values = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    for row in folded.junctions:
        for key in row.weights:
            values[key] /= row.branch / row.level
    hooked.attach_(twin)
    twin.load_state_dict(values, strict=False)
    wanted, found = (getattr(each(**batch), "logits", None) for each in (model, twin))
    wanted, found = (model(**batch), twin(**batch)) if wanted is None else (wanted, found)
    close = 1e-5 if name == "Llama" else 1e-9  # its norms compute in float32
    torch.testing.assert_close(found, wanted, rtol=close, atol=close)

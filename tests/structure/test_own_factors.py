"""Surgery where a junction has a factor of its own: hooks give the sum that the plan says, however it is spelt."""

import pytest
import torch
from torch import nn

from sigprop.plans import application
from sigprop.plans.recipes import plan

SPELLINGS = {
    "plain": (1.0, 1.0, lambda x, f, drop: x + f(x)),
    "number": (1.0, 0.3, lambda x, f, drop: x + 0.3 * f(x)),
    "quotient": (1.0, 1 / 3, lambda x, f, drop: x + f(x) / 3),
    "alpha": (1.0, 0.4, lambda x, f, drop: torch.add(x, f(x), alpha=0.4)),
    "skip": (0.8, 1.0, lambda x, f, drop: 0.8 * x + f(x)),
    "both": (0.8, 0.6, lambda x, f, drop: 0.8 * x + 0.6 * f(x)),
    "dropped": (1.0, 0.5, lambda x, f, drop: x + 0.5 * drop(f(x))),
    "entered scaled": (0.7, 1.0, lambda x, f, drop: (y := 0.7 * x) + f(y)),
}


class Branch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, spelling, width=16):
        super().__init__()
        self.spelling = spelling
        self.branches = nn.ModuleList(Branch(width) for _ in range(3))
        self.drops = nn.ModuleList(nn.Dropout(0.1) for _ in range(3))
        self.start, self.final, self.head = nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, x, scales=(1.0, 1.0)):
        x = self.start(x)
        for branch, drop in zip(self.branches, self.drops, strict=True):
            x = SPELLINGS[self.spelling][2](x, branch, drop)
        return self.head(self.final(x))

    def scaled(self, x, skip, factor):
        """What the plan says, written out."""
        own = SPELLINGS[self.spelling]
        x = self.start(x)
        for branch in self.branches:
            entered = 0.7 * x if self.spelling == "entered scaled" else x
            x = skip * own[0] * x + factor * own[1] * branch(entered)
        return self.head(self.final(x))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_hooks_scale_the_sum_that_the_model_writes(spelling):
    torch.manual_seed(0)
    model, x = Net(spelling).eval().double(), torch.randn(2, 6, 4, dtype=torch.float64)
    made = plan(model, "depth_scaling", surgery=True, batch=x, k=0.5, alpha=0.5)
    (scales,) = {(row.skip, row.branch) for row in made.junctions}
    application.attach_plan(made, model)
    found = model(x)
    for branch in model.modules():
        branch._forward_hooks.clear()
        branch._forward_pre_hooks.clear()
    torch.testing.assert_close(found, model.scaled(x, *scales), rtol=1e-9, atol=1e-12)


def test_granite_with_a_residual_multiplier():
    hf = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = hf.GraniteConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, intermediate_size=64,
        vocab_size=50, residual_multiplier=0.3, bos_token_id=0, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    model, ids = hf.GraniteForCausalLM(config).eval(), torch.arange(12)[None]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0 if parameter.ndim > 1 else 1.0)  # far above the epsilon of the norms
    made = plan(model, "depth_scaling", surgery=True, batch=ids, k=0.5, alpha=0.5)
    folded = plan(model, "depth_scaling", batch=ids, k=0.5, alpha=0.5)
    hooked = made.attach_(model)(ids).logits
    made.fold_for_inference(model)
    torch.testing.assert_close(model(ids).logits, hooked, rtol=1e-3, atol=1e-3)
    assert [row.own for row in made.junctions] == pytest.approx([1 / 0.3] * 4)
    assert folded.junctions[0].level == made.junctions[0].level

"""Folding is exact: a folded and a scaled model have the same loss at every step, for every optimizer."""

import copy
import math

import pytest
import torch
from torch import nn

from sigprop.errors import UnknownNameError, UnsupportedError
from sigprop.models import build
from sigprop.plans import Plan
from sigprop.plans.multipliers import Sizes, multipliers
from sigprop.plans.recipes import plan
from sigprop.plans.recipes.planning import _is_bare_norm

STEPS = 200
OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups),
    "adam": lambda groups: torch.optim.Adam(groups),
    "momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
    "adafactor": lambda groups: torch.optim.Adafactor(groups),
}
SETTINGS = {
    "adamw": {"lr": 3e-3, "weight_decay": 0.1, "eps": 1e-4},
    "adam": {"lr": 3e-3, "weight_decay": 0.1, "eps": 1e-4},
    "momentum": {"lr": 3e-3, "weight_decay": 0.1},
    "adafactor": {"lr": 1e-2, "weight_decay": 0.1, "eps": (1e-10, 1e-3)},
}


def reference(placement, **scales):
    return build(
        "transformer", vocabulary=17, context=8, width=16, depth=2, heads=2, norm_placement=placement, **scales
    ).double()


def hugging_face(name):
    transformers = pytest.importorskip("transformers")
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=17, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        return transformers.GPT2LMHeadModel(config).double().eval()
    config = transformers.BertConfig(
        vocab_size=17,
        max_position_embeddings=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
    )
    return transformers.BertForMaskedLM(config).double().eval()


class ShiftedNorm(nn.Module):
    """RMSNorm with a gain `1 + w`, as in Gemma."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.zeros(width)), 1e-5

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * (1.0 + self.weight)


class Shifted(nn.Module):
    """Two branches that end in such a norm."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head, self.final = nn.Embedding(17, 16), nn.Linear(16, 17), ShiftedNorm(16)
        self.before = nn.ModuleList(ShiftedNorm(16) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), ShiftedNorm(16)) for _ in range(2)
        )

    def forward(self, ids):
        x = self.embed(ids)
        for norm, branch in zip(self.before, self.mlp, strict=True):
            x = x + branch(norm(x))
        return self.head(self.final(x))


def batches(steps):
    """Counting from a random number: something to learn, so that rounding does not grow by chance."""
    starts = torch.randint(17, (steps, 2, 1), generator=torch.Generator().manual_seed(5))
    return (starts + torch.arange(8)) % 17


def loss_of(model, ids):
    output = model(ids)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def unfolded_copy(model, made):
    """The weights that the folded model stands for."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for row in made.junctions:
            for name in row.weights:
                twin.get_parameter(name).add_(row.shift).div_(row.branch / row.level).sub_(row.shift)
    return twin


def trajectories(folded, scaled, made, optimizer, steps=STEPS, undecayed=()):
    """The largest difference of the two losses on the way; the scaled model does not decay some parameters."""
    settings = SETTINGS[optimizer]
    first = OPTIMIZERS[optimizer](made.param_groups(folded, **settings, decay_vectors=True))
    kept = [p for name, p in scaled.named_parameters() if name not in undecayed]
    rest = [p for name, p in scaled.named_parameters() if name in undecayed]
    groups = [{"params": kept, **settings}, {"params": rest, **settings, "weight_decay": 0.0}]
    second = OPTIMIZERS[optimizer](groups if rest else groups[:1])
    worst = 0.0
    for ids in batches(steps):
        losses = []
        for model, stepper in ((folded, first), (scaled, second)):
            stepper.zero_grad()
            loss = loss_of(model, ids)
            loss.backward()
            stepper.step()
            losses.append(float(loss.detach()))
        worst = max(worst, abs(losses[0] - losses[1]))
    return worst


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_folded_training_equals_scaled_training_on_the_reference(placement, optimizer):
    model = reference(placement)
    made = plan(model, "depth_scaling", k=1.0, optimizer=optimizer, match_epsilon=True, batch=batches(1)[0])
    made.apply_(model, torch.Generator().manual_seed(1))
    scaled = reference(placement, skip_scale=math.sqrt(0.5), branch_scale=math.sqrt(0.5))
    scaled.load_state_dict(unfolded_copy(model, made).state_dict())
    start = model.blocks[1].mlp.down.weight.detach().clone()
    assert trajectories(model, scaled, made, optimizer) < 1e-9
    assert (model.blocks[1].mlp.down.weight - start).norm() > 0.05 * start.norm()


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "momentum"])
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_folded_training_equals_scaled_training_on_hugging_face(name, optimizer):
    model = hugging_face(name)
    options = {"k": 1.0, "optimizer": optimizer, "batch": {"input_ids": batches(1)[0]}}
    made = plan(model, "depth_scaling", match_epsilon=True, **options)
    hooked = plan(model, "depth_scaling", surgery=True, **options)
    made.apply_(model, torch.Generator().manual_seed(1))
    source = unfolded_copy(model, made)
    scaled = hugging_face(name)
    hooked.apply_(scaled, torch.Generator().manual_seed(1))
    scaled.load_state_dict(source.state_dict())
    assert trajectories(model, scaled, made, optimizer) < 1e-9


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "momentum"])
def test_gains_that_enter_as_one_plus_w_follow_the_scaled_model_without_their_decay(optimizer):
    model, scaled = Shifted().double(), Shifted().double()
    options = {"k": 0.6, "optimizer": optimizer, "batch": batches(1)[0]}
    made = plan(model, "depth_scaling", match_epsilon=True, **options)
    made.apply_(model, torch.Generator().manual_seed(1))
    plan(scaled, "depth_scaling", surgery=True, **options).apply_(scaled)
    scaled.load_state_dict(unfolded_copy(model, made).state_dict())
    gains = {name for row in made.junctions for name in row.weights}
    assert gains == {"mlp.0.3.weight", "mlp.1.3.weight"}
    assert trajectories(model, scaled, made, optimizer, undecayed=gains) < 1e-9


class WrittenOut(nn.Module):
    """A norm whose epsilon stands in its forward, as in OLMo."""

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:], eps=1e-2)


def test_an_epsilon_that_is_no_attribute_is_matched_by_the_norms_input():
    model = Shifted().double()
    model.before, model.final = nn.ModuleList(WrittenOut() for _ in range(2)), WrittenOut()
    scaled, options = copy.deepcopy(model), {"k": 0.6, "batch": batches(1)[0]}
    made = plan(model, "depth_scaling", match_epsilon=True, **options)
    made.apply_(model, torch.Generator().manual_seed(1))
    plan(scaled, "depth_scaling", surgery=True, **options).apply_(scaled)
    scaled.load_state_dict(unfolded_copy(model, made).state_dict())
    assert trajectories(model, scaled, made, "adamw", undecayed={n for r in made.junctions for n in r.weights}) < 1e-9


class Adding(nn.Module):
    def forward(self, x):
        return x + WrittenOut()(x)


def test_a_module_that_does_more_than_norm_is_not_scaled():
    assert _is_bare_norm(WrittenOut(), 16)
    assert not _is_bare_norm(Adding(), 16)
    assert not _is_bare_norm(nn.Sequential(WrittenOut()), 16)
    assert not _is_bare_norm(nn.Linear(16, 16), 16)


def test_hooks_equal_the_scales_of_the_reference():
    for placement in ("pre", "post", "none"):
        model = reference(placement)
        hooked = plan(model, "depth_scaling", k=0.6, surgery=True, batch=batches(1)[0])
        hooked.apply_(model, torch.Generator().manual_seed(1))
        scaled = reference(placement, skip_scale=math.sqrt(0.7), branch_scale=math.sqrt(0.3))
        scaled.load_state_dict(model.state_dict())
        torch.testing.assert_close(model(batches(1)[0]), scaled(batches(1)[0]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wrong", [{"lr": 1.0}, {"weight_decay": 1.0}, {"eps": 1.0}])
def test_without_its_multipliers_folding_is_not_the_same_training(wrong):
    model = reference("pre")
    made = plan(model, "depth_scaling", k=1.0, match_epsilon=True, batch=batches(1)[0])
    made.apply_(model, torch.Generator().manual_seed(1))
    scaled = reference("pre", skip_scale=math.sqrt(0.5), branch_scale=math.sqrt(0.5))
    scaled.load_state_dict(unfolded_copy(model, made).state_dict())
    made.parameters = [type(row)(**{**vars(row), **wrong}) for row in made.parameters]
    assert trajectories(model, scaled, made, "adamw", steps=20) > 1e-6


def test_epsilon_left_alone_stays_within_the_stated_bound():
    model = reference("post")
    made = plan(model, "depth_scaling", k=1.0, batch=batches(1)[0])
    made.apply_(model, torch.Generator().manual_seed(1))
    scaled = reference("post", skip_scale=math.sqrt(0.5), branch_scale=math.sqrt(0.5))
    scaled.load_state_dict(unfolded_copy(model, made).state_dict())
    seen = {}
    for name, twin in (("folded", model), ("scaled", scaled)):
        norm = twin.get_submodule("blocks.0.attention_norm")
        norm.register_forward_hook(lambda module, inputs, output, name=name: seen.update({name: (inputs[0], output)}))
        twin(batches(1)[0])
    level, variance = made.junctions[0].level, seen["folded"][0].var(-1, unbiased=False).min()
    bound = 1e-5 * abs(1 - level**-2) / (2 * variance)
    change = (seen["folded"][1] - seen["scaled"][1]).abs() / seen["scaled"][1].abs()
    assert 0 < change.max() <= bound * (1 + 1e-6)


def test_level_is_the_power_of_the_skip_in_pre_and_one_factor_in_post():
    skip = math.sqrt(0.5)
    for placement, power in (("pre", lambda k: k), ("post", lambda k: 1)):
        made = plan(reference(placement), "depth_scaling", k=1.0, batch=batches(1)[0])
        levels = [row.level for row in made.junctions]
        assert levels == pytest.approx([skip ** power(k) for k in range(1, 5)])
        assert all(row.folded for row in made.junctions)


def test_refuses_where_no_norm_undoes_the_skip_scale():
    with pytest.raises(UnsupportedError, match="surgery=True"):
        plan(reference("none"), "depth_scaling", k=1.0, batch=batches(1)[0])
    made = plan(reference("none"), "depth_scaling", k=1.0, skip="one", batch=batches(1)[0])
    assert all(row.level == 1.0 and row.folded for row in made.junctions)


def test_refuses_one_weight_that_would_need_two_scales():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(17, 8)
            self.norm, self.final = nn.LayerNorm(8), nn.LayerNorm(8)
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)
            self.head = nn.Linear(8, 3)

        def forward(self, ids):
            x = self.embed(ids)
            for _ in range(3):
                x = x + self.last(torch.relu(self.first(self.norm(x))))
            return self.head(self.final(x))

    with pytest.raises(UnsupportedError, match="different scales"):
        plan(Shared(), "depth_scaling", k=1.0, batch=batches(1)[0])


def test_refuses_adafactor_where_a_gain_enters_as_one_plus_w():
    with pytest.raises(UnsupportedError, match="Adafactor"):
        plan(Shifted(), "depth_scaling", k=1.0, optimizer="adafactor", batch=batches(1)[0])


def test_rules_of_the_optimizers():
    assert multipliers(Sizes().gauged(0.5), "sgd") == (0.25, 4.0, 1.0)
    assert multipliers(Sizes().gauged(0.5), "adam") == (0.5, 4.0, 2.0)
    assert multipliers(Sizes().gauged(0.5), "adamw") == (0.5, 2.0, 2.0)
    assert multipliers(Sizes().gauged(0.5), "adafactor") == (1.0, 1.0, 0.5)
    with pytest.raises(UnknownNameError, match="adamw"):
        multipliers(Sizes().gauged(0.5), "adamx")


def assert_folds_with_learned_scales(model, recipe):
    """Scales as training may leave them; folding keeps the function and leaves neither scales nor hooks."""
    made = plan(model, recipe, surgery=True, batch=batches(1)[0])
    made.apply_(model, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("branch_scale"):
                parameter.normal_(generator=torch.Generator().manual_seed(2))
    before = model(batches(1)[0])
    made.fold_for_inference(model)
    assert not any(name.endswith("branch_scale") for name in model.state_dict())
    assert not any(module._forward_hooks for module in model.modules())
    torch.testing.assert_close(model(batches(1)[0]), before, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("recipe", ["rezero", "layer_scale"])
def test_fold_for_inference_keeps_the_function_with_learned_scales(recipe):
    assert_folds_with_learned_scales(reference("pre"), recipe)


def test_any_recipe_can_learn_its_branch_scales():
    model = reference("pre")
    made = plan(model, "depth_scaling", k=0.6, surgery=True, learnable=True, batch=batches(1)[0])
    made.apply_(model, torch.Generator().manual_seed(1))
    fixed = reference("pre")
    plan(fixed, "depth_scaling", k=0.6, surgery=True, batch=batches(1)[0]).apply_(
        fixed, torch.Generator().manual_seed(1)
    )
    torch.testing.assert_close(model(batches(1)[0]), fixed(batches(1)[0]), rtol=1e-6, atol=1e-6)
    loss_of(model, batches(1)[0]).backward()
    scales = [p for name, p in model.named_parameters() if name.endswith("branch_scale")]
    assert len(scales) == 4
    assert all(p.grad is not None and p.grad != 0 for p in scales)
    for wrong, match in (({"recipe": "depth_scaling", "k": 0.6}, "surgery=True"), ({"recipe": "xavier"}, "junctions")):
        with pytest.raises(UnsupportedError, match=match):
            plan(reference("pre"), **wrong, learnable=True, batch=batches(1)[0])


def test_fold_for_inference_of_gains_that_enter_as_one_plus_w():
    assert_folds_with_learned_scales(Shifted().double(), "rezero")


def test_fold_for_inference_of_skip_scales_changes_norm_epsilon_only():
    model = reference("pre")
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-12
    made = plan(model, "depth_scaling", k=1.0, surgery=True, batch=batches(1)[0])
    made.apply_(model, torch.Generator().manual_seed(1))
    before = model(batches(1)[0])
    torch.testing.assert_close(made.fold_for_inference(model)(batches(1)[0]), before, rtol=1e-6, atol=1e-6)


def test_fold_for_inference_refuses_a_skip_scale_without_norms():
    model = reference("none")
    made = plan(model, "depth_scaling", k=1.0, surgery=True, batch=batches(1)[0])
    made.apply_(model)
    with pytest.raises(UnsupportedError, match="cannot be folded"):
        made.fold_for_inference(model)


def test_hooked_models_can_be_copied_saved_and_planned_again():
    model = reference("pre")
    made = plan(model, "layer_scale", surgery=True)
    assert Plan.from_json(made.to_json()) == made
    made.apply_(model, torch.Generator().manual_seed(1))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model.blocks[0].mlp.branch_scale.fill_(3.0)
    assert not torch.equal(twin(batches(1)[0]), model(batches(1)[0]))
    again = reference("pre")
    made.apply_(again)
    again.load_state_dict(twin.state_dict())
    assert torch.equal(again(batches(1)[0]), twin(batches(1)[0]))
    assert {row.name for row in made} == {name for name, _ in model.named_parameters()}

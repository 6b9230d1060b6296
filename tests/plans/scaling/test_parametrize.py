"""Plans for whole models: identity at the base, exact gauges, the model's own initialization, wrappers."""

import copy
import math

import pytest
import torch
from torch import nn

from sigprop.errors import InputError, UnknownNameError
from sigprop.models import build
from sigprop.plans.rows import ScalePlan
from sigprop.plans.scaling import plan as prescribe
from sigprop.plans.scaling.training import make_optimizers, make_step
from sigprop.results import Init


def gpt(width=32, depth=2, heads=4, **settings):
    return build("transformer", vocabulary=19, context=12, width=width, depth=depth, heads=heads, **settings)


def tokens():
    return torch.randint(0, 19, (3, 12), generator=torch.Generator().manual_seed(0))


def train(model, plan, optimizer, steps=4, **options):
    """Losses of a few steps, with the plan's groups or the plain parameters."""
    step = make_step(tokens(), None)
    optimizers = make_optimizers(optimizer, model, plan, **options)
    losses = []
    for _ in range(steps):
        _, loss = step(model)
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "momentum", "adafactor", "lion"])
@pytest.mark.parametrize("rule", ["mup", "neural_tangent", "sp"])
def test_at_the_base_training_is_bitwise_the_same(optimizer, rule):
    torch.manual_seed(0)
    model = gpt(tied_head=True)
    other = copy.deepcopy(model)
    before = torch.get_rng_state()
    plan = prescribe(model, rule, base=32, optimizer=optimizer, depth="linear")
    assert torch.equal(before, torch.get_rng_state())
    plan.apply_(model)
    assert train(model, plan, optimizer, weight_decay=0.1) == train(other, None, optimizer, weight_decay=0.1)
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right)
    assert len(plan.param_groups(model, lr=1.0)) == 1
    assert [group["weight_decay"] for group in plan.param_groups(model, lr=1.0, weight_decay=0.1)] == [0.1, 0.0]


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "momentum", "lion", "adafactor"])
@pytest.mark.parametrize("fused", [False, True])
def test_the_attention_scale_is_gauged_exactly(optimizer, fused):
    """Folded into the weights or multiplied in the forward pass: one trajectory, decay and epsilon included."""
    torch.manual_seed(1)
    model = gpt(width=64, fused_qkv=fused).double()
    base = gpt(width=16, fused_qkv=fused)
    explicit = copy.deepcopy(model)
    gauged = prescribe(model, "mup", base=base, optimizer=optimizer)
    plain = prescribe(explicit, "mup", base=base, optimizer=optimizer, attention="keep")
    assert gauged.scales == []
    assert gauged.diff(plain)
    if fused:
        for block in explicit.blocks:
            scale = torch.cat([torch.full((64,), 0.5), torch.ones(128)])
            block.attention.qkv.register_forward_hook(lambda module, inputs, out, scale=scale: out * scale)
    else:
        plain.scales = [ScalePlan(f"blocks.{layer}.attention.query", 0.5, "output") for layer in (0, 1)]
    for each, plan in ((model, gauged), (explicit, plain)):
        plan.apply_(each)
    options = {"lr": 0.02, "weight_decay": 0.1}
    left, right = train(model, gauged, optimizer, **options), train(explicit, plain, optimizer, **options)
    assert left == pytest.approx(right, rel=1e-9 if optimizer == "adafactor" else 1e-10)  # its steps are relative
    assert left[-1] != left[0]


def undecayed(groups):
    """The groups with their vectors apart and not decayed."""
    vectors = [
        {**group, "params": [p for p in group["params"] if p.dim() < 2], "weight_decay": 0.0} for group in groups
    ]
    return [{**group, "params": [p for p in group["params"] if p.dim() > 1]} for group in groups] + vectors


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("rule", ["sqrt", "linear"])
def test_the_branch_scale_is_folded_exactly(optimizer, placement, rule):
    """Against branch scales in the model's own junctions with the rule's learning rates inside the branch."""
    torch.manual_seed(2)
    model = gpt(depth=8, norm_placement=placement).double()
    base = gpt(depth=2, norm_placement=placement)
    plan = prescribe(model, "mup", base=base, optimizer=optimizer, depth=rule)
    scale = 4.0**-0.5 if rule == "sqrt" else 0.25
    update = 4.0**-0.5 if rule == "sqrt" else 1.0
    explicit = gpt(depth=8, norm_placement=placement, branch_scale=scale).double()
    explicit.load_state_dict(model.state_dict())
    plan.apply_(model)
    named = list(explicit.named_parameters())
    inside, outside = ([p for name, p in named if name.startswith("blocks") == there] for there in (True, False))
    lr, wd = 0.05, 0.1
    if optimizer == "adamw":
        inner = {"params": inside, "lr": lr * update, "weight_decay": wd / update, "eps": 1e-8 * scale}
        other = torch.optim.AdamW(undecayed([inner, {"params": outside, "lr": lr, "weight_decay": wd}]))
    else:
        rate = update / scale
        inner = {"params": inside, "lr": lr * rate, "weight_decay": wd / rate}
        other = torch.optim.SGD(undecayed([inner, {"params": outside, "lr": lr, "weight_decay": wd}]))
    left = train(model, plan, optimizer, lr=lr, weight_decay=wd)
    step, right = make_step(tokens(), None), []
    for _ in range(4):
        _, loss = step(explicit)
        loss.backward()
        other.step()
        other.zero_grad()
        right.append(loss.item())
    assert left == pytest.approx(right, rel=1e-10)


def test_the_factor_of_a_tied_readout_goes_into_the_norm_before_it():
    model = gpt(width=128, tied_head=True)
    plan = prescribe(model, "mup", base=32, batch=tokens())
    assert plan["token_embedding.weight"].lr == 1.0
    assert plan.scales == []
    assert plan["final_norm.weight"].init.value == plan["final_norm.weight"].lr == 0.25
    tangent = prescribe(gpt(width=128, tied_head=True), "neural_tangent", base=32, batch=tokens())
    assert tangent["final_norm.weight"].init.value == 0.5


def test_a_tied_readout_without_a_norm_before_it_gets_a_forward_factor():
    model = gpt(width=128, tied_head=True, norm_placement="none")
    plan = prescribe(model, "mup", base=32, batch=tokens())
    assert [(row.module, row.factor) for row in plan.scales] == [("head", 0.25)]
    reference = copy.deepcopy(model)
    hidden = torch.randn(2, 128)
    plan.apply_(model)
    torch.testing.assert_close(model.head(hidden), reference.head(hidden) * 0.25)


@pytest.mark.parametrize(
    ("draw", "hidden", "readout"),
    [
        (lambda w: nn.init.normal_(w, 0.0, 0.02), 0.5, 0.25),
        (lambda w: nn.init.normal_(w, 0.0, w.shape[1] ** -0.5), 1.0, 0.5),
        (nn.init.xavier_normal_, 1.0, None),
        (nn.init.kaiming_uniform_, 1.0, 0.5),
        (lambda w: nn.init.kaiming_uniform_(w, mode="fan_out"), 1.0, 0.25),
    ],
    ids=["fixed", "fan_in", "glorot", "kaiming", "fan_out"],
)
def test_the_models_own_draw_is_kept_and_rescaled(draw, hidden, readout):
    """Whatever scheme the model uses, the plan's factor brings the size to the base's times the rule's."""

    def net(width):
        model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        for module in model:
            if isinstance(module, nn.Linear):
                draw(module.weight)
        return model

    torch.manual_seed(0)
    plan = prescribe(net(256), "mup", base=net(64))
    assert (plan["2.weight"].init.kind, plan["2.weight"].init.value) == ("keep", pytest.approx(hidden))
    if readout is not None:
        assert (plan["4.weight"].init.kind, plan["4.weight"].init.value) == ("keep", pytest.approx(readout))
    assert plan["2.bias"].init.value == pytest.approx(2.0)


def test_a_scheme_that_is_none_of_the_usual_ones_is_measured():
    def net(width):
        layer = nn.Linear(width, width, bias=False)
        nn.init.normal_(layer.weight, 0.0, width**-0.8)
        return layer

    torch.manual_seed(0)
    plan = prescribe(net(256), "mup", base=net(64))
    # wanted ratio 4^-1/2, own ratio 4^-0.8; standard error of the ratio of two root mean squares
    error = math.sqrt(0.5 / 64**2 + 0.5 / 256**2)
    assert abs(math.log(plan["weight"].init.value) - 0.3 * math.log(4)) < 4 * error


def test_meta_models_are_drawn_from_the_base():
    torch.manual_seed(0)
    base = gpt(width=32)
    with torch.device("meta"):
        model = gpt(width=128)
    plan = prescribe(model, "mup", base=base)
    row = plan["blocks.0.mlp.up.weight"]
    size = torch.cat([block.mlp.up.weight.flatten() for block in base.blocks]).square().mean().sqrt().item()
    assert row.init.kind == "normal"
    assert row.init.std == pytest.approx(0.5 * size, rel=1e-6)
    assert plan["final_norm.weight"].init == Init("constant", value=1.0)
    with pytest.raises(InputError, match="own_init"):
        prescribe(gpt(width=128), "mup", base=model)
    with torch.device("meta"):
        plan = prescribe(gpt(width=64), "mup", base=gpt(width=16), own_init="fan_in")
    assert plan["blocks.0.mlp.up.weight"].init == Init("keep", value=1.0)
    assert plan["head.weight"].init == Init("keep", value=0.5)


def test_own_depth_dependence_is_replaced_only_by_a_depth_rule():
    def net(width, depth):
        model = gpt(width=width, depth=depth)
        for block in model.blocks:
            nn.init.normal_(block.mlp.down.weight, 0.0, 0.02 / math.sqrt(2 * depth))
        return model

    torch.manual_seed(0)
    model, base = net(64, 8), net(64, 2)
    assert prescribe(model, "mup", base=base)["blocks.3.mlp.down.weight"].init == Init("keep", value=1.0)
    scaled = prescribe(model, "mup", base=base, depth="linear")["blocks.3.mlp.down.weight"]
    assert scaled.init.value == pytest.approx(0.5)


def test_measured_alignment_changes_the_rates():
    model = gpt(width=128)
    assert prescribe(model, "mup", base=32)["blocks.0.mlp.up.weight"].lr == pytest.approx(1 / 4)
    loose = prescribe(model, "mup", base=32, alignment="none")["blocks.0.mlp.up.weight"].lr
    assert loose == pytest.approx(1 / 2)


def test_clear_errors():
    model = gpt()
    with pytest.raises(UnknownNameError, match="mup"):
        prescribe(model, "mop", base=16)
    with pytest.raises(UnknownNameError, match="adamw"):
        prescribe(model, "mup", base=16, optimizer="adamx")
    with pytest.raises(InputError, match="none or sqrt"):
        prescribe(model, "mup", base=16, depth="cube")
    with pytest.raises(InputError, match="scale or keep"):
        prescribe(model, "mup", base=16, attention="drop")
    with pytest.raises(InputError, match="pass the base model or a factory"):
        prescribe(nn.Linear(4, 4), "mup", base=2)
    with pytest.raises(UnknownNameError, match="fan_in"):
        prescribe(model, "mup", base=16, own_init="fan_inn")
    odd = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4)) for _ in range(4)])
    base = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4)) for _ in range(2)])
    with pytest.raises(InputError, match="branches="):
        prescribe(odd, "mup", base=base, depth="sqrt")
    plan = prescribe(odd, "mup", base=base, depth="sqrt", branches=["*.*"])
    assert plan["3.0.weight"].lr == pytest.approx(0.5)
    with pytest.raises(UnknownNameError):
        prescribe(odd, "mup", base=base, depth="sqrt", branches=["*.1"])


def test_groups_stay_few_on_a_deep_model():
    model = gpt(width=64, depth=12)
    assert len(prescribe(model, "mup", base=16).param_groups(model, lr=1e-3, weight_decay=0.1)) <= 6


class TorchEncoder(nn.Module):
    """torch's own encoder layers, whose attention hides its projections in one module."""

    def __init__(self, width):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.embed, self.head = nn.Embedding(19, width), nn.Linear(width, 19)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(2))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_torch_attention_is_gauged_through_its_fused_projection():
    torch.manual_seed(3)
    model, base = TorchEncoder(64).double(), TorchEncoder(16)
    explicit = copy.deepcopy(model)
    prescribe(model, "mup", base=base).apply_(model)
    prescribe(explicit, "mup", base=base, attention="keep").apply_(explicit)
    assert not torch.allclose(model(tokens()), explicit(tokens()))
    with torch.no_grad():
        for layer in explicit.layers:
            layer.self_attn.in_proj_weight[:64] *= 0.5
            layer.self_attn.in_proj_bias[:64] *= 0.5
    torch.testing.assert_close(model(tokens()), explicit(tokens()))

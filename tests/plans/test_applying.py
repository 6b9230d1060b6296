"""Applying a plan is all or nothing; hooks come back with `attach_`; files say which plan they were saved with."""

import copy

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.errors import InputError, UnknownNameError
from sigprop.models import build
from sigprop.plans import Plan, application
from sigprop.plans.rows import ParameterPlan, ScalePlan
from sigprop.results import Init


def gpt(**settings):
    return build("transformer", vocabulary=19, context=12, width=32, depth=2, heads=4, **settings)


def tokens():
    return torch.randint(0, 19, (2, 12), generator=torch.Generator().manual_seed(0))


def state(model):
    values = {name: value.detach().clone() for name, value in model.state_dict().items()}
    hooks = {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in model.named_modules()}
    return values, hooks, {name: sorted(m.__dict__) for name, m in model.named_modules()}


def same(left, right):
    return left[1:] == right[1:] and all(torch.equal(left[0][name], right[0][name]) for name in right[0])


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("after", [0, 3, 11])
@pytest.mark.parametrize("surgery", [False, True])
def test_an_interrupted_application_leaves_the_model_as_it_was(monkeypatch, error, after, surgery):
    model = gpt()
    made = sp.plan(model, "unit", batch=tokens(), width="mup", surgery=surgery)
    made.scales.append(ScalePlan("head", 0.5))
    before, numbers, count = state(model), torch.get_rng_state(), 0
    fill = application.fill

    def interrupted(parameter, values):
        nonlocal count
        fill(parameter, values)
        count += 1
        if count > after:
            raise error

    monkeypatch.setattr(application, "fill", interrupted)
    with pytest.raises(error):
        made.apply_(model)
    assert same(before, state(model))
    assert torch.equal(numbers, torch.get_rng_state())
    monkeypatch.undo()
    assert made.verify(made.apply_(model), sizes=True) == []


def test_a_wrong_scale_is_found_after_the_draws_and_undone():
    model = gpt()
    before = state(model)
    made = sp.plan(model, "unit", batch=tokens())
    made.scales.append(ScalePlan("nothing_here", 0.5))
    with pytest.raises(UnknownNameError, match="nothing_here"):
        made.apply_(model)
    assert same(before, state(model))


def test_rescaling_twice_is_refused_and_drawing_twice_draws_again():
    model = gpt()
    kept = sp.plan(model, "own", batch=tokens(), width="mup", base=gpt().__class__(model.config))
    scaled = Plan([ParameterPlan(n, tuple(p.shape), Init("keep", value=0.5)) for n, p in model.named_parameters()])
    assert kept.verify(kept.apply_(model)) == []
    before = state(model)
    with pytest.raises(InputError, match="already applied"):
        scaled.apply_(model)
    assert same(before, state(model))
    drawn = sp.plan(model, "unit", batch=tokens())
    for _ in range(2):
        assert drawn.verify(drawn.apply_(model), sizes=True) == []


def test_verify_tells_what_is_missing():
    model = gpt()
    made = sp.plan(model, "unit", batch=tokens(), surgery=True)
    made.scales.append(ScalePlan("head", 0.5))
    told = made.verify(model, sizes=True)
    assert any("blocks.0.attention" in line and "attach_" in line for line in told)
    assert any(line.startswith("head: input") for line in told)
    assert any("root mean square" in line for line in told)
    assert made.verify(nn.Linear(2, 2))[0].startswith("the plan does not fit")
    made.apply_(model)
    assert made.verify(model, sizes=True) == []


def test_hooks_come_back_after_a_reload():
    torch.manual_seed(0)
    model = gpt().double()
    made = sp.plan(model, "unit", batch=tokens(), surgery=True, learnable=True)
    made.scales.append(ScalePlan("head", 0.5))
    made.apply_(model)
    wanted = model(tokens())
    again = gpt().double()
    made.attach_(again)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(tokens()), wanted)
    assert torch.equal(made.attach_(again)(tokens()), wanted)
    assert made.verify(again) == []


def test_files_say_which_plan_they_were_saved_with(tmp_path):
    torch.manual_seed(0)
    model, other = gpt(tied_head=True), gpt(tied_head=True)
    made = sp.plan(model, "unit", batch=tokens(), width="mup", depth="sqrt")
    made.save_weights(made.apply_(model), tmp_path / "model.safetensors")
    loaded = made.load_weights(other, tmp_path / "model.safetensors")
    assert torch.equal(loaded(tokens()), model(tokens()))
    another = sp.plan(gpt(tied_head=True), "unit", batch=tokens())
    before = state(other)
    with pytest.raises(InputError, match=made.digest):
        another.load_weights(other, tmp_path / "model.safetensors")
    assert same(before, state(other))
    assert made.digest == Plan.from_json(made.to_json()).digest != another.digest


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_a_weights_only_plan_survives_save_pretrained(tmp_path, name):
    hf = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0}
    if name == "GPT2":
        config = hf.GPT2Config(n_embd=32, n_layer=2, n_head=1, **sizes)
        model, base = (
            hf.GPT2LMHeadModel(config),
            hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=16, n_layer=2, n_head=1, **sizes)),
        )
    else:
        shape = {"num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1, **sizes}
        model, base = (
            hf.LlamaForCausalLM(hf.LlamaConfig(hidden_size=width, intermediate_size=2 * width, **shape))
            for width in (32, 16)
        )
    ids = tokens()
    plans = [
        sp.plan(model, "unit", width="mup", batch={"input_ids": ids}),
        sp.plan(copy.deepcopy(model), "mup", base=base, batch={"input_ids": ids}),
    ]
    for place, made in enumerate(plans):
        twin = copy.deepcopy(model).eval()
        made.apply_(twin)
        assert made.scales == []
        wanted = twin(ids).logits
        twin.save_pretrained(tmp_path / str(place))
        assert torch.equal(type(twin).from_pretrained(tmp_path / str(place)).eval()(ids).logits, wanted)

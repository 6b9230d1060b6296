"""Many networks as one program are the same networks one by one."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import sigprop
from sigprop.compat import TorchDispatchMode
from sigprop.errors import InputError, UnknownNameError
from sigprop.models import build
from sigprop.research.lab import Settings
from sigprop.research.lab.data import TextBatches, zipf_tokens
from sigprop.research.lab.many import Kind, Rows, _of_linear_layers, _shrink, train_many


class CountingMode(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


RATES = (0.003, 0.01, 0.03)
BATCHES = TextBatches(zipf_tokens(2000, 20), passages=2, length=8)
OPTIMIZERS = {
    "adamw": lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False),
    "sgd": lambda groups: torch.optim.SGD(groups),
    "momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9),
}


def decoder(seed):
    torch.manual_seed(seed)
    return build("transformer", kind="decoder", depth=2, width=16, heads=2, vocabulary=20, context=8).double()


def next_token(logits, batch):
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def one_by_one(model, optimizer, rate, settings, betas=None):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": decayed, "lr": rate, "weight_decay": settings.weight_decay},
        {"params": rest, "lr": rate, "weight_decay": 0.0},
    ]
    made = OPTIMIZERS[optimizer](groups) if betas is None else torch.optim.AdamW(groups, betas=betas, foreach=False)
    losses = []
    for step in range(settings.steps):
        batch = BATCHES(step)
        loss = next_token(model(batch["input_ids"]), batch)
        made.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for group in made.param_groups:
            group["lr"] = rate * settings.schedule(step)
        made.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "momentum"])
def test_together_is_one_by_one(optimizer):
    decay = 0.1 if optimizer == "adamw" else 0.0
    settings = Settings(steps=6, optimizer=optimizer, weight_decay=decay, clip=1.0, warmup=0.2)
    alone = [decoder(seed) for seed in range(3)]
    together = [decoder(seed) for seed in range(3)]
    expected = [one_by_one(model, optimizer, rate, settings) for model, rate in zip(alone, RATES, strict=True)]
    runs = train_many(together, BATCHES, RATES, settings)
    for run, losses in zip(runs, expected, strict=True):
        assert run.losses == pytest.approx(losses, abs=1e-6)
    for first, second in zip(alone, together, strict=True):
        for name, value in first.named_parameters():
            assert torch.allclose(value, dict(second.named_parameters())[name], atol=1e-6), name


def test_betas_and_a_warm_up_in_steps_are_those_of_torch():
    settings = Settings(steps=6, betas=(0.8, 0.999), weight_decay=0.1, warmup=3, decay="linear", final=0.0)
    assert [settings.schedule(step) for step in range(6)] == pytest.approx([1 / 3, 2 / 3, 1, 1, 2 / 3, 1 / 3])
    expected = one_by_one(decoder(0), "adamw", 0.01, settings, settings.betas)
    assert train_many([decoder(0)], BATCHES, (0.01,), settings)[0].losses == pytest.approx(expected, abs=1e-6)
    other = train_many([decoder(0)], BATCHES, (0.01,), replace(settings, betas=(0.8, 0.9)))[0].losses
    assert other != pytest.approx(expected, abs=1e-6)


def test_held_out_losses_are_those_of_the_networks_in_evaluation_mode():
    held = TextBatches(zipf_tokens(500, 20, seed=3), passages=2, length=8)
    models = [decoder(seed) for seed in range(2)]
    runs = train_many(models, BATCHES, (0.01, 0.03), Settings(steps=2), validation=held)
    for run, model in zip(runs, models, strict=True):
        losses = [next_token(model.eval()(held(place)["input_ids"]), held(place)).item() for place in range(8)]
        assert run.evaluations == {1: pytest.approx(sum(losses) / 8)}


def test_dropout_is_drawn_for_every_network_and_left_out_of_evaluation():
    shape = {"kind": "decoder", "depth": 2, "width": 16, "heads": 2, "vocabulary": 20, "context": 8, "dropout": 0.3}

    def made():
        torch.manual_seed(0)
        return build("transformer", **shape)

    settings = Settings(steps=3)
    first, second = train_many([made(), made()], BATCHES, (0.01, 0.01), settings, validation=BATCHES)
    assert first.losses[0] != second.losses[0]
    clear = made().eval()
    assert next_token(clear(BATCHES(0)["input_ids"]), BATCHES(0)).item() not in (first.losses[0], second.losses[0])
    again = train_many([made(), made()], BATCHES, (0.01, 0.01), settings, validation=BATCHES)
    assert [run.losses for run in again] == [first.losses, second.losses]
    assert again[0].evaluations == first.evaluations


def test_a_plan_is_followed_by_every_network():
    base, wide = decoder(0), decoder(0)
    plan = sigprop.plan(wide, "mup", base=build("transformer", depth=2, width=8, heads=2, vocabulary=20, context=8))
    settings = Settings(steps=5, weight_decay=0.1, clip=0.0, warmup=0.0, decay="constant")
    run = train_many([wide], BATCHES, (0.01,), settings, plan=plan)[0]
    optimizer = torch.optim.AdamW(plan.param_groups(base, lr=0.01, weight_decay=0.1), betas=(0.9, 0.95))
    losses = []
    for step in range(settings.steps):
        loss = next_token(base(BATCHES(step)["input_ids"]), BATCHES(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert run.losses == pytest.approx(losses, abs=1e-6)


def test_gradients_of_all_rows_are_clipped_together():
    gradients = [torch.randn(3, entries).double() for entries in (1, 8, 24)]
    expected = (0.5 / torch.cat(gradients, dim=1).norm(dim=1)).clamp(max=1.0)
    assert torch.allclose(_shrink(gradients, 0.5), expected, rtol=1e-5)
    assert torch.equal(_shrink(gradients, 1e6), torch.ones(3).double())


def test_rows_hold_parameters_of_every_shape():
    stacks = {"weight": torch.randn(3, 4, 5), "scale": torch.randn(3), "kernel": torch.randn(3, 4, 2, 3, 3)}
    rows = Rows(Kind((1.0, 1.0, 1.0), torch.float32), stacks, by_columns=["weight"])
    for name, view in rows.views(rows.values).items():
        assert torch.equal(view, stacks[name])
        assert view.storage_offset() % 8 == 0
    assert rows.views(rows.values)["weight"].mT[0].is_contiguous()
    assert torch.equal(rows.gathered(rows.views(rows.values)), rows.values)


def test_a_step_has_as_many_operations_for_many_networks_as_for_few():
    """Of clipping and rounding; torch's fused AdamW takes one rate a call, so that there is a call for each network."""

    def work(count):
        models = [decoder(seed).float() for seed in range(count)]
        with CountingMode() as counted:
            train_many(models, BATCHES, (0.01,) * count, Settings(steps=1, precision="bfloat16"))
        return counted.names

    few, many = work(2), work(5)
    for name in ("aten.linalg_vector_norm", "aten.cat", "aten.bmm", "aten._to_copy"):
        assert few[name] == many[name] > 0, name
    assert many["aten._fused_adamw_"] / few["aten._fused_adamw_"] == 5 / 2


def test_bfloat16_rounds_as_autocast_does():
    settings = Settings(steps=4, precision="bfloat16")
    models, alone = [decoder(seed).float() for seed in range(2)], [decoder(seed).float() for seed in range(2)]
    runs = train_many(models, BATCHES, (0.01, 0.01), settings)
    exact = train_many([decoder(seed).float() for seed in range(2)], BATCHES, (0.01, 0.01), Settings(steps=4))
    for run, reference, model in zip(runs, exact, alone, strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            first = next_token(model(BATCHES(0)["input_ids"]), BATCHES(0)).item()
        assert run.losses[0] == pytest.approx(first, rel=1e-3)
        assert run.losses != reference.losses
        assert run.losses == pytest.approx(reference.losses, rel=2e-2)


def test_only_what_linear_layers_alone_use_is_rounded():
    tied = build("transformer", depth=1, width=16, heads=2, vocabulary=20, context=8, tied_head=True)
    plan = sigprop.plan(tied, "rezero", batch=BATCHES(0)["input_ids"], surgery=True)
    plan.apply_(tied)
    names = {name for name, _ in tied.named_parameters()}
    others = names - _of_linear_layers(tied)
    assert {"token_embedding.weight", "position_embedding.weight"} < others
    assert {name for name in names if name.endswith("branch_scale")} < others
    assert all(name.endswith(("embedding.weight", "scale")) or "norm" in name for name in others)


def test_a_network_that_breaks_does_not_touch_the_others():
    models = [decoder(0), decoder(1)]
    with torch.no_grad():
        models[0].token_embedding.weight.mul_(float("inf"))
    runs = train_many(models, BATCHES, (0.01, 0.01), Settings(steps=3))
    assert runs[0].ended == "loss not finite at step 0"
    assert runs[1].ended == "finished"


@pytest.mark.parametrize("recipe", ["rezero", "value_skipinit", "layer_scale"])
def test_learned_scales_of_surgery_are_trained(recipe):
    models = [decoder(seed) for seed in range(2)]
    plan = sigprop.plan(models[0], recipe, batch=BATCHES(0)["input_ids"], surgery=True)
    for seed, model in enumerate(models):
        plan.apply_(model, torch.Generator().manual_seed(seed))
    scales = {name: p.detach().clone() for name, p in models[1].named_parameters() if name.endswith("branch_scale")}
    runs = train_many(models, BATCHES, (0.01, 0.03), Settings(steps=3), plan=plan)
    assert scales
    assert runs[0].losses != runs[1].losses
    assert all(not torch.equal(dict(models[1].named_parameters())[name], was) for name, was in scales.items())


def test_wrong_inputs_are_named():
    with pytest.raises(InputError, match="1 networks and 2 learning rates"):
        train_many([decoder(0)], BATCHES, (0.1, 0.1))
    with pytest.raises(InputError, match="positive"):
        train_many([decoder(0)], BATCHES, (-0.1,))
    with pytest.raises(UnknownNameError, match="lion"):
        train_many([decoder(0)], BATCHES, (0.1,), Settings(optimizer="lion"))
    for mode in ("graph", "compile"):
        with pytest.raises(InputError, match=f"mode = '{mode}' is not allowed: needs 'eager', or 'graph' on a CUDA"):
            train_many([decoder(0)], BATCHES, (0.1,), Settings(mode=mode))

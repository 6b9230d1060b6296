"""Real `Trainer` runs."""

import pytest
import torch

import sigprop as sp
from sigprop.integrations.checkpoints import FILE, find_plan
from sigprop.monitoring import read_samples

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="the Trainer needs accelerate, which is not installed")

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments  # noqa: E402

from sigprop.integrations.transformers import WatchCallback  # noqa: E402

LAYERS = 2


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_layer=LAYERS, n_embd=32, n_head=2, vocab_size=64, n_positions=16))


def data(count: int = 64) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 64, (count, 16), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(folder, callbacks, model=None, optimizers=(None, None), **options) -> Trainer:
    settings = {"max_steps": 6, "save_steps": 4, "per_device_train_batch_size": 2, "use_cpu": True, **options}
    arguments = TrainingArguments(
        str(folder), report_to=[], disable_tqdm=True, logging_steps=1, seed=0, data_seed=0, **settings
    )
    return Trainer(model or gpt2(), arguments, train_dataset=data(), callbacks=callbacks, optimizers=optimizers)


def losses(run: Trainer) -> list[float]:
    return [row["loss"] for row in run.state.log_history if "loss" in row]


def test_a_trainer_run_is_watched_and_not_changed(tmp_path):
    plain = trainer(tmp_path / "plain", [])
    plain.train()
    callback = WatchCallback(every=2, sinks=["tensorboard"])
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    watched = trainer(tmp_path / "watched", [callback], gradient_accumulation_steps=1)
    watched.train()
    assert losses(watched) == losses(plain)
    folder = tmp_path / "watched" / "sigprop-watch"
    samples = read_samples(folder)
    assert [sample.step for sample in samples] == [0, 2, 4]
    assert list((folder / "tensorboard").glob("events.*"))
    last = samples[-1]
    assert last.loss > 0.0
    assert last.sites["transformer.h.1.mlp"]["grad_variance"] > 0.0
    assert sum("branch_ratio" in row for row in last.sites.values()) == 2 * LAYERS
    assert last.parameters["transformer.h.0.mlp.c_fc.weight"]["update_ratio"] > 0.0
    assert "update_ratio/transformer.h.*.mlp.c_fc.weight/median" in callback.watch.scalars.values


def test_a_plan_gives_the_trainer_its_optimizer_and_lies_beside_the_checkpoint(tmp_path):
    model = gpt2()
    plan = sp.plan(model, "gpt2")
    plan.apply_(model)
    optimizer = torch.optim.AdamW(plan.param_groups(model, lr=1e-3, weight_decay=0.1))
    run = trainer(tmp_path, [WatchCallback(every=2, plan=plan)], model, (optimizer, None))
    run.train()
    assert run.optimizer.optimizer is optimizer
    assert (tmp_path / FILE).is_file()
    assert (tmp_path / "checkpoint-4" / FILE).is_file()
    assert find_plan(tmp_path / "checkpoint-4") == plan
    assert find_plan(tmp_path / "checkpoint-6" / "model.safetensors") == plan
    assert find_plan(tmp_path.parent / "elsewhere") is None


def test_a_resumed_trainer_continues_its_history(tmp_path):
    trainer(tmp_path, [WatchCallback(every=2)]).train()
    resumed = trainer(tmp_path, [WatchCallback(every=2)], max_steps=8)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert [sample.step for sample in read_samples(tmp_path / "sigprop-watch")] == [0, 2, 4, 6]


def test_nonfinite_ends_the_training_when_asked(tmp_path):
    model = gpt2()
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = torch.nan
    run = trainer(tmp_path, [WatchCallback(every=1, stop_on="nonfinite")], model)
    run.train()
    assert run.state.global_step == 1
    assert read_samples(tmp_path / "sigprop-watch")[0].bad == ("forward", "transformer.h.1.mlp.c_fc")


def test_only_the_adapters_of_a_peft_model_are_watched(tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = peft.get_peft_model(gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    run = trainer(tmp_path, [WatchCallback(every=1)], model, max_steps=4)
    run.train()
    sample = read_samples(tmp_path / "sigprop-watch")[-1]
    assert len(sample.parameters) == 2 * LAYERS
    assert all("lora" in name for name in sample.parameters)
    assert all(row["update_ratio"] > 0.0 for row in sample.parameters.values())

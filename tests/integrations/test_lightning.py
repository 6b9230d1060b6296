"""Real Lightning runs."""

import pytest
import torch
from torch import nn

import sigprop as sp
from sigprop.integrations.checkpoints import FILE
from sigprop.models import build
from sigprop.monitoring import read_samples

pytest.importorskip("lightning", reason="lightning is not installed")

import lightning

from sigprop.integrations.lightning import WatchCallback


class Regression(lightning.LightningModule):
    """A network as `model`, and a plan that makes its optimizer."""

    def __init__(self, plan: sp.Plan | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.model = build("mlp", depth=3, width=16, inputs=8, outputs=2)
        self.plan = plan
        self.losses: list[float] = []

    def training_step(self, batch, index):
        loss = self.model(batch[0]).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        if self.plan is None:
            return torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        return torch.optim.AdamW(self.plan.param_groups(self.model, lr=1e-3))


def loader() -> torch.utils.data.DataLoader:
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=4)


def fit(folder, module, callbacks, **options) -> lightning.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(default_root_dir=folder, callbacks=callbacks, **{"max_steps": 6, **quiet, **options})
    trainer.fit(module, loader(), ckpt_path=options.pop("ckpt_path", None))
    return trainer


def test_a_lightning_run_is_watched_and_not_changed(tmp_path):
    plain, watched = Regression(), Regression()
    fit(tmp_path / "plain", plain, [], enable_checkpointing=False)
    callback = WatchCallback(every=2, module="model")
    fit(tmp_path / "watched", watched, [callback], enable_checkpointing=False)
    assert watched.losses == plain.losses
    samples = read_samples(tmp_path / "watched" / "sigprop-watch")
    assert [sample.step for sample in samples] == [0, 2, 4]
    assert samples[-1].loss == pytest.approx(watched.losses[4], rel=1e-5)
    assert samples[-1].sites["blocks.1"]["grad_variance"] > 0.0
    assert not any(len(module._forward_hooks) for module in watched.modules())


def test_accumulated_batches_are_one_step(tmp_path):
    module = Regression()
    callback = WatchCallback(every=1, module="model")
    fit(tmp_path, module, [callback], accumulate_grad_batches=2, max_steps=3, enable_checkpointing=False)
    assert len(module.losses) == 6
    assert [sample.step for sample in callback.watch.history] == [0, 1, 2]


def test_a_plan_makes_the_optimizer_and_travels_with_the_checkpoint(tmp_path):
    module = Regression()
    module.plan = plan = sp.plan(module.model, "kaiming")
    plan.apply_(module.model)
    trainer = fit(tmp_path, module, [WatchCallback(every=2, module="model", plan=plan)])
    assert (tmp_path / FILE).is_file()
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = WatchCallback(every=2, module="model")
    resumed = lightning.Trainer(
        default_root_dir=tmp_path, callbacks=[again], max_steps=8, logger=False, enable_progress_bar=False
    )
    resumed.fit(Regression(), loader(), ckpt_path=tmp_path / "last.ckpt")
    assert again.plan == plan
    assert [sample.step for sample in again.watch.history] == [0, 2, 4, 6]


def test_nonfinite_ends_the_fit_when_asked(tmp_path):
    module = Regression()
    nn.init.constant_(next(module.model.parameters()), torch.nan)
    trainer = fit(tmp_path, module, [WatchCallback(every=1, module="model", stop_on="nonfinite")])
    assert trainer.global_step == 1

"""Lightning `Trainer`: a watch as a callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]

from sigprop.errors import NonFiniteError
from sigprop.integrations.checkpoints import save_plan
from sigprop.monitoring import Watch
from sigprop.plans import Plan


class WatchCallback(Callback):
    """`Trainer(callbacks=[WatchCallback(every=50)])`; the arguments are those of `Watch`.

    `module` names the part of the LightningModule that is watched (`"model"`, say); by default the whole of it, through
    its `forward`. The history is written to the trainer's root folder and continued on resume. With `plan`, the plan is
    saved beside it and in every checkpoint, under `sigprop_plan`. `stop_on="nonfinite"` ends the fit after the step.
    """

    def __init__(self, every: int = 50, module: str = "", plan: Plan | None = None, **options: Any):
        self.every = every
        self.module = module
        self.plan = plan
        self.options = options
        self.watch: Watch | None = None
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        model = pl_module.get_submodule(self.module) if self.module else pl_module
        folder = Path(trainer.default_root_dir)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        options = {"folder": folder / "sigprop-watch", "scaler": scaler, **self.options}
        self._steps = trainer.global_step
        self.watch = Watch(model, every=self.every, start=self._steps, **options)
        if self.plan is not None and trainer.is_global_zero:
            save_plan(self.plan, folder)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch that ended without an optimizer step is part of an accumulated one."""
        if self.watch is None or trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        try:
            self.watch.step(loss)
        except NonFiniteError:
            trainer.should_stop = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self.watch is not None:
            self.watch.__exit__(type(exception), exception, None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.watch is not None:
            self.watch.close()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.plan is not None:
            checkpoint["sigprop_plan"] = self.plan.to_json()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if self.plan is None and "sigprop_plan" in checkpoint:
            self.plan = Plan.from_json(checkpoint["sigprop_plan"])

"""Hugging Face `Trainer`: a watch as a callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from sigprop.errors import NonFiniteError
from sigprop.integrations.checkpoints import save_plan
from sigprop.monitoring import Watch
from sigprop.plans import Plan


class WatchCallback(TrainerCallback):
    """`Trainer(..., callbacks=[WatchCallback(every=50)])`; the arguments are those of `Watch`.

    The history is written to `OUTPUT_DIR/sigprop-watch` and continued when the trainer resumes from a checkpoint. With
    `plan`, the plan is saved in the output folder and in every checkpoint. `stop_on="nonfinite"` ends the training as
    the trainer itself would, after the step.
    """

    def __init__(self, every: int = 50, plan: Plan | None = None, **options: Any):
        self.every = every
        self.plan = plan
        self.options = options
        self.watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        options = {"folder": Path(args.output_dir) / "sigprop-watch", **self.options}
        self.watch = Watch(given["model"], every=self.every, start=state.global_step, **options)
        if self.plan is not None and state.is_world_process_zero:
            save_plan(self.plan, args.output_dir)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.watch is None:
            return
        try:
            self.watch.step()
        except NonFiniteError:
            control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.plan is not None and state.is_world_process_zero and folder.is_dir():
            save_plan(self.plan, folder)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.watch is not None:
            self.watch.close()

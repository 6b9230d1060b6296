"""Signals at random moments leave the model, the process and the files as they were."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

import sigprop as sp
from sigprop.distributions import build, recorder
from sigprop.isolation import Mode
from tests.robustness.scale import LONG, cases

ROOT = Path(__file__).parents[2]
SHORT = ["counting measure", "counting predict", "file", "apply", "criticality", "watch", "kernels"]
LONGER = ["measure", "counting seeds", "predict", "plan", "check", "counting check", "diff", "coordcheck", "jacobian"]
LONGER += ["trace"]
KINDS = [*SHORT, *LONGER] if LONG else SHORT


@pytest.mark.skipif(sys.platform == "win32", reason="needs interval timers")
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_leaves_everything_as_it_was(kind, tmp_path):
    count = cases(20, 80)
    command = [sys.executable, "-m", "tests.robustness.interrupted", kind, str(count), "0", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["damage"] == []
    assert result["interrupted"] > count / 3


@pytest.mark.parametrize("call", [lambda: build(lambda: nn.Linear(2, 2)), lambda: sp.check(lambda: nn.Linear(2, 2))])
def test_a_mode_whose_end_is_interrupted_is_left(call, monkeypatch):
    def interrupted(self, *error):
        raise KeyboardInterrupt

    monkeypatch.setattr(Mode, "__exit__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert torch._C._len_torch_function_stack() == 0


def test_a_watch_that_nobody_holds_has_nothing_on(tmp_path):
    model = nn.Linear(2, 2)
    watch = sp.Watch(model, every=1, folder=tmp_path)
    assert model._forward_hooks
    del watch
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_an_interrupt_while_a_model_has_been_built_leaves_no_hook(monkeypatch):
    class Handle:
        def __init__(self, hook):
            self.handle = register_module_parameter_registration_hook(hook)

        def remove(self):
            signal.raise_signal(signal.SIGINT)
            self.handle.remove()

    monkeypatch.setattr(recorder, "register_module_parameter_registration_hook", Handle)
    with pytest.raises(KeyboardInterrupt):
        build(lambda: nn.Linear(2, 2))
    assert not nn.Linear(2, 2).weight.is_meta

"""A loop written with Accelerate."""

import pytest
import torch

from sigprop.monitoring import read_samples
from tests.monitoring.shared import batches, language_loss, small_model

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

from sigprop.integrations.accelerate import watch_accelerated  # noqa: E402


def test_a_prepared_model_is_watched_over_accumulated_batches(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, project_dir=str(tmp_path))
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    with watch_accelerated(accelerator, model, every=2) as watch:
        for tokens in batches(8):
            with accelerator.accumulate(model):
                loss = language_loss(model(tokens), tokens)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                watch.step(loss)
    samples = read_samples(tmp_path / "sigprop-watch")
    assert [sample.step for sample in samples] == [0, 2]
    assert samples[-1].sites["blocks.1"]["grad_variance"] > 0.0
    assert samples[-1].groups["0"]["update_ratio"] > 0.0

"""What published models do on purpose is not called ill: each case is a false alarm that was raised once."""

import pytest
import torch
from torch import nn

from sigprop.check import checks
from sigprop.check.evaluation import Evaluation
from sigprop.check.subject import Subject
from sigprop.measure.attention import allowed_scores, score_summary


def found(name, model, batch):
    subject = Subject(model, batch, measured=Evaluation(model, batch).measured())
    return [item for item in checks()[name](subject) if item.severity != "note"]


class FilledByFormula(nn.Module):
    """Decay rates log(1..n) in every channel of every layer, as state space models start."""

    def __init__(self, copies: bool):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        for layer in self.layers:
            rates = torch.arange(1, 17, dtype=torch.float32).log().repeat(32, 1)
            layer.A_log = nn.Parameter(torch.randn(32, 16) if copies else rates)
        if copies:
            self.layers[1].A_log = nn.Parameter(self.layers[0].A_log.detach().clone())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * layer.A_log.exp().mean()
        return x


def test_a_formula_in_every_layer_is_no_copy():
    assert not found("equal_layers", FilledByFormula(copies=False), torch.randn(8, 32))
    assert found("equal_layers", FilledByFormula(copies=True), torch.randn(8, 32))


class Gated(nn.Module):
    """A projection that acts through a factor which starts at zero, as Doge's dynamic mask."""

    def __init__(self, factor: float):
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.dt_proj = nn.Linear(16, 16, bias=False)
        self.A = nn.Parameter(torch.full((16,), factor))
        if factor:
            self.A.requires_grad_(False)

    def forward(self, x):
        return self.first(x) * (self.A * self.dt_proj(x)).exp()


def test_what_waits_for_a_factor_of_zero_is_no_problem():
    torch.manual_seed(0)
    assert not found("no_gradient", Gated(0.0), torch.randn(32, 16))


def test_what_dead_units_cut_off_is_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
        model[2].bias.zero_()
    assert found("no_gradient", model, torch.randn(32, 16))


@pytest.mark.parametrize("hidden", [-1e4, -1e9, torch.finfo(torch.float32).min, torch.finfo(torch.float32).min / 11.3])
def test_masks_of_any_size_hide_scores(hidden):
    """CodeGen divides scores after it has masked them; older models mask with -1e4."""
    scores = torch.randn(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(20, 20, dtype=torch.bool).triu(1)
    masked = scores.masked_fill(mask, hidden)
    assert torch.equal(allowed_scores(masked)[0, 0], ~mask)
    exact = score_summary(scores.masked_fill(mask, -torch.inf))
    assert {key: float(value) for key, value in score_summary(masked).items()} == pytest.approx(
        {key: float(value) for key, value in exact.items()}
    )


def test_large_scores_are_not_hidden():
    scores = 300.0 * torch.randn(1, 2, 8, 64, generator=torch.Generator().manual_seed(0))
    assert bool(allowed_scores(scores).all())

"""Convolutions over large images: simulated, and said so; structure from a crop."""

import torch
from torch import Tensor, nn

from sigprop.checks import check


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.norm(self.conv1(x)).relu())


def network(gain: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    first, second = (nn.Sequential(*(Block(width) for _ in range(3))) for width in (8, 16))
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), first, nn.Conv2d(8, 16, 1), second, *pooled)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("conv2.weight"):
                weight.mul_(gain)
    return model


def test_large_images_are_simulated_and_it_is_said():
    report = check(network(), torch.randn(4, 3, 32, 32))
    assert any("simulated" in note for note in report.meta["notes"])
    assert report.predicted is not None
    assert report.measured is not None
    assert report.problems == []
    assert report.meta["layers"] == 6


def test_a_problem_is_found_on_large_images_too():
    report = check(network(40.0), torch.randn(4, 3, 32, 32), prescription=False)
    assert report["initial_loss"][0].severity == "problem"


def test_small_images_are_followed_by_theory():
    report = check(network(), torch.randn(1, 3, 16, 16), prescription=False)
    assert not any("simulated" in note for note in report.meta["notes"])


def test_a_long_sound_is_simulated_as_predict_simulates_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 16, 3, padding=1), nn.GELU(), nn.Conv1d(16, 16, 3, padding=1))
    report = check(model, torch.randn(1, 4, 2500), prescription=False)
    assert any("simulated" in note for note in report.meta["notes"])
    assert report.measured is not None

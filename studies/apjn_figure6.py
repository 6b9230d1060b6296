"""apjn Fig. 6: phase diagrams of ResNet-110 with BatchNorm.

`python -m studies.apjn_figure6 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from studies.apjn_figure4 import judge_resnet, resnet_panels
from studies.apjn_shared import publish
from studies.reproduction import Reproduction, Setting, captured


def main(
    device: str = "cpu", initializations: int = 10, points: int = 16, chunk: int = 64, out: Path = Path("docs")
) -> None:
    """Over (sigma_w, sigma_b) at mu = 1, and over (sigma_w, mu) at sigma_b = 0; batches of 32."""
    run = {"initializations": initializations, "device": device, "chunk": chunk}
    panels = resnet_panels("batch_norm", "ResNet-110, BatchNorm", points, run)
    publish("apjn_figure6", panels, out, initializations, points)


def run(setting: Setting) -> dict[str, Any]:
    options: dict[str, Any] = {} if setting.is_full else {"initializations": 1, "points": 2}
    return captured(lambda out: main(setting.device, out=out, **options), "data/apjn_figure6.json")


REPRODUCTION = Reproduction(
    id="apjn-figure6",
    paper="apjn",
    place="Fig. 6 (1) and (2)",
    claim="ResNet-110 with BatchNorm is critical everywhere at mu = 1.",
    run=run,
    judge=lambda data: judge_resnet(data, "above 1", "not run"),
    minutes=(3, 4),
    earlier="apjn_figure6.json",
)


if __name__ == "__main__":
    typer.run(main)

"""apjn Fig. 6: phase diagrams of ResNet-110 with BatchNorm.

`python -m studies.apjn_figure6 --device cuda`.
"""

from __future__ import annotations

from pathlib import Path

import typer

from studies.apjn_figure4 import resnet_panels
from studies.apjn_shared import publish


def main(
    device: str = "cpu", initializations: int = 10, points: int = 16, chunk: int = 64, out: Path = Path("docs")
) -> None:
    """Over (sigma_w, sigma_b) at mu = 1, and over (sigma_w, mu) at sigma_b = 0; batches of 32."""
    run = {"initializations": initializations, "device": device, "chunk": chunk}
    panels = resnet_panels("batch_norm", "ResNet-110, BatchNorm", points, run)
    publish("apjn_figure6", panels, out, initializations, points)


if __name__ == "__main__":
    typer.run(main)

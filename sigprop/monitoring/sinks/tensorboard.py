"""TensorBoard, through torch's own writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sigprop.monitoring.sinks.base import sink


@sink
class TensorBoard:
    """Scalars under their keys, findings as text."""

    name = "tensorboard"

    def __init__(self, folder: str | Path, writer: Any = None):
        if writer is None:
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(str(Path(folder) / "tensorboard"))
            self._own = True
        else:
            self._own = False
        self._writer = writer

    def write(self, step: int, scalars: dict[str, float]) -> None:
        for key, value in scalars.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def tell(self, step: int, finding: Any) -> None:
        self._writer.add_text(f"findings/{finding.name}", f"{finding.title}\n\n{finding.cause}", step)

    def close(self) -> None:
        if self._own:
            self._writer.close()

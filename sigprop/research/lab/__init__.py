"""The lab: small, exact trainings of any model, one by one or as a sweep that survives anything.

| file | what it does |
|---|---|
| `data` | text, images and synthetic data; batches as functions of a step |
| `settings` | what a training is told |
| `steps` | a forward and backward pass: as written, compiled, or as a CUDA graph |
| `trainer` | `train`: one run, resumable; its checkpoint |
| `sweep/` | grids of trainings: one file per trial is the truth |
"""

from sigprop.research.lab.settings import Settings
from sigprop.research.lab.trainer import train

__all__ = ["Settings", "train"]

"""Sweeps: grids of trainings that survive anything. One file per trial, written atomically, is the truth.

| file | what it does |
|---|---|
| `sheet` | what a sweep is: a TOML file as data, and its trials |
| `trial` | one training, from its settings to its result |
| `folder` | the results on disk; who may run a trial |
| `pool` | local processes that share the trials among themselves |
| `cluster` | the same on a Ray cluster |
| `store` | questions to the results, by SQL; the best rate with its spread |
"""

from sigprop.research.lab.sweep.folder import ResultFolder
from sigprop.research.lab.sweep.running import run_locally, run_on_ray
from sigprop.research.lab.sweep.sheet import Sheet, read_sheet
from sigprop.research.lab.sweep.store import best_rates, query

__all__ = ["ResultFolder", "Sheet", "best_rates", "query", "read_sheet", "run_locally", "run_on_ray"]

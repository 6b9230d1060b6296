"""Sweeps: grids of trainings that survive anything. One file per trial, written atomically, is the truth.

| file | what it does |
|---|---|
| `spec` | what a sweep is: a TOML file as data, its trials, and one trial from settings to result |
| `folder` | the results on disk; who may run a trial |
| `running` | local processes that share the trials among themselves; the same on a Ray cluster |
| `store` | questions to the results, by SQL; the best rate with its spread |
"""

from sigprop.research.lab.sweep.folder import ResultFolder
from sigprop.research.lab.sweep.running import run_locally, run_on_ray
from sigprop.research.lab.sweep.spec import read_spec
from sigprop.research.lab.sweep.store import best_rates, query

__all__ = ["ResultFolder", "best_rates", "query", "read_spec", "run_locally", "run_on_ray"]

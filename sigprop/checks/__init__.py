"""What is wrong with a model's initialization, with the evidence, the cause and a cure that was evaluated.

| | |
|---|---|
| `checking` | `check(model, batch)`: the whole examination, to a `Report` |
| `subject` | what findings look at, each part computed once |
| `findings/` | one file per finding, registered by name |
| `thresholds` | every number that decides, with its reason |
| `draws`, `statistics` | the weights themselves, and what sampling allows |
| `streams`, `branches`, `activity`, `gauges` | what profiles say, in the quantities that findings go by |
| `evaluation`, `prescribing` | predicted under a plan; from findings to one plan |
| `tables` | the folded tables that a report shows |
"""

from sigprop.checks.checking import check
from sigprop.checks.registry import Check, checks
from sigprop.checks.thresholds import THRESHOLDS, Threshold

__all__ = ["THRESHOLDS", "Check", "Threshold", "check", "checks"]

"""What is wrong with a model's initialization, with the evidence, causes that were shown, and fixes that were tried.

| | |
|---|---|
| `checking` | `check(model, batch)`: the whole examination, to a `Report` |
| `subject` | what findings look at, each part computed once; the same model under a change |
| `findings/` | findings, registered by name; those of one idea in one file |
| `thresholds` | every number that decides, with its reason |
| `draws`, `statistics` | the weights themselves, and what sampling allows |
| `observation`, `operations`, `calls` | what one forward pass shows beyond moments |
| `streams`, `branches`, `gauges` | what profiles say, in the quantities that findings go by |
| `suspects`, `edits`, `prescribing` | tensor groups that may be the cause, changes as code, and trying them |
| `evaluation` | predicted and measured, as it is and under a plan |
| `ignoring` | what is known and accepted |
| `tables` | the folded tables that a report shows |
"""

from sigprop.checks.checking import check
from sigprop.checks.ignoring import without
from sigprop.checks.registry import Check, checks
from sigprop.checks.thresholds import THRESHOLDS, Threshold

__all__ = ["THRESHOLDS", "Check", "Threshold", "check", "checks", "without"]

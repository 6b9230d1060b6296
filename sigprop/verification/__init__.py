"""The real model run at fresh initializations: right for whatever runs, and the judge of what theory says.

| file | what it holds |
|---|---|
| `simulation` | draws of a model, each measured forward and backward |
| `work` | what a pass costs, counted and not timed, so that results do not depend on the machine |
| `spread` | standard errors of means over few draws |
| `law_errors` | how far the laws read off a given module's weights could be off |
| `verdict` | whether a predicted number agrees with drawn ones |
| `verification` | a predicted profile judged row by row |
"""

from sigprop.verification.law_errors import with_law_errors
from sigprop.verification.simulation import Simulation
from sigprop.verification.verification import verified

__all__ = ["Simulation", "verified", "with_law_errors"]

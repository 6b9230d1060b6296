"""What a model is made of, read once from its trace, for recipes, width and depth rules, and checks.

| file | what it does |
|---|---|
| `model` | `Structure`: parameters by role, residual junctions, repeated blocks |
| `from_trace` | `read_structure(model, batch)`: from one trace to a `Structure` |
| `residual` | which additions join a branch to the stream it reads, and where norms stand |
| `attention` | which tensors become scores and which are mixed |
| `scores` | what multiplies `q . k`, and the parameters that queries are linear in |
| `branch_outputs` | the parameters that a branch is linear in at its end |
| `parameters` | the role of every parameter |
"""

from sigprop.structure.from_trace import read_structure
from sigprop.structure.model import Junction, Parameter, Part, Spot, Structure
from sigprop.structure.scores import Scores

__all__ = ["Junction", "Parameter", "Part", "Scores", "Spot", "Structure", "read_structure"]

"""What a model is made of, read once from its trace, for recipes, width and depth rules, and checks.

| file | what it does |
|---|---|
| `model` | `Structure`: parameters by role, residual junctions, repeated blocks |
| `from_trace` | `read_structure`: from one trace to a `Structure`; `structure_of`: from two examples of many |
| `residual` | which additions join a branch to the stream it reads, and where norms stand |
| `attention` | which tensors become scores and which are mixed |
| `linear` | what branches, queries and keys are linear in, and the numbers that multiply scores and tables |
| `parameters` | the role of every parameter |
"""

from sigprop.structure.from_trace import few_examples, read_structure, structure_of
from sigprop.structure.linear import Scores
from sigprop.structure.model import Junction, Parameter, Part, Structure

__all__ = ["Junction", "Parameter", "Part", "Scores", "Structure", "few_examples", "read_structure", "structure_of"]

"""Is this initialization the same as that one? `diff` compares two models, tensor by tensor, and says what explains it.

| file | what it holds |
|---|---|
| `diffing` | `diff`: sides, matching, tests and causes put together |
| `sides`, `elsewhere` | a model here, on the meta device, or built by another interpreter |
| `matching` | which parameter is which: renamed, transposed, fused, split |
| `sampling` | whether two tensors are samples of one distribution |
| `causes` | the signals of both, and which group of parameters explains their difference |
"""

from sigprop.checks.diff.diffing import diff

__all__ = ["diff"]

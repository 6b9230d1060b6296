"""Names of sites, made here alone: what joins a prediction to a measurement is that both are called the same.

blocks.3.mlp          the output of a module
(output)              of the model itself
blocks.3.mlp@2        of its second call
lstm[1][0]            a further tensor of its output
blocks.3.scores       the attention scores that it computes
blocks.3.add          a residual sum that it computes
"""

from __future__ import annotations

ROOT = "(output)"
SCORES, ADDITION = "scores", "add"


def nth(name: str, call: int) -> str:
    """The name of a module's or function's n-th call, counted from one."""
    return name if call == 1 else f"{name}@{call}"


def inside(module: str, kind: str) -> str:
    """What a module computes between its inputs and its output: scores, or a sum."""
    return f"{module}.{kind}"


def part(name: str, path: str, number: int) -> str:
    """The n-th tensor of an output, counted from zero; `path` is its place in it, such as `[1][0]`."""
    return name if number == 0 else name + path


class CallCounter:
    """Counts the calls of each name, and names them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next(self, name: str) -> str:
        self._counts[name] = call = self._counts.get(name, 0) + 1
        return nth(name, call)

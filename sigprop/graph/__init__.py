"""The graph of a network and what it gives: recorded once, evaluated as a pure function.

`graph` and `weights` say what is recorded: nodes with their ops and inputs, weights with their distributions.
`evaluate` computes states under these distributions or others. The other files are ops that look beyond their inputs,
and what several nodes have in common.
"""

from sigprop.graph.evaluate import Evaluation, Start, evaluate
from sigprop.graph.graph import Graph, NamedNode, Node

__all__ = ["Evaluation", "Graph", "NamedNode", "Node", "Start", "evaluate"]

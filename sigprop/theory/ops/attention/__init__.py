"""Attention: on the states of queries, keys and values, or on weights that somebody draws.

`op.py` has `Attention`, softmax attention on three states, in closed form:

| file | tokens | method |
|---|---|---|
| `exchangeable.py` | exchangeable; averaged over positions behind a causal mask | closed form |
| `dense.py` | any kernel | closed form per pair of positions |

`drawn.py` has `DrawnAttention`: values averaged with drawn weights, whatever these are made of and however many
sequences attend within themselves. The interpreter replays a model's own functions for it.
"""

from sigprop.theory.ops.attention.drawn import DrawnAttention
from sigprop.theory.ops.attention.op import Attention, AttentionSignal

__all__ = ["Attention", "AttentionSignal", "DrawnAttention"]

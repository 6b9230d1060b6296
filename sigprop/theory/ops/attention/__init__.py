"""Softmax attention on query, key and value states: one op, four ways to evaluate it.

| file | tokens | method |
|---|---|---|
| `exchangeable.py` | alike, every key visible | closed form |
| `causal.py` | alike before the mask, averaged over positions after it | closed form per position |
| `dense.py` | any kernel, any mask | closed form per pair of positions |
| `sampled.py` | any kernel, any mask or additive bias | heads drawn from the kernels: the reference |
"""

from sigprop.theory.ops.attention.op import Attention, AttentionSignal

__all__ = ["Attention", "AttentionSignal"]

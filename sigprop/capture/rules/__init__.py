"""Rules: one file per family, each binding torch functions to ops by name; read when a rule is first asked for.

Two files bind none and serve the others: `pointwise` (functions of one tensor, sums and products of two, parts that
both have in common) and `replayed` (whatever has no rule).
"""

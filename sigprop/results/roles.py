"""The roles of parameters: one vocabulary for profiles, plans, recipes and width rules.

    embedding    rows chosen by ids (`tied`: also the readout)
    positional   a learned table that is added to the stream or to scores: positions, class tokens
    input        a matrix that reads the model's input, or stands before the first residual branch
    query_key    a matrix whose output becomes attention scores
    value        a matrix whose output is mixed by attention
    hidden       any other matrix between input and readout
    output       the last weight of a residual branch (a matrix, or the gain of a norm that ends it)
    router       a matrix that chooses experts
    readout      the last matrix before the model's output
    norm gain    what multiplies a normalized signal, channel by channel
    gain         any other factor per channel or head
    bias         what is added
    scale        a learnable scale that a plan adds to a branch
    vector       a gain or bias, where shapes alone were compared
    fixed        nothing grows with the width, where shapes alone were compared
    unused       not reached by the forward pass

`predict` reads a parameter's use alone and calls every matrix inside `hidden`; `structure` tells `query_key`, `value`
and `output` apart.
"""

from __future__ import annotations

TABLES = ("embedding", "positional")
MATRICES = ("input", "query_key", "value", "hidden", "output", "router", "readout")
VECTORS = ("norm gain", "gain", "bias", "scale", "vector", "unused")
ROLES = (*TABLES, *MATRICES, *VECTORS, "fixed")
WIDTH_CLASSES = {
    **dict.fromkeys(("embedding", "positional", "input"), "embedding"),
    **dict.fromkeys(("query_key", "value", "hidden", "output"), "hidden"),
    **dict.fromkeys(("router", "readout"), "readout"),
    **dict.fromkeys((*VECTORS, "fixed"), "vector"),
}
"""By role, what grows with the width: outputs alone, both sides, inputs alone, or a vector's length."""

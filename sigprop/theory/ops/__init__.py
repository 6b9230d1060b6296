"""Ops, one file each with its near relatives, used by blueprints and by the interpreter.

`base` is what every op is. Maps of channels: `linear`, `convolution`. Maps of tokens: `token_map`,
`attention`. Entry by entry: `activation`, `product`, `scale`, `modulate`, `gain`, `dropout`. Norms: `layer_norm`,
`group_norm`, `batch_norm`. Sums: `residual`, `expert_sum`. Where things stand: `gather`, `narrow`, `cat`,
`positions_to_channels`. Where signals and gradients start: `sources`, `loss`. Evaluated on random numbers that the
interpreter makes: `drawn`, `attention.DrawnAttention`.

One op lives elsewhere: `sigprop.capture.jump`, from one followed block of a model to the next, which is no function of
torch and reads the states of other nodes of the graph.
"""

__all__: list[str] = []

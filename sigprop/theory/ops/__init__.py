"""Ops, one file each, used by blueprints and by the interpreter alike.

`base` is what every op is. Maps of channels: `linear`, `convolution`, `input_convolution`, `tied_head`. Maps of tokens:
`token_map`, `token_linear`, `drawn_token_linear`, `attention`. Entry by entry: `activation`, `product`, `scale`,
`modulate`, `gain`, `dropout`. Norms: `layer_norm`, `rms_norm`, `group_norm`, `batch_norm`. Sums: `residual`,
`shared_residual`, `token_residual`. Where things stand: `gather`, `scatter`, `narrow`, `cat_channels`, `cat_positions`,
`positions_to_channels`, `channels_to_positions`. Where signals and gradients start: `embedding`, `parameter_source`,
`loss`. Evaluated on draws (`drawn`), which the interpreter makes: `attention.DrawnAttention`, `sampled`.

One op lives elsewhere: `sigprop.capture.jump`, from one followed block of a model to the next, which is no function of
torch and reads the states of other nodes of the graph.
"""

__all__: list[str] = []

"""How the field of a result is made: what the rules of several functions share, and no rule itself.

| file | what it makes |
|---|---|
| `operands` | fields of weights and of real numbers |
| `values` | real numbers, drawn once |
| `views`, `moves` | the same entries under another layout, copied, sliced, rearranged |
| `pointwise` | functions of one tensor, entry by entry |
| `combined` | sums and products of two |
| `norms` | of the raw input, and spelt out |
| `attention` | scores, and their weights applied to values |
| `windows` | what a convolution sees of an image |
| `replayed` | whatever else: the call is kept, its state sampled |
"""

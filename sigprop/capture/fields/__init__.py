"""How the field of a result is made: what the rules of several functions share, and no rule itself.

| file | what it makes |
|---|---|
| `operands` | fields of weights and of real numbers; real numbers, sampled once |
| `views` | the same entries under another layout, copied, sliced, rearranged; windows of an image |
| `pointwise` | functions of one tensor, sums and products of two, entry by entry; parts that both have in common |
| `norms` | of the raw input, and spelt out |
| `attention` | scores, and their weights applied to values |
| `replayed` | whatever else: the call is kept, its state sampled |
"""

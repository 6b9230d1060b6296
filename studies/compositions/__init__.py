"""Theory alone against real networks, composition by composition, with each correction of the theory alone.

| file | what it holds |
|---|---|
| `networks` | the networks, in plain PyTorch |
| `compositions` | the list, in two halves: one that was developed on, one that was looked at once |
| `__main__` | the witness, the table and the page: `python -m studies.compositions witness`, `table`, `page` |
"""

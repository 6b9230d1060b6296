"""Whatever a user brings, as a module and a batch.

| | |
|---|---|
| `open_source` | a MODEL as people write it (a name, a file, a config, a folder), with a batch and a loss |
| `open_family` | the same at many widths and depths |
| `first_batch` | a tensor, a mapping, a `DataLoader`: the batch that is run |
| `made_up_batch` | token ids or noise that fit a model, where none was given |
| `read_activation` | a registered name, or `file.py:function` |
"""

from sigprop.sources.activation import read_activation
from sigprop.sources.batches import first_batch
from sigprop.sources.family import Family, open_family
from sigprop.sources.made_up import made_up_batch, zipf_ids
from sigprop.sources.settings import parse_settings
from sigprop.sources.source import ModelSource, builder_of, open_source

__all__ = [
    "Family",
    "ModelSource",
    "builder_of",
    "first_batch",
    "made_up_batch",
    "open_family",
    "open_source",
    "parse_settings",
    "read_activation",
    "zipf_ids",
]

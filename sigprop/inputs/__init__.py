"""Whatever a user brings, as a module and a batch.

| | |
|---|---|
| `open_source` | a MODEL as people write it (a name, a file, a config, a folder), with a batch and a loss |
| `open_family` | the same at many widths and depths |
| `loading_of` | what of a checkpoint folder did not get into the model |
| `made_up_batch` | token ids or noise that fit a model, where none was given |
| `read_activation` | a registered name, or `file.py:function` |
"""

from sigprop.inputs.batches import read_batch
from sigprop.inputs.family import open_family, parse_settings
from sigprop.inputs.hugging_face import loading_of
from sigprop.inputs.source import ModelSource, as_module, builder_of, open_source
from sigprop.inputs.synthetic import TOKENS, made_up_batch
from sigprop.inputs.user_file import read_activation

__all__ = [
    "TOKENS",
    "ModelSource",
    "as_module",
    "builder_of",
    "loading_of",
    "made_up_batch",
    "open_family",
    "open_source",
    "parse_settings",
    "read_activation",
    "read_batch",
]

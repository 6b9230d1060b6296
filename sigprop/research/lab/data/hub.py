"""A column of a Hugging Face data set as one text."""

from __future__ import annotations

from typing import Any

from sigprop.errors import InputError


def hub_text(dataset: Any, column: str = "text", split: str = "train") -> str:
    """`dataset`: a name or folder that `datasets.load_dataset` takes, or a data set already loaded."""
    if isinstance(dataset, str):
        try:
            from datasets import load_dataset  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise InputError("Hugging Face data sets need the package datasets: pip install datasets") from error
        dataset = load_dataset(dataset, split=split)
    if column not in dataset.column_names:
        raise InputError(f"no column {column!r}: the data set has {', '.join(dataset.column_names)}")
    return "\n".join(dataset[column])

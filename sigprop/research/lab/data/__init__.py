"""Data for small, exact trainings. A batch is a function of a seed and a step alone, so that any run can be resumed.

| file | what it gives |
|---|---|
| `text` | text as tokens: bytes, a trained BPE tokenizer, or Zipf's law; passages of it |
| `objectives` | causal, masked, span-denoising and encoder-decoder batches from passages of tokens |
| `images` | IDX files and folders of images |
"""

from sigprop.research.lab.data.images import ImageBatches, image_folder, labelled_idx
from sigprop.research.lab.data.objectives import Causal, Masked, Restored, Spans
from sigprop.research.lab.data.text import TextBatches, tokens_of, trained_bpe, zipf_tokens

__all__ = [
    "Causal",
    "ImageBatches",
    "Masked",
    "Restored",
    "Spans",
    "TextBatches",
    "image_folder",
    "labelled_idx",
    "tokens_of",
    "trained_bpe",
    "zipf_tokens",
]

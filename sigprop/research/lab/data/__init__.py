"""Data for small, exact trainings. A batch is a function of a seed and a step alone, so that any run can be resumed.

| file | what it gives |
|---|---|
| `order` | random numbers and orders that belong to one step or one epoch |
| `text` | text as tokens: bytes, or a trained BPE tokenizer |
| `objectives` | causal, masked, span-denoising and encoder-decoder batches from passages of tokens |
| `images` | IDX files and folders of images |
| `synthetic` | Zipf text and Gaussian images |
| `hub` | a column of a Hugging Face data set as text (extra `datasets`) |
"""

from sigprop.research.lab.data.images import ImageBatches, image_folder, labelled_idx
from sigprop.research.lab.data.objectives import Causal, Masked, Restored, Spans
from sigprop.research.lab.data.text import TextBatches, gaussian_images, hub_text, tokens_of, trained_bpe, zipf_tokens

__all__ = [
    "Causal",
    "ImageBatches",
    "Masked",
    "Restored",
    "Spans",
    "TextBatches",
    "gaussian_images",
    "hub_text",
    "image_folder",
    "labelled_idx",
    "tokens_of",
    "trained_bpe",
    "zipf_tokens",
]

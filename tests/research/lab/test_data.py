"""Data: deterministic order, files that are not what they should be."""

import gzip

import pytest
import torch

from sigprop.errors import InputError
from sigprop.models import load_text
from sigprop.research.lab.data import ImageBatches, TextBatches, tokens_of, zipf_tokens


def test_a_batch_is_a_function_of_seed_and_step():
    batches = TextBatches(zipf_tokens(500, 50), passages=3, length=10, seed=1)
    late = batches(7)["input_ids"]
    assert torch.equal(TextBatches(batches.tokens, 3, 10, seed=1)(7)["input_ids"], late)
    assert not torch.equal(batches(8)["input_ids"], late)
    assert not torch.equal(TextBatches(batches.tokens, 3, 10, seed=2)(7)["input_ids"], late)


def test_every_image_comes_once_an_epoch():
    batches = ImageBatches(torch.zeros(10, 1, 2, 2), torch.arange(10), size=5)
    for epoch in range(2):
        seen = torch.cat([batches(2 * epoch + step)["labels"] for step in range(2)])
        assert sorted(seen.tolist()) == list(range(10))
    assert not torch.equal(batches(0)["labels"], batches(2)["labels"])


def test_zipf_frequencies():
    tokens = zipf_tokens(100_000, 10)
    expected = torch.arange(1, 11).double() ** -1
    expected /= expected.sum()
    found = torch.bincount(tokens.long(), minlength=10) / len(tokens)
    assert torch.all((found - expected).abs() < 5 * (expected / len(tokens)).sqrt())


def test_text_files_plain_and_compressed(tmp_path):
    (tmp_path / "a.txt").write_text("füür\n" * 10, encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress((tmp_path / "a.txt").read_bytes()))
    plain, packed = (load_text(tmp_path / name) for name in ("a.txt", "a.txt.gz"))
    assert plain == packed
    assert bytes(tokens_of(plain).tolist()) == plain.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "empty"), (b" \n", "empty"), (b"abc\0def" * 10, "binary"), (bytes(range(128, 256)) * 4, "not UTF-8")],
)
def test_files_that_are_no_text(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_text(tmp_path / "a.txt")


def test_files_that_are_missing_or_broken(tmp_path):
    with pytest.raises(InputError, match="no text file"):
        load_text(tmp_path / "b.txt")
    (tmp_path / "a.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match="cannot be read"):
        load_text(tmp_path / "a.gz")

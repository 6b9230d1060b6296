"""Text and image loaders."""

import gzip
import struct

import pytest
import torch

from sigprop.errors import InputError
from sigprop.models import decode, encode, load_idx, load_text, normalized_images, sample_text, text_batch


def test_bytes_round_trip():
    text = "Ça va, naïve? 你好"
    assert decode(encode(text)) == text
    assert encode(text).max() < 256


def test_sample_is_long_enough_to_use():
    text = sample_text()
    assert 20_000 < len(text) < 60_000
    assert "First Citizen" in text


def test_text_batch_takes_spread_passages():
    batch = text_batch("abcdefghij", batch=3, tokens=4)
    assert [decode(row) for row in batch] == ["abcd", "defg", "ghij"]
    assert text_batch("abc", 1, 2, vocabulary=50).max() < 50
    with pytest.raises(InputError, match="3 bytes"):
        text_batch("abc", 1, 4)


def test_text_file_plain_and_compressed(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("hello")
    assert load_text(tmp_path / "a.txt") == load_text(tmp_path / "a.txt.gz") == "hello"
    with pytest.raises(InputError, match="no text file"):
        load_text(tmp_path / "b.txt")


@pytest.mark.parametrize("compressed", [False, True])
def test_idx_images(tmp_path, compressed):
    content = b"\0\0\x08\x03" + struct.pack(">III", 2, 3, 4) + bytes(range(24))
    path = tmp_path / ("images.gz" if compressed else "images")
    path.write_bytes(gzip.compress(content) if compressed else content)
    images = load_idx(path)
    assert torch.equal(images, torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4))
    floats = normalized_images(path)
    assert floats.shape == (2, 1, 3, 4)
    assert abs(floats.mean()) < 1e-6
    assert floats.std() == pytest.approx(1)


def test_idx_reads_big_endian_numbers(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(b"\0\0\x0c\x01" + struct.pack(">I", 2) + struct.pack(">ii", 258, -1))
    assert load_idx(path).tolist() == [258, -1]


@pytest.mark.parametrize("content", [b"", b"PNG!", b"\0\0\x08\x01\0\0\0\x05ab"])
def test_broken_idx_is_refused(tmp_path, content):
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(InputError, match="broken"):
        load_idx(path)

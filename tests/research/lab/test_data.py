"""Data: deterministic order, objectives, files that are not what they should be."""

import gzip

import numpy as np
import pytest
import torch

from sigprop.errors import InputError
from sigprop.models import load_text
from sigprop.research.lab.data import (
    Causal,
    ImageBatches,
    Masked,
    Restored,
    Spans,
    TextBatches,
    image_folder,
    tokens_of,
    trained_bpe,
    zipf_tokens,
)

IDS = torch.arange(200).reshape(2, 100)


def generator():
    return torch.Generator().manual_seed(0)


def test_a_batch_is_a_function_of_seed_and_step():
    batches = TextBatches(zipf_tokens(500, 50), passages=3, length=10, seed=1)
    late = batches(7)["input_ids"]
    assert torch.equal(TextBatches(batches.tokens, 3, 10, seed=1)(7)["input_ids"], late)
    assert not torch.equal(batches(8)["input_ids"], late)
    assert not torch.equal(TextBatches(batches.tokens, 3, 10, seed=2)(7)["input_ids"], late)


def test_causal_asks_for_every_token():
    batch = Causal()(IDS, generator())
    assert torch.equal(batch["labels"], IDS)


def test_masked_hides_the_shares_of_bert():
    ids = torch.randint(100, (200, 100), generator=generator())
    batch = Masked(mask=100, vocabulary=100)(ids, generator())
    asked = batch["labels"] != -100
    count = int(asked.sum())
    assert count / ids.numel() == pytest.approx(0.15, abs=4 * (0.15 * 0.85 / ids.numel()) ** 0.5)
    hidden = int((batch["input_ids"] == 100).sum())
    assert hidden / count == pytest.approx(0.8, abs=4 * (0.16 / count) ** 0.5)
    assert torch.equal(batch["input_ids"][~asked], ids[~asked])
    assert torch.equal(batch["labels"][asked], ids[asked])


def test_spans_can_be_put_back():
    batch = Spans(sentinel=999)(IDS, generator())
    for shown, asked, ids in zip(batch["input_ids"], batch["labels"], IDS, strict=True):
        pieces, mark = {}, None
        for token in asked.tolist():
            if token > 900:
                mark = token
                pieces[mark] = []
            else:
                pieces[mark].append(token)
        restored = [inner for token in shown.tolist() for inner in (pieces[token] if token > 900 else [token])]
        assert restored == ids.tolist()
    assert batch["labels"].shape[1] == 15 + 5


def test_a_decoder_reads_the_answers_one_token_late():
    spans, both = Spans(999, share=0.2), Restored(Spans(999, share=0.2), start=998)
    alone, batch = spans(IDS, generator()), both(IDS, generator())
    assert torch.equal(batch["tokens"], alone["input_ids"])
    assert torch.equal(batch["labels"], alone["labels"])
    assert torch.equal(batch["target_tokens"][:, 1:], alone["labels"][:, :-1])
    assert batch["target_tokens"][:, 0].tolist() == [998, 998]


def test_word_pieces_are_masked_like_bytes():
    pytest.importorskip("tokenizers")
    text = "the cat sat on the mat and the dog sat on the log. " * 20
    coder = trained_bpe([text], 280, ["[MASK]"])
    mask, size = coder.token_to_id("[MASK]"), coder.get_vocab_size()
    batch = TextBatches(tokens_of(text, coder), 4, 16, objective=Masked(mask, size, share=0.5))(0)
    assert size > 256
    assert 0.6 < (batch["input_ids"][batch["labels"] >= 0] == mask).double().mean() <= 1.0


def test_every_image_comes_once_an_epoch():
    batches = ImageBatches(torch.zeros(10, 1, 2, 2), torch.arange(10), size=5)
    for epoch in range(2):
        seen = torch.cat([batches(2 * epoch + step)["labels"] for step in range(2)])
        assert sorted(seen.tolist()) == list(range(10))
    assert not torch.equal(batches(0)["labels"], batches(2)["labels"])


def test_zipf_frequencies():
    tokens = zipf_tokens(100_000, 10, exponent=1.0)
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


def test_bpe_round_trip():
    pytest.importorskip("tokenizers")
    text = "the cat sat on the mat. " * 50
    made = trained_bpe([text], 300)
    tokens = tokens_of(text, made)
    assert len(tokens) < len(text) / 2
    assert made.decode(tokens.tolist()) == text


def test_a_folder_of_images(tmp_path):
    from PIL import Image

    for label, shade in (("cat", 200), ("dog", 10)):
        (tmp_path / label).mkdir()
        Image.fromarray(np.full((5, 7, 3), shade, dtype=np.uint8)).save(tmp_path / label / "1.png")
    images, labels = image_folder(tmp_path, side=4)
    assert images.shape == (2, 3, 4, 4)
    assert labels.tolist() == [0, 1]
    assert images[0].mean() > images[1].mean()
    (tmp_path / "dog" / "2.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"2\.png is not an image"):
        image_folder(tmp_path, side=4)

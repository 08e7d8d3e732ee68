"""Embeddings initialised from word vectors of word2vec and GloVe."""

from __future__ import annotations

import gzip

import pytest
import torch

from rescorer.errors import ConfigError, FormatError
from rescorer_training.classes.word_vectors import initialise_embedding
from tests.support.tiny_models import random_network

CAT, DOG = "cat 1 0 0 0 0 0\n", "dog 0 -2e0 0 0 .5 0\n"


@pytest.mark.parametrize("header", ["", "4 6\n"])
@pytest.mark.parametrize("tied", [True, False])
def test_initialises_known_words_only(tmp_path, header, tied):
    model, vocabulary = random_network(tied=tied)
    weight = model.network.embedding.weight
    before = weight.detach().clone()
    with gzip.open(tmp_path / "v.gz", "wt") as file:
        file.write(f"{header}{CAT}zebra 1 1 1 1 1 1 \n. . . 1 1 1 1 1 1\n\n{DOG}")
    coverage = initialise_embedding(model, vocabulary, tmp_path / "v.gz")
    assert str(coverage) == "2 of 11 words have a vector"
    cat, dog = weight[vocabulary.ids["cat"]], weight[vocabulary.ids["dog"]]
    torch.testing.assert_close(cat / cat[0], torch.tensor([1.0, 0, 0, 0, 0, 0]))
    torch.testing.assert_close(dog / cat[0], torch.tensor([0, -2.0, 0, 0, 0.5, 0]))
    torch.testing.assert_close(torch.stack([cat, dog]).square().mean(), before.square().mean())
    others = [i for word, i in vocabulary.ids.items() if word not in ("cat", "dog")]
    assert torch.equal(weight[others], before[others])
    assert weight.requires_grad
    assert (model.output.word_weight.data_ptr() == weight.data_ptr()) is tied


def test_frozen_embedding_has_no_gradient(tmp_path):
    (tmp_path / "v").write_text(CAT)
    model, vocabulary = random_network(tied=False)
    initialise_embedding(model, vocabulary, tmp_path / "v", frozen=True)
    words = torch.tensor([[2, 3, 4]])
    model.loss(words, words).backward()
    assert model.network.embedding.weight.grad is None
    assert model.output.word_weight.grad is not None


def test_rejects_a_frozen_tied_embedding(tmp_path):
    with pytest.raises(ConfigError, match="cannot be tied"):
        initialise_embedding(*random_network(tied=True), tmp_path / "v", frozen=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (f"{CAT}dog 1 2 3\n".encode(), r"v:2: 3 values; expected 6, the size of the embedding"),
        (f"{CAT}dog 1 2 3 4 5 6 7\n".encode(), r"v:2: 7 values; expected 6"),
        (b"2 300\n", r"v:1: the header announces 300 values per word; expected 6"),
        (f"{CAT}{DOG}{CAT}".encode(), r"v:3: 'cat' occurs twice, first in line 1"),
        (b"cat 1 2 3 4 5 nan\n", r"v:1: 'cat' has a value that is not finite"),
        (b"cat 1 2 3 4 5 six\n", r"v:1: 'cat': could not convert string to float: 'six'"),
        (b"cat 1 2 3 4 5 6\n\xff 1 2 3 4 5 6\n", r"v:2: not UTF-8"),
        (b"zebra 1 2 3 4 5 6\n", r"v: no vector for any of the vocabulary's 11 words"),
        (b"", r"v: no vector for any of the vocabulary's 11 words"),
    ],
)
def test_rejects_invalid_files_with_line_number(tmp_path, content, message):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        initialise_embedding(*random_network(), tmp_path / "v")


def test_rejects_a_missing_file(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        initialise_embedding(*random_network(), tmp_path / "none.txt")

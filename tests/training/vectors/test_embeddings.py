"""Embeddings initialised from word vectors of word2vec and GloVe."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

from rescorer.errors import ConfigError, FormatError
from rescorer.models.neural import load_model
from rescorer_training.classification import ClassifierOptions
from rescorer_training.cli import main
from rescorer_training.neural.build import load_embeddings
from rescorer_training.neural.options import NetworkOptions
from rescorer_training.vectors.files import VectorFormat, WordVectors, read_vectors, write_vectors
from rescorer_training.vectors.runs import initialise_embedding
from tests.conftest import DATA
from tests.support.tiny_models import random_network

CAT, DOG = "cat 1 0 0 0 0 0\n", "dog 0 -2e0 0 0 .5 0\n"


@pytest.mark.parametrize("header", ["", "3 6\n"])
@pytest.mark.parametrize("tied", [True, False])
def test_initialises_known_words_only(tmp_path, header, tied):
    model, vocabulary = random_network(tied=tied)
    weight = model.network.embedding.weight
    before = weight.detach().clone()
    with gzip.open(tmp_path / "v.gz", "wt") as file:
        file.write(f"{header}{CAT}zebra 1 1 1 1 1 1 \n\n{DOG}")
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


def test_a_lookup_table_has_the_vectors_of_the_file_and_zeros(tmp_path):
    model, vocabulary = random_network(tied=False)
    (tmp_path / "v").write_text(CAT + DOG)
    initialise_embedding(model, vocabulary, tmp_path / "v", frozen=True, rescale=False, zero_others=True)
    expected = np.zeros((len(vocabulary), 6), dtype=np.float32)
    expected[vocabulary.ids["cat"]] = [1, 0, 0, 0, 0, 0]
    expected[vocabulary.ids["dog"]] = [0, -2, 0, 0, 0.5, 0]
    rows = torch.tensor([[2, 7, 3, 1], [0, 4, 5, 10]])  # (N, T)
    assert model.network.embedding(rows).shape == (2, 4, 6)
    np.testing.assert_array_equal(model.network.embedding(rows), expected[rows.numpy()])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"unknown_rows": "zero"}, "--unknown-rows needs the vectors of --embeddings"),
        ({"rescale_embeddings": False}, "--keep-embeddings needs the vectors of --embeddings"),
        ({"unknown_rows": "ones", "embeddings": "v"}, "unknown_rows is 'ones'; expected random or zero"),
    ],
)
@pytest.mark.parametrize("options", [NetworkOptions, ClassifierOptions])
def test_options_for_given_embeddings_are_checked(options, given, message):
    with pytest.raises(ConfigError, match=message):
        load_embeddings(*random_network(), options(**given))


def test_reads_every_format_alike(tmp_path):
    vectors = WordVectors(("dog", "zebra", "cat"), np.random.default_rng(0).normal(size=(3, 6)).astype("f4"))
    weights = []
    for format in VectorFormat:
        torch.manual_seed(1)
        model, vocabulary = random_network()
        write_vectors(tmp_path / f"{format}.gz", vectors, format)
        assert initialise_embedding(model, vocabulary, tmp_path / f"{format}.gz").n_covered == 2
        weights.append(model.network.embedding.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_reads_a_word_with_blanks(tmp_path):
    (tmp_path / "v").write_text(f"{CAT}. . . 1 1 1 1 1 1\n")
    assert initialise_embedding(*random_network(), tmp_path / "v").n_covered == 1


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
        (b"cat 1 2 3\n", r"v:1: 3 values per word; expected 6, the size of the embedding"),
        (b"2 300\ncat 1", r"v:1: 300 values per word; expected 6, the size of the embedding"),
        (b"1 5\ncat " + bytes(20), r"v:1: 5 values per word; expected 6"),
        (
            b"2 6\ncat " + bytes(24) + b"\ndog " + bytes(23),
            r"v: the file ends at byte 60, in word 2 of the 2",
        ),
        (f"2 6\n{CAT}".encode(), r"v: the header announces 2 words, but the file has 1"),
        (f"{CAT}dog 1 2 3\n".encode(), r"v:2: 3 values; expected 6"),
        (f"{CAT}dog 1 2 3 4 5 6 7\n".encode(), r"v:2: 7 values; expected 6"),
        (f"{CAT}{DOG}{CAT}".encode(), r"v:3: 'cat' occurs twice, first in line 1"),
        (b"cat 1 2 3 4 5 nan\n", r"v:1: 'cat' has a value that is not finite"),
        (b"cat 1 2 3 4 5 6\ndog 1 2 3 4 five 6\n", r"v:2: 'dog': could not convert string to float: 'five'"),
        (b"cat 1 2 3 4 5 6\n\xff 1 2 3 4 5 6\n", r"v:2: not UTF-8"),
        (b"zebra 1 2 3 4 5 6\n", r"v: no vector of any of the words to keep"),
    ],
)
def test_rejects_invalid_files_with_line_number(tmp_path, content, message):
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(FormatError, match=message):
        initialise_embedding(*random_network(), tmp_path / "v")


def test_rejects_a_missing_file(tmp_path):
    with pytest.raises(FormatError, match="there is no such file"):
        initialise_embedding(*random_network(), tmp_path / "none.txt")


@pytest.mark.data
@pytest.mark.parametrize("frozen", [True, False])
def test_published_vectors_enter_a_network_and_a_training_step(tmp_path, run, frozen):
    published, converted, text = (
        DATA / "word-vectors/glove.6B.50d.first2445.txt.gz",
        tmp_path / "v",
        tmp_path / "t",
    )
    text.write_text("the city of new york has more people\nhe has a new house in the city\n" * 4)
    options = ["--embedding", 50, "--hidden", 8, "--epochs", 1, "--threads", 1, "--untied"]
    options += ["--freeze-embeddings"] if frozen else []
    train = ["neural", text, "--validation", text, "-o", tmp_path / "run", *options, "--embeddings"]
    _, _, error = run(*train, published, command=main)
    assert "gz:218: not UTF-8" in error
    assert "rescorer-train vectors convert FILE OUTPUT --to glove --encoding cp1252" in error
    run("vectors", "convert", published, converted, "--to", "glove", "--encoding", "cp1252", command=main)
    code, _, error = run(*train, converted, command=main)
    assert code == 0, error
    model, vocabulary = load_model(tmp_path / "run" / "best")
    vectors = read_vectors(converted, keep=vocabulary.ids)
    assert len(vectors) == 12
    rows = torch.tensor([vocabulary.ids[word] for word in vectors.words])
    embedding, expected = model.network.embedding(rows), torch.from_numpy(vectors.matrix)
    factor = embedding.norm() / expected.norm()
    assert torch.allclose(embedding, factor * expected, rtol=1e-4) is frozen


def test_looks_up_a_batch_of_words(tmp_path):
    (tmp_path / "v").write_text(f"{CAT}{DOG}")
    model, vocabulary = random_network()
    initialise_embedding(model, vocabulary, tmp_path / "v")
    cat, dog = (vocabulary.ids[word] for word in ("cat", "dog"))
    vectors = model.network.embedding(torch.tensor([[cat, dog, dog], [dog, cat, cat]]))
    assert vectors.shape == (2, 3, 6)
    expected = torch.tensor([[1.0, 0, 0, 0, 0, 0], [0, -2, 0, 0, 0.5, 0]])
    torch.testing.assert_close(vectors / vectors[0, 0, 0], expected[torch.tensor([[0, 1, 1], [1, 0, 0]])])

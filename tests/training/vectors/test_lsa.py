"""Latent semantic analysis beside entries that are computed one by one, and a dense decomposition."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer_training.cli import app
from rescorer_training.vectors.counts import analyse, count_documents, weigh_entries
from rescorer_training.vectors.files import read_vectors
from rescorer_training.vectors.runs import EncodedText

WORDS = ("a", "b", "c", "d")
SENTENCES = st.lists(st.lists(st.integers(0, 5).filter(lambda i: i != 4), max_size=6), min_size=1, max_size=9)
"""Ids of words; 4 ends a sentence, 5 is a rare word."""


def encode(sentences):
    ids = [i for sentence in sentences for i in (*sentence, len(WORDS))]
    counts = np.array([ids.count(i) for i in range(len(WORDS))])
    return EncodedText(WORDS, counts, np.array(ids, dtype=np.int32))


def entries_one_by_one(sentences, document_sentences):
    """The weighted entries by (word, document)."""
    documents = [
        Counter(i for sentence in sentences[begin : begin + document_sentences] for i in sentence if i < 4)
        for begin in range(0, len(sentences), document_sentences)
    ]
    while documents and not documents[-1]:
        documents.pop()
    entries = {}
    for word in range(len(WORDS)):
        total = sum(document[word] for document in documents)
        shares = [document[word] / total for document in documents if document[word]]
        entropy = -sum(share * math.log(share) for share in shares)
        for column, document in enumerate(documents):
            if document[word]:
                weight = 1 - entropy / math.log(max(len(documents), 2))
                entries[word, column] = math.log(1 + document[word]) * weight
    return entries


@given(SENTENCES.filter(lambda rows: any(i < 4 for row in rows for i in row)), st.integers(1, 3))
def test_entries_equal_those_computed_one_by_one(sentences, document_sentences):
    expected = entries_one_by_one(sentences, document_sentences)
    entries = weigh_entries(count_documents(encode(sentences), document_sentences)).tocoo()
    found = dict(
        zip(zip(*(axis.tolist() for axis in entries.coords), strict=True), entries.data, strict=True)
    )
    assert found.keys() == expected.keys()
    for place, value in expected.items():
        assert found[place] == pytest.approx(value, abs=1e-12)


def test_vectors_have_the_products_of_a_dense_decomposition():
    generator = np.random.default_rng(3)
    text = encode([generator.integers(0, 4, 5).tolist() for _ in range(12)])
    dense = weigh_entries(count_documents(text, 1)).toarray()
    left, values, _ = np.linalg.svd(dense, full_matrices=False)
    scaled = left[:, :2] * values[:2]
    vectors = analyse(text, dimensions=2)
    np.testing.assert_allclose(vectors.matrix @ vectors.matrix.T, scaled @ scaled.T, atol=1e-5)
    assert np.array_equal(analyse(text, dimensions=2).matrix, vectors.matrix)


def test_refuses_more_dimensions_than_words_or_documents():
    text = encode([[0, 1], [2, 3], [0, 3]])
    with pytest.raises(
        ConfigError, match="dimensions: 3 are too many for 4 words in 3 documents; expected at most 2"
    ):
        analyse(text, dimensions=3)
    with pytest.raises(ConfigError, match="document sentences: expected at least 1, got 0"):
        analyse(text, dimensions=1, document_sentences=0)


def test_command_writes_vectors(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\nthe dog ran\na cat ran\nthe dog sat\n" * 3)
    output = tmp_path / "lsa.txt"
    arguments = ["vectors", "lsa", str(text), "-o", str(output), "--dimensions", "3", "--min-count", "3"]
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    vectors = read_vectors(output)
    assert vectors.dimensions == 3
    assert set(vectors.words) == {"the", "cat", "sat", "dog", "ran", "a"}

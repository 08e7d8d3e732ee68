"""The published questions and sets, with the first vectors of GloVe: the same figures as gensim's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rescorer_training.vectors.files import Encoding, WordVectors, read_vectors
from rescorer_training.vectors.judgement import (
    MIN_PAIRS,
    Method,
    answer_analogies,
    measure_similarity,
    read_analogies,
    read_similarities,
)
from tests.conftest import DATA

pytestmark = pytest.mark.data
FOLDER = DATA / "word-vectors"


@pytest.fixture(scope="module")
def vectors() -> WordVectors:
    return read_vectors(FOLDER / "glove.6B.50d.first2445.txt.gz", encoding=Encoding.WINDOWS)


@pytest.fixture(scope="module")
def keyed(vectors):
    """The same vectors in gensim."""
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    keyed = models.KeyedVectors(vectors.dimensions)
    keyed.add_vectors(list(vectors.words), vectors.matrix)
    return keyed


@pytest.fixture(scope="module")
def files() -> list[Path]:
    return sorted((FOLDER / "similarity").glob("*.txt"))


def test_ten_of_thirteen_sets_count(vectors, files):
    similarities = measure_similarity(vectors, [read_similarities(file) for file in files])
    parts = {row.name: row.part_of for row in similarities.sets if row.part_of}
    assert parts == {"MC-30": "RG-65", "WS-353-REL": "WS-353-ALL", "WS-353-SIM": "WS-353-ALL"}
    assert len(similarities.sets) - len(parts) == 10


def test_correlations_are_those_of_gensim(vectors, keyed, files):
    measured = measure_similarity(vectors, [read_similarities(file) for file in files]).sets
    for file, row in zip(files, measured, strict=True):
        if row.n_covered >= MIN_PAIRS:
            _, expected, missing = keyed.evaluate_word_pairs(str(file))
            assert row.spearman == pytest.approx(expected.statistic, abs=1e-9)
            assert 100 * (1 - row.n_covered / row.n_pairs) == pytest.approx(missing)


def test_answers_are_those_of_gensim(vectors, keyed):
    path = FOLDER / "questions-words.txt.gz"
    _, sections = keyed.evaluate_word_analogies(str(path))
    for answers, section in zip(answer_analogies(vectors, read_analogies(path)), sections, strict=False):
        assert answers.name == section["section"]
        assert answers.n_right[Method.ADD] == len(section["correct"])
        assert answers.n_covered == len(section["correct"]) + len(section["incorrect"])

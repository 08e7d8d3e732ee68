"""Analogies: the block products agree with one question at a time, and with gensim."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError
from rescorer_training.vectors import judgement
from rescorer_training.vectors.files import WordVectors
from rescorer_training.vectors.judgement import Category, Method, answer_analogies, read_analogies, summarise
from tests.support.random_vectors import random_vectors

FILE = ": family\nKing Man Queen Woman\n\n: gram1\nbig bigger small smaller\n: gram2\n"


def answer_plainly(vectors: WordVectors, question: tuple[str, ...], method: Method) -> str:
    """The answer to one question, word by word."""
    a, b, c = (word.lower() for word in question[:3])

    def unit(word: str) -> np.ndarray:
        row = next(row for row, other in enumerate(vectors.words) if other.lower() == word)
        vector = vectors.matrix[row].astype(np.float64)
        return vector / np.linalg.norm(vector)

    def score(row: np.ndarray) -> float:
        d = row / np.linalg.norm(row)
        if method is Method.ADD:
            return float(d @ (unit(b) - unit(a) + unit(c)))
        near = [(1 + float(d @ unit(word))) / 2 for word in (a, b, c)]
        return near[1] * near[2] / (near[0] + 1e-6)

    scores = {
        word.lower(): score(row.astype(np.float64))
        for word, row in reversed(list(zip(vectors.words, vectors.matrix, strict=True)))
        if word.lower() not in (a, b, c)
    }
    return max(scores, key=scores.__getitem__)


@given(seed=st.integers(0, 1000), block=st.integers(1, 300))
@pytest.mark.parametrize("method", Method)
def test_agrees_with_one_question_at_a_time(method, seed, block):
    vectors = random_vectors(12, 3, seed)
    questions = [
        tuple(str(word) for word in np.random.default_rng([seed, number]).permutation(vectors.words)[:3])
        for number in range(8)
    ]
    answered = tuple((*question, answer_plainly(vectors, question, method)) for question in questions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judgement, "MAX_SCORES", block)
        (answers,) = answer_analogies(vectors, [Category("any", answered)])
    assert (answers.n_questions, answers.n_covered) == (8, 8)
    assert answers.n_right[method] == 8


def test_ignores_case_and_counts_what_has_no_vector():
    words = ("a", "B", "c", "D", "d", "A", "b")
    rows = [[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 1, 1], [5, 0, 0], [0, 1, 0.9], [0, 1, 1]]
    matrix = np.array(rows, np.float32)
    questions = (("A", "b", "C", "d"), ("a", "b", "c", "zebra"))
    (answers,) = answer_analogies(WordVectors(words, matrix), [Category("x", questions)])
    assert (answers.n_questions, answers.n_covered) == (2, 1)
    assert answers.n_right == {Method.ADD: 1, Method.MULTIPLY: 1}  # "A" and "b", as near, are asked words
    assert answers.accuracy(Method.ADD) == 1.0
    assert answers.interval(Method.ADD) == (1.0, 1.0)


def test_sums_semantic_and_syntactic_questions():
    vectors = random_vectors(5, 3)
    known, unknown = ("w0", "w1", "w2", "w3"), ("w0", "w1", "w2", "x")
    asked = [Category("family", (known,)), Category("gram1", (unknown, unknown))]
    sums = summarise(asked, answer_analogies(vectors, asked))
    assert [(item.name, item.n_questions, item.n_covered) for item in sums] == [
        ("semantic", 1, 1), ("syntactic", 2, 0), ("total", 3, 1),
    ]  # fmt: skip
    assert sums[1].accuracy(Method.ADD) is None
    assert [item.name for item in summarise(asked[:1], answer_analogies(vectors, asked[:1]))] == ["total"]
    with pytest.raises(ConfigError, match="none of the 2 questions has vectors"):
        summarise(asked[1:], answer_analogies(vectors, asked[1:]))


@pytest.fixture
def keyed(vectors):
    """The same vectors in gensim."""
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    keyed = models.KeyedVectors(vectors.dimensions)
    keyed.add_vectors(list(vectors.words), vectors.matrix)
    return keyed


@pytest.fixture
def vectors() -> WordVectors:
    return random_vectors(40, 4)


def test_counts_as_gensim_does(tmp_path, vectors, keyed):
    method = Method.ADD
    triples = list(itertools.permutations(("w3", "w14", "w15", "w9", "w26"), 3))
    lines = [(*words, answer_plainly(vectors, words, method)) for words in triples[::2]]
    lines += [(*words, "w5") for words in triples[1::2]] + [("w1", "w2", "w3", "zebra")]
    (tmp_path / "q").write_text(": c\n" + "".join(f"{' '.join(line).upper()}\n" for line in lines))
    _, sections = keyed.evaluate_word_analogies(str(tmp_path / "q"))
    (answers,) = answer_analogies(vectors, read_analogies(tmp_path / "q"))
    assert answers.n_right[method] == len(sections[-1]["correct"]) >= 30
    assert answers.n_covered == len(sections[-1]["correct"]) + len(sections[-1]["incorrect"]) == 60


@pytest.mark.filterwarnings("ignore:Call to deprecated `init_sims`:DeprecationWarning")
def test_answers_by_3cosmul_as_gensim_does(vectors, keyed):
    """One by one: gensim 4.4 does not use the ``similarity_function`` of ``evaluate_word_analogies``."""
    asked = []
    for a, b, c in itertools.permutations(("w3", "w14", "w15", "w9", "w26"), 3):
        answer, _ = keyed.most_similar_cosmul(positive=[b, c], negative=[a], topn=1)[0]
        asked.append((a, b, c, answer))
    (answers,) = answer_analogies(vectors, [Category("any", tuple(asked))])
    assert answers.n_right[Method.MULTIPLY] == answers.n_questions


def test_reads_categories(tmp_path):
    (tmp_path / "q").write_text(FILE)
    assert read_analogies(tmp_path / "q") == [
        Category("family", (("King", "Man", "Queen", "Woman"),)),
        Category("gram1", (("big", "bigger", "small", "smaller"),)),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a b c d\n", r"q:1: expected a category, such as ': family', got 'a b c d'"),
        (": x\na b c\n", r"q:2: expected four words, got 'a b c'"),
        (": x\n", "q: no questions"),
        ("", "q: no questions"),
    ],
)
def test_refuses_what_is_not_a_question(tmp_path, content, message):
    (tmp_path / "q").write_text(content)
    with pytest.raises(FormatError, match=message):
        read_analogies(tmp_path / "q")

"""Answer analogy questions by 3CosAdd and 3CosMul, and count the right answers.

"a is to b as c is to ?" is answered by the word d, other than the three, with the highest

- 3CosAdd: cos(d, b - a + c), the vectors having length 1 (Mikolov, Yih and Zweig 2013);
- 3CosMul: cos(d, b) cos(d, c) / (cos(d, a) + ε), the cosines moved to 0 … 1 (Levy and Goldberg 2014,
  "Linguistic regularities in sparse and explicit word representations").

Questions with a word that has no vector are left out, and counted. Words are compared in lower case, see
``lookup``: an answer that differs from the right one only by case is right, and a word that differs from one
of the three only by case is no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.vectors.evaluation.intervals import accuracy_interval
from rescorer_training.vectors.evaluation.lookup import FoldedVectors
from rescorer_training.vectors.evaluation.questions import Category
from rescorer_training.vectors.word_vectors import WordVectors

EPSILON = 1e-6
"""Keeps the quotient of 3CosMul finite; the value of gensim."""
MAX_SCORES = 1 << 22
"""Largest number of scores (questions times words) in memory at once: 16 MiB as float32."""


class Method(StrEnum):
    """How a question is answered."""

    ADD = "3CosAdd"
    MULTIPLY = "3CosMul"


@dataclass(frozen=True, slots=True)
class Answers:
    """Number of right answers to the questions of a category, or of several."""

    name: str
    n_questions: int
    n_covered: int
    """Questions of which all words have a vector."""
    n_right: dict[Method, int]

    def accuracy(self, method: Method) -> float | None:
        """Share of the covered questions with the right answer; None if none is covered."""
        return self.n_right[method] / self.n_covered if self.n_covered else None

    def interval(self, method: Method) -> tuple[float, float] | None:
        """Bootstrap interval of the accuracy, 95 %; None if no question is covered."""
        return accuracy_interval(self.n_right[method], self.n_covered) if self.n_covered else None


def answer_analogies(vectors: WordVectors, categories: Iterable[Category]) -> list[Answers]:
    """Answer the questions of every category by both methods."""
    folded = FoldedVectors(vectors)
    return [_answer_category(folded, category) for category in categories]


def sum_answers(name: str, answers: Sequence[Answers]) -> Answers:
    """Add up several categories: every question counts the same, as in published totals."""
    return Answers(
        name,
        sum(item.n_questions for item in answers),
        sum(item.n_covered for item in answers),
        {method: sum(item.n_right[method] for item in answers) for method in Method},
    )


def _answer_category(folded: FoldedVectors, category: Category) -> Answers:
    found = [rows for question in category.questions if (rows := folded.find(question))]
    right = dict.fromkeys(Method, 0)
    for block in _split(np.array(found).reshape(-1, 4), max(MAX_SCORES // len(folded.unit_rows), 1)):
        for method in Method:
            scores = score_answers(folded.unit_rows, block[:, :3], method)
            for question, row_scores in zip(block, scores, strict=True):
                for row in question[:3]:
                    row_scores[folded.rows[folded.lower(row)]] = -np.inf
            best = scores.argmax(axis=1)
            right[method] += sum(
                folded.lower(answer) == folded.lower(expected)
                for answer, expected in zip(best, block[:, 3], strict=True)
            )
    return Answers(category.name, len(category.questions), len(found), right)


def score_answers(unit_rows: np.ndarray, questions: np.ndarray, method: Method) -> np.ndarray:
    """Score every word as the answer to every question.

    Args:
        unit_rows: (V, D) float32 vectors of length 1.
        questions: (Q, 3) rows of the words a, b and c.

    Returns:
        (Q, V) float32; only the order of the words matters.
    """
    a, b, c = unit_rows[questions.T]
    if method is Method.ADD:
        return np.asarray((b - a + c) @ unit_rows.T)
    near_a, near_b, near_c = ((1 + term @ unit_rows.T) / 2 for term in (a, b, c))
    return np.asarray(near_b * near_c / (near_a + np.float32(EPSILON)))


def _split(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def summarise(categories: Sequence[Category], answers: Sequence[Answers]) -> list[Answers]:
    """Return the sums over semantic, syntactic and all questions; only the last if there is one kind.

    Raises:
        ConfigError: no question has vectors for all of its words.
    """
    total = sum_answers("total", answers)
    if not total.n_covered:
        raise ConfigError(
            f"none of the {total.n_questions:,} questions has vectors for all of its words; are the vectors "
            "in the language of the questions?"
        )
    by_kind: dict[str, list[Answers]] = {"semantic": [], "syntactic": []}
    for category, item in zip(categories, answers, strict=True):
        by_kind["syntactic" if category.is_syntactic else "semantic"].append(item)
    if not all(by_kind.values()):
        return [total]
    return [*(sum_answers(kind, items) for kind, items in by_kind.items()), total]

"""Answer sentence-completion questions by choosing the candidate that makes the sentence most probable.

Zweig & Burges (2011), "The Microsoft Research sentence completion challenge".
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import FormatError
from rescorer.score_combination import MIXTURE
from rescorer_training.data.corpus import read_lines
from rescorer_training.evaluation.model_set import ModelSet
from rescorer_training.evaluation.perplexity import BOTH_DIRECTIONS
from rescorer_training.evaluation.token_scores import score_tokens

BLANK = "_____"
LETTERS = ("a", "b", "c", "d", "e")
COLUMNS = ("question", *LETTERS, "answer")


@dataclass(frozen=True, slots=True)
class Question:
    """A sentence with one blank and the candidate words for it."""

    text: str
    candidates: tuple[str, ...]
    answer: int
    """0-based index of the correct candidate."""

    def sentences(self) -> list[str]:
        """Return the sentence once per candidate, with the blank replaced."""
        return [self.text.replace(BLANK, candidate) for candidate in self.candidates]


@dataclass(frozen=True, slots=True)
class Completion:
    """Result of one model over all questions."""

    n_questions: int
    n_correct: int
    n_unknown: int
    """Number of completed sentences that contain a word unknown to the model."""

    @property
    def accuracy(self) -> float:
        """Percentage of correct answers."""
        return 100 * self.n_correct / self.n_questions


def read_questions(path: Path) -> list[Question]:
    """Read questions from a CSV file with a header and the columns question, a, b, c, d, e, answer.

    Raises:
        FormatError: a column or a value is missing, a question does not have exactly one blank, an answer is
            not one of the letters, or there are no questions. The error names the line and the column.
    """
    reader = csv.DictReader(read_lines(path))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise FormatError(
            f"missing column {', '.join(missing)}; expected {', '.join(COLUMNS)}", file=str(path), line=1
        )
    questions = [_parse_question(row, str(path), reader.line_num) for row in reader]
    if not questions:
        raise FormatError("the file has no questions", file=str(path))
    return questions


def _parse_question(row: Mapping[str, str | None], file: str, line: int) -> Question:
    empty = [name for name in COLUMNS if not row[name]]
    if empty:
        raise FormatError("empty; every column needs a value", file=file, line=line, field=empty[0])
    text, answer = str(row["question"]), str(row["answer"]).strip().lower()
    if text.count(BLANK) != 1:
        raise FormatError(
            f"expected one {BLANK}, got {text.count(BLANK)}", file=file, line=line, field="question"
        )
    if answer not in LETTERS:
        raise FormatError(
            f"expected one of {', '.join(LETTERS)}, got {answer!r}", file=file, line=line, field="answer"
        )
    return Question(text, tuple(str(row[letter]) for letter in LETTERS), LETTERS.index(answer))


def complete(models: ModelSet, questions: Sequence[Question]) -> dict[str, Completion]:
    """Answer every question with the most probable sentence; return results by model, mixture included."""
    normalise = models.normaliser.normalise
    sentences = [normalise(text) for question in questions for text in question.sentences()]
    scores = score_tokens(models.models, sentences, "answering")
    correct = np.array([question.answer for question in questions])

    def count_correct(log_probs: np.ndarray, unknown: np.ndarray) -> Completion:
        sums = scores.sum_by_sentence(log_probs).reshape(-1, len(LETTERS))  # (Q, 5)
        chosen = sums.argmax(axis=1)
        n_unknown = int((scores.sum_by_sentence(unknown.astype(np.int64)) > 0).sum())
        return Completion(len(questions), int((chosen == correct).sum()), n_unknown)

    def scores_by_model() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        for name in models.models:
            yield name, scores.log_probs[name], scores.unknown[name]
        if models.shares:
            unknown_to_all = np.logical_and.reduce([scores.unknown[name] for name in models.shares])
            yield MIXTURE, scores.mix(models.shares), unknown_to_all
        if scores.has_both_directions:
            unknown = np.logical_or.reduce(list(scores.unknown.values()))
            yield BOTH_DIRECTIONS, scores.average_directions(scores.log_probs), unknown

    return {name: count_correct(log_probs, unknown) for name, log_probs, unknown in scores_by_model()}

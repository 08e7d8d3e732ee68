"""Owns sentence completion: five candidates for one blank, answered by the whole sentence's probability.

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
from rescorer_training.evaluation.token_scores import score_tokens

BLANK = "_____"
LETTERS = ("a", "b", "c", "d", "e")
COLUMNS = ("question", *LETTERS, "answer")


@dataclass(frozen=True, slots=True)
class Question:
    """One sentence with a blank."""

    text: str
    candidates: tuple[str, ...]
    answer: int
    """0-based place of the right candidate."""

    def sentences(self) -> list[str]:
        """The sentence with each candidate in the blank's place."""
        return [self.text.replace(BLANK, candidate) for candidate in self.candidates]


@dataclass(frozen=True, slots=True)
class Completion:
    """How one model answered."""

    n_questions: int
    n_correct: int
    n_unknown: int
    """Candidates that hold a word the model does not know."""

    @property
    def accuracy(self) -> float:
        """Per cent."""
        return 100 * self.n_correct / self.n_questions


def read_questions(path: Path) -> list[Question]:
    """Reads a CSV file with a header and the columns question, a … e, answer.

    Raises:
        FormatError: a column is missing, a question has no blank or several, or an answer is no letter.
    """
    reader = csv.DictReader(read_lines(path))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise FormatError(
            f"no column {', '.join(missing)}; expected {', '.join(COLUMNS)}", file=str(path), line=1
        )
    questions = [_question(row, str(path), reader.line_num) for row in reader]
    if not questions:
        raise FormatError("no questions in it", file=str(path))
    return questions


def _question(row: Mapping[str, str | None], file: str, line: int) -> Question:
    empty = [name for name in COLUMNS if not row[name]]
    if empty:
        raise FormatError("empty; every column needs a value", file=file, line=line, field=empty[0])
    text, answer = str(row["question"]), str(row["answer"]).strip().lower()
    if text.count(BLANK) != 1:
        raise FormatError(
            f"{text.count(BLANK)} blanks; expected one {BLANK}", file=file, line=line, field="question"
        )
    if answer not in LETTERS:
        raise FormatError(
            f"{answer!r}; expected one of {', '.join(LETTERS)}", file=file, line=line, field="answer"
        )
    return Question(text, tuple(str(row[letter]) for letter in LETTERS), LETTERS.index(answer))


def complete(models: ModelSet, questions: Sequence[Question]) -> dict[str, Completion]:
    """Answers every question with the likeliest sentence, by each model and by their mixture."""
    normalise = models.normaliser.words
    sentences = [normalise(text) for question in questions for text in question.sentences()]
    scores = score_tokens(models.models, sentences, "answering")
    right = np.array([question.answer for question in questions])

    def answered(log_probs: np.ndarray, unknown: np.ndarray) -> Completion:
        sums = scores.of_sentences(log_probs).reshape(-1, len(LETTERS))  # (Q, 5)
        chosen = sums.argmax(axis=1)
        n_unknown = int((scores.of_sentences(unknown.astype(np.int64)) > 0).sum())
        return Completion(len(questions), int((chosen == right).sum()), n_unknown)

    def columns() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        for name in models.models:
            yield name, scores.log_probs[name], scores.unknown[name]
        if models.shares:
            nobody = np.logical_and.reduce([scores.unknown[name] for name in models.shares])
            yield MIXTURE, scores.mixed(models.shares), nobody

    return {name: answered(log_probs, unknown) for name, log_probs, unknown in columns()}

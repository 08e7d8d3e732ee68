"""Questions with a blank and five candidates, and scores of the candidates."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import FormatError
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer_training.data.corpus import read_lines

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

    def context(self, normaliser: Normaliser) -> tuple[Words, Words]:
        """Return the words before the blank and those after it."""
        before, after = self.text.split(BLANK)
        return normaliser.normalise(before), normaliser.normalise(after)


@dataclass(frozen=True)
class CandidateScores:
    """What one model thinks of the candidates of Q questions."""

    values: np.ndarray
    """(Q, 5) float64; higher is better."""
    n_unknown: int
    """Number of candidates of all questions that the model does not know, or that make a sentence with a word
    that it does not know."""

    def is_correct(self, questions: Sequence[Question]) -> np.ndarray:
        """Whether the best candidate of each question is its answer, (Q,) bool; of equal ones, the first."""
        answers = np.array([question.answer for question in questions])
        return np.asarray(self.values.argmax(axis=1) == answers)


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

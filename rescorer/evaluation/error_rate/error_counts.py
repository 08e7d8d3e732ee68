"""Owns word error counts, which add up; rates are read off sums and never averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from rapidfuzz.distance import Levenshtein


@dataclass(frozen=True, slots=True)
class WordErrors:
    """What one or many hypotheses got wrong; add counts with ``+`` from ``WordErrors.zero()``."""

    substitutions: int
    deletions: int
    """Words of the reference that the hypothesis lacks."""
    insertions: int
    reference_words: int
    sentences: int
    sentences_wrong: int

    def __post_init__(self) -> None:
        """Raises ValueError on counts that no hypotheses can have: a fault of the caller's arithmetic."""
        if any(getattr(self, each.name) < 0 for each in fields(self)):
            raise ValueError(f"negative counts: {self}")
        if self.substitutions + self.deletions > self.reference_words:
            raise ValueError(f"more words wrong or missing than the reference has: {self}")
        if self.sentences_wrong > min(self.sentences, self.errors) or (
            self.errors and not self.sentences_wrong
        ):
            raise ValueError(f"errors and wrong sentences contradict each other: {self}")

    @classmethod
    def zero(cls) -> WordErrors:
        return cls(0, 0, 0, 0, 0, 0)

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Word error rate: errors per reference word; 0 for none of both, infinite for errors alone."""
        if self.reference_words:
            return self.errors / self.reference_words
        return float("inf") if self.errors else 0.0

    @property
    def accuracy(self) -> float:
        """Word accuracy, 1 - rate; insertions can make it negative."""
        return 1.0 - self.rate

    @property
    def sentence_rate(self) -> float:
        """Share of sentences with at least one error; 0 where there are none."""
        return self.sentences_wrong / self.sentences if self.sentences else 0.0


def count_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Errors of one hypothesis by minimum edit distance, every operation costing 1.

    Where several alignments have the fewest errors, their split into kinds is rapidfuzz's choice.
    """
    kinds = {"replace": 0, "delete": 0, "insert": 0}
    for operation in Levenshtein.editops(reference, hypothesis):
        kinds[operation.tag] += 1
    return WordErrors(
        substitutions=kinds["replace"],
        deletions=kinds["delete"],
        insertions=kinds["insert"],
        reference_words=len(reference),
        sentences=1,
        sentences_wrong=int(any(kinds.values())),
    )


def fewest_errors(references: Sequence[Sequence[str]], hypothesis: Sequence[str]) -> WordErrors:
    """Errors against the best fitting of several references; the first of equally good ones."""
    return min((count_errors(each, hypothesis) for each in references), key=lambda counts: counts.errors)

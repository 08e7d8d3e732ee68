"""Word error counts, which add up; error rates are computed from summed counts and never averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from rapidfuzz.distance import Levenshtein


@dataclass(frozen=True, slots=True)
class WordErrors:
    """Errors of one or more hypotheses; add counts with ``+``, starting from ``WordErrors.zero()``."""

    substitutions: int
    deletions: int
    """Reference words that the hypothesis lacks."""
    insertions: int
    reference_words: int
    sentences: int
    sentences_wrong: int

    def __post_init__(self) -> None:
        """Raises ValueError on counts that no hypothesis can have, which means a bug in the caller."""
        if any(getattr(self, count.name) < 0 for count in fields(self)):
            raise ValueError(f"negative counts: {self}")
        if self.substitutions + self.deletions > self.reference_words:
            raise ValueError(f"more substitutions and deletions than reference words: {self}")
        if self.sentences_wrong > min(self.sentences, self.errors) or (
            self.errors and not self.sentences_wrong
        ):
            raise ValueError(f"errors and wrong sentences contradict each other: {self}")

    @classmethod
    def zero(cls) -> WordErrors:
        return cls(0, 0, 0, 0, 0, 0)

    def __add__(self, other: WordErrors) -> WordErrors:
        return WordErrors(*(getattr(self, count.name) + getattr(other, count.name) for count in fields(self)))

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per reference word; without reference words, 0 if there are no errors, else infinity."""
        if self.reference_words:
            return self.errors / self.reference_words
        return float("inf") if self.errors else 0.0

    @property
    def accuracy(self) -> float:
        """Word accuracy, 1 - rate; insertions can make it negative."""
        return 1.0 - self.rate

    @property
    def sentence_rate(self) -> float:
        """Share of sentences with at least one error; 0 if there are no sentences."""
        return self.sentences_wrong / self.sentences if self.sentences else 0.0


def count_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Count the errors of a hypothesis by minimum edit distance, in which every operation costs 1.

    If several alignments have the fewest errors, rapidfuzz chooses one of them, and thereby the numbers of
    substitutions, deletions and insertions.
    """
    counts = {"replace": 0, "delete": 0, "insert": 0}
    for operation in Levenshtein.editops(reference, hypothesis):
        counts[operation.tag] += 1
    return WordErrors(
        substitutions=counts["replace"],
        deletions=counts["delete"],
        insertions=counts["insert"],
        reference_words=len(reference),
        sentences=1,
        sentences_wrong=int(any(counts.values())),
    )


def count_fewest_errors(references: Sequence[Sequence[str]], hypothesis: Sequence[str]) -> WordErrors:
    """Count the errors against the best-matching reference; against the first one if several match best."""
    return count_closest_readings(references, (hypothesis,))


def count_closest_readings(
    references: Sequence[Sequence[str]], hypotheses: Sequence[Sequence[str]]
) -> WordErrors:
    """Count the errors of the reading of a hypothesis and the reading of its reference that match best.

    Among equally good pairs, the first reading of the reference counts, then the first of the hypothesis.
    """
    if len(references) == len(hypotheses) == 1:
        return count_errors(references[0], hypotheses[0])
    closest, fewest = (references[0], hypotheses[0]), None
    for reference in references:
        for hypothesis in hypotheses:
            errors = Levenshtein.distance(reference, hypothesis, score_cutoff=fewest)
            if fewest is None or errors < fewest:
                closest, fewest = (reference, hypothesis), errors
    return count_errors(*closest)

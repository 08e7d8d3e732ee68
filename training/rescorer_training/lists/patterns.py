"""Where the hypotheses of a list are right, wrong and different: the pattern that a made list imitates.

Every hypothesis is aligned with the reference. At each word of the reference it is right, lacks the word, or
has one of the wrong words that some hypothesis has there; in each gap between words it has nothing, or some
inserted words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from rapidfuzz.distance import Levenshtein

RIGHT, DELETED = 0, -1
"""Outcomes at a word of the reference; 1, 2, … are distinct wrong words. In a gap, 0 is nothing, and 1, 2, …
are distinct insertions."""
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The outcomes of H hypotheses at M reference words and in the M + 1 gaps around them."""

    words: np.ndarray
    """(H, M) int64."""
    gaps: np.ndarray
    """(H, M + 1) int64; gap j is before reference word j."""
    wrong: tuple[Words, ...]
    """The wrong words at each reference word; outcome k is the k-th."""
    inserted: tuple[tuple[Words, ...], ...]
    """The insertions in each gap."""

    @property
    def n_words(self) -> int:
        """Length of the reference."""
        return self.words.shape[1]

    def stretch(self, n_words: int) -> Pattern:
        """The pattern for a reference of another length: words are repeated or left out at even distances.

        The gap before a repeated word keeps its insertions once.
        """
        n_gaps = self.n_words
        source = (np.arange(n_words) * 2 + 1) * self.n_words // (2 * n_words)
        is_first = np.append(True, np.diff(source) > 0)
        gaps = np.where(is_first, self.gaps[:, source], 0)
        return Pattern(
            self.words[:, source],
            np.concatenate([gaps, self.gaps[:, n_gaps:]], axis=1),
            tuple(self.wrong[j] for j in source),
            (*(self.inserted[j] for j in source), self.inserted[n_gaps]),
        )

    def errors(self) -> np.ndarray:
        """Substitutions, deletions and insertions of each hypothesis, (H, 3) int64."""
        lengths = [np.array([0, *map(len, insertions)]) for insertions in self.inserted]
        inserted = sum(length[self.gaps[:, j]] for j, length in enumerate(lengths))
        return np.stack([(self.words > 0).sum(1), (self.words == DELETED).sum(1), inserted], axis=1)


def find_pattern(reference: Words, hypotheses: Sequence[Words]) -> Pattern:
    """Align hypotheses with their reference by the fewest errors."""
    words = np.zeros((len(hypotheses), len(reference)), dtype=np.int64)
    gaps = np.zeros((len(hypotheses), len(reference) + 1), dtype=np.int64)
    wrong: list[dict[str, int]] = [{} for _ in reference]
    inserted: list[dict[Words, int]] = [{} for _ in range(len(reference) + 1)]
    for row, hypothesis in enumerate(hypotheses):
        for edit in Levenshtein.opcodes(reference, hypothesis):
            heard = hypothesis[edit.dest_start : edit.dest_end]
            if edit.tag == "replace":
                for position, word in zip(range(edit.src_start, edit.src_end), heard, strict=True):
                    words[row, position] = wrong[position].setdefault(word, len(wrong[position]) + 1)
            elif edit.tag == "delete":
                words[row, edit.src_start : edit.src_end] = DELETED
            elif edit.tag == "insert":
                known = inserted[edit.src_start]
                gaps[row, edit.src_start] = known.setdefault(heard, len(known) + 1)
    return Pattern(words, gaps, tuple(map(tuple, wrong)), tuple(map(tuple, inserted)))


def apply_pattern(
    pattern: Pattern, reference: Words, wrong: Sequence[Words], inserted: Sequence[Sequence[Words]]
) -> list[Words]:
    """The hypotheses of a pattern with other words; the inverse of ``find_pattern``.

    Args:
        wrong: as many wrong words at each reference word as the pattern has.
        inserted: as many insertions in each gap as the pattern has.
    """
    n_words = len(reference)
    pieces: list[list[Words]] = []  # outcomes in the order of speech: gap 0, word 0, gap 1, …
    for j in range(n_words + 1):
        pieces.append([(), *inserted[j]])
        if j < n_words:
            pieces.append([(reference[j],), *((word,) for word in wrong[j]), ()])  # the last: DELETED
    outcomes = np.zeros((len(pattern.words), 2 * n_words + 1), dtype=np.int64)
    outcomes[:, ::2], outcomes[:, 1::2] = pattern.gaps, pattern.words
    changing = np.flatnonzero(outcomes.any(axis=0))
    if not len(changing):
        return [reference] * len(outcomes)
    hypotheses = []
    bounds = [*changing.tolist(), 2 * n_words + 1]
    fixed = [reference[bound // 2 + bound % 2 : after // 2] for bound, after in pairwise(bounds)]
    start = reference[: bounds[0] // 2]
    chosen = [pieces[bound] for bound in changing]
    for row in outcomes[:, changing].tolist():
        words = list(start)
        for outcome, options, rest in zip(row, chosen, fixed, strict=True):
            words += options[outcome]
            words += rest
        hypotheses.append(tuple(words))
    return hypotheses

"""Count which words are confused, deleted and inserted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rescorer.evaluation.error_analysis.aligned_text import Alignment


@dataclass(frozen=True, slots=True)
class Confusions:
    """Numbers of errors by word."""

    substitutions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By reference word and the word recognised instead."""
    deletions: Counter[str] = field(default_factory=Counter)
    insertions: Counter[str] = field(default_factory=Counter)


def count_confusions(alignments: Iterable[Alignment]) -> Confusions:
    """Count the errors of aligned texts by their words."""
    found = Confusions()
    for alignment in alignments:
        for reference, hypothesis in alignment:
            if reference is None:
                found.insertions[hypothesis or ""] += 1
            elif hypothesis is None:
                found.deletions[reference] += 1
            elif reference != hypothesis:
                found.substitutions[reference, hypothesis] += 1
    return found

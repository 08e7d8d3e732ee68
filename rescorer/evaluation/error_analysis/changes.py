"""Find the words that one system has wrong and another has right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rescorer.evaluation.error_analysis.aligned_text import Alignment


@dataclass(frozen=True, slots=True)
class Changes:
    """Numbers of words whose errors changed, by word."""

    fixed: Counter[str] = field(default_factory=Counter)
    """Reference words that were wrong before and are right after."""
    broken: Counter[str] = field(default_factory=Counter)
    """Reference words that were right before and are wrong after."""
    insertions_removed: Counter[str] = field(default_factory=Counter)
    insertions_added: Counter[str] = field(default_factory=Counter)


def count_changes(pairs: Iterable[tuple[Alignment, Alignment]]) -> Changes:
    """Count the changes between two alignments, before and after, of each text with the same reference.

    Where a reference has alternatives and the two follow different readings, only words of both readings are
    compared.
    """
    changes = Changes()
    for before, after in pairs:
        right_before, right_after = _find_right_words(before), _find_right_words(after)
        for key, was_right in right_before.items():  # in the order of the text, unlike a set of keys
            is_right = right_after.get(key, was_right)
            if is_right != was_right:
                word, _ = key
                (changes.fixed if is_right else changes.broken)[word] += 1
        inserted_before, inserted_after = _count_insertions(before), _count_insertions(after)
        changes.insertions_removed.update(inserted_before - inserted_after)
        changes.insertions_added.update(inserted_after - inserted_before)
    return changes


def _find_right_words(alignment: Alignment) -> dict[tuple[str, int], bool]:
    """Whether each reference word is right, by the word and the number of its earlier occurrences."""
    seen: Counter[str] = Counter()
    is_right: dict[tuple[str, int], bool] = {}
    for pair in alignment:
        if pair.reference is not None:
            is_right[pair.reference, seen[pair.reference]] = pair.kind == "correct"
            seen[pair.reference] += 1
    return is_right


def _count_insertions(alignment: Alignment) -> Counter[str]:
    return Counter(pair.hypothesis for pair in alignment if pair.reference is None and pair.hypothesis)

"""Divide errors by properties of words (frequency, unknown) or of lists (length, depth of the winner)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from rescorer.evaluation.error_analysis.aligned_text import Alignment

FREQUENCY_LIMITS = (1, 3, 10, 30, 100, 300, 1000)
LENGTH_LIMITS = (5, 10, 15, 20, 30, 50)
DEPTH_LIMITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Upper limits of the ranges, inclusive; a last range has no limit."""


@dataclass(frozen=True, slots=True)
class Part:
    """The errors of some of the words or lists, before and after rescoring."""

    name: str
    items: int
    """Number of reference words, for parts by word; else the number of lists."""
    reference_words: int
    errors_before: int
    errors_after: int

    def rate(self, errors: int) -> float | None:
        """Errors per reference word; None without reference words."""
        return errors / self.reference_words if self.reference_words else None


def name_range(value: int, limits: Sequence[int]) -> str:
    """The range in which a number lies.

    >>> name_range(1, (1, 5)), name_range(3, (1, 5)), name_range(9, (1, 5)), name_range(2, (5, 9))
    ('1', '2–5', '6+', 'up to 5')
    """
    index = bisect_left(limits, value)
    if index == 0:
        return str(limits[0]) if limits[0] == 1 else f"up to {limits[0]}"
    low = limits[index - 1] + 1
    if index == len(limits):
        return f"{low}+"
    return str(low) if low == limits[index] else f"{low}–{limits[index]}"


def divide_words(
    pairs: Sequence[tuple[Alignment, Alignment]], name: Callable[[str], tuple[int, str]]
) -> list[Part]:
    """Count reference words that are wrong (substituted or deleted) before and after, by part.

    Args:
        pairs: the alignments of each text before and after.
        name: sort key and name of the part to which a reference word belongs.

    Insertions belong to no reference word and are not counted.
    """
    words: Counter[tuple[int, str]] = Counter()
    wrong: tuple[Counter[tuple[int, str]], ...] = (Counter(), Counter())
    for pair in pairs:
        words.update(name(word) for word, _ in pair[0] if word is not None)
        for counts, alignment in zip(wrong, pair, strict=True):
            counts.update(name(word) for word, heard in alignment if word is not None and word != heard)
    return [Part(key[1], words[key], words[key], wrong[0][key], wrong[1][key]) for key in sorted(words)]


def divide_by_frequency(pairs: Sequence[tuple[Alignment, Alignment]]) -> list[Part]:
    """Divide reference words by how often they occur in the references."""
    frequency = Counter(word for before, _ in pairs for word, _ in before if word is not None)

    def name(word: str) -> tuple[int, str]:
        count = max(frequency[word], 1)  # only the other reading of a reference has the word
        return bisect_left(FREQUENCY_LIMITS, count), name_range(count, FREQUENCY_LIMITS)

    return divide_words(pairs, name)


def divide_by_known(pairs: Sequence[tuple[Alignment, Alignment]], unknown: Collection[str]) -> list[Part]:
    """Divide reference words into those that the language models know, and those that they do not."""
    return divide_words(pairs, lambda word: (1, "unknown") if word in unknown else (0, "known"))


def find_unknown_words(
    texts: Iterable[str],
    unknown: Collection[str],
    read: Callable[[str], Sequence[str]],
    counted: Callable[[str], Sequence[str]],
) -> set[str]:
    """Return the words of texts, as errors are counted, that language models do not know.

    A token may have other words where models read it than where errors are counted: ``$5`` is read as ``5``.

    Args:
        unknown: words that the models read and do not know.
        read: gives the words that models read.
        counted: gives the words in which errors are counted.
    """
    found = set[str]()
    for token in {token for text in texts for token in text.split()}:
        words, read_words = counted(token), read(token)
        if len(words) == len(read_words):
            found.update(
                word for word, known_as in zip(words, read_words, strict=True) if known_as in unknown
            )
        else:
            found.update(word for word in words if any(known_as in unknown for known_as in read(word)))
    return found


def divide_lists(lists: Iterable[tuple[int, int, int, int]], limits: Sequence[int]) -> list[Part]:
    """Sum the errors of lists by the range in which a property of the list lies.

    Args:
        lists: per list, the property (such as its length), its reference words, and its errors before and
            after.
    """
    parts: dict[int, Part] = {}
    for value, words, before, after in lists:
        index = bisect_left(limits, value)
        part = parts.get(index, Part(name_range(value, limits), 0, 0, 0, 0))
        parts[index] = Part(
            part.name,
            part.items + 1,
            part.reference_words + words,
            part.errors_before + before,
            part.errors_after + after,
        )
    return [parts[index] for index in sorted(parts)]

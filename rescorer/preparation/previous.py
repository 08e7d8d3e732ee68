"""Bound the utterances before a list, and join them with the context of its own sentence.

A model that carries its state across sentence boundaries reads ``history``: the words of each previous
utterance, ``SENTENCE_END`` after each, then the context of the sentence that is rescored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rescorer.conversation import Utterance
from rescorer.trie import SENTENCE_END, Words

MAX_PREVIOUS_WORDS = 1000
"""Largest number of words before a list that models and rerankers read; of a longer past, the newest."""
STEP = 16
"""A past that is too long is cut at a multiple of this many utterances. The beginning of a growing session
then stays the same for several requests, so that caches have the states of networks after it."""


class SpokenWords(NamedTuple):
    """An utterance that models read."""

    words: Words
    """Canonical words, at least one."""
    confidence: float
    """Confidence of the utterance."""


def normalise_previous(
    previous: Sequence[Utterance], normalise: Callable[[str], Words]
) -> tuple[SpokenWords, ...]:
    """Return the canonical words of the newest utterances, oldest first, at most ``MAX_PREVIOUS_WORDS``.

    Utterances without canonical words are left out. If the newest other utterance alone is too long, its last
    words remain.
    """
    newest: list[SpokenWords] = []
    n_words, first = 0, len(previous)
    while first and n_words < MAX_PREVIOUS_WORDS:
        words = normalise(previous[first - 1].text)
        if n_words + len(words) > MAX_PREVIOUS_WORDS:
            break
        newest.append(SpokenWords(words, previous[first - 1].confidence))
        n_words += len(words)
        first -= 1
    if not n_words and first:  # the newest utterance with words is too long
        words = normalise(previous[first - 1].text)[-MAX_PREVIOUS_WORDS:]
        return (SpokenWords(words, previous[first - 1].confidence),)
    surplus = -first % STEP  # up to the next place at which a long past may be cut
    kept = newest[: len(newest) - surplus] if surplus < len(newest) else newest
    if not any(spoken.words for spoken in kept):
        kept = newest
    return tuple(spoken for spoken in reversed(kept) if spoken.words)


def collect_confidences(previous: Iterable[SpokenWords]) -> tuple[float, ...]:
    """Return the confidence of each utterance; nothing if all are certain."""
    confidences = tuple(utterance.confidence for utterance in previous)
    return confidences if any(value < 1 for value in confidences) else ()


def join_history(previous: Iterable[Words], context: Words) -> Words:
    """Return the words of previous utterances, ``SENTENCE_END`` after each, then those of the context."""
    return tuple(word for words in previous for word in (*words, SENTENCE_END)) + context


def join_words(previous: Iterable[Words], context: Words) -> Words:
    """Return all words that were said before, without the ends of sentences."""
    return tuple(word for words in previous for word in words) + context


def last_sentence(history: Words) -> Words:
    """Return the words of a history that belong to the sentence of the hypotheses."""
    ends = [i for i, word in enumerate(history) if word == SENTENCE_END]
    return history[ends[-1] + 1 :] if ends else history

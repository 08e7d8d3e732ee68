"""Guess how words sound that no dictionary has, by what their letters sound like in a dictionary's words.

Each letter of the dictionary stands for no, one or two phones, by the alignment that is most likely under
counts of letters and phones. A new letter gets those of the longest known context of letters around it: a
tree of exceptions (IGTree, Daelemans & van den Bosch 1997), kept as one sorted array per length of context.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from rescorer.candidates.phones import PHONES, Phones

ALPHABET = "'abcdefghijklmnopqrstuvwxyz"
LETTERS = {letter: number for number, letter in enumerate(ALPHABET, start=1)}
BASE = len(ALPHABET) + 1  # 0 is beyond the ends of a word
OFFSETS = (0, 1, -1, 2, -2, 3, -3, 4, -4)
"""Places of the letters of a context, the most important first."""
REACH = max(OFFSETS)
BETWEEN_WORDS = (0,) * REACH
"""Stand between words in a row, so that no context reaches into another word."""
ROUNDS = 4
"""Number of times that alignments and counts are computed from each other."""
SAMPLE = 8
"""The counts are of every so many words of each length."""
SMOOTHING = 0.1
N_PHONES = len(PHONES)
PAIRS = 1 + N_PHONES
"""First number of two phones. The sounds of a letter are 0 for none, 1 + phone for one, and
``PAIRS + N_PHONES * first + second`` for two."""
N_SOUNDS = PAIRS + N_PHONES * N_PHONES


@dataclass(frozen=True, slots=True)
class Level:
    """What letters sound like in contexts of one length, where shorter contexts are wrong."""

    keys: np.ndarray
    """(N,) int64, ascending; letters of the contexts as digits of base ``BASE``."""
    sounds: np.ndarray
    """(N,) int16."""


class LetterToSound:
    """Pronounces words by their letters.

    Args:
        words: phones by word, of a dictionary. That of 126,000 words takes one core 2 s; of 3,000 words that
            are left out, 9 % of the phones are then wrong.
    """

    def __init__(self, words: Mapping[str, Phones]) -> None:
        contexts, sounds = _align_all(words)
        keys = np.zeros(len(sounds), dtype=np.int64)
        predicted = np.full(len(sounds), -1, dtype=np.int64)
        self._levels = []
        for place in range(len(OFFSETS)):
            keys = keys * BASE + contexts[:, place]
            level, predicted, is_open = _find_exceptions(keys, sounds, predicted)
            self._levels.append(level)
            keys, sounds, predicted = keys[is_open], sounds[is_open], predicted[is_open]
            contexts = contexts[is_open]

    def pronounce(self, word: str) -> Phones:
        """Return the most likely phones of a word; none if it has no letters of the English alphabet."""
        (phones,) = self.pronounce_each([word])
        return phones

    def pronounce_each(self, words: Sequence[str]) -> list[Phones]:
        """Return the phones of each word, as ``pronounce`` does; many at once take much less time."""
        spelled = [spell(word) for word in words]
        row = np.array(
            [letter for letters in spelled for letter in (*letters, *BETWEEN_WORDS)], dtype=np.int64
        )
        contexts = _contexts(row[None])[0][row > 0]
        keys = np.zeros(len(contexts), dtype=np.int64)
        sounds = np.zeros(len(contexts), dtype=np.int64)
        for place, level in enumerate(self._levels):
            keys = keys * BASE + contexts[:, place]
            sounds = _apply(level, keys, sounds)
        of_letters = map(_phones_of, sounds.tolist())
        return [bytes(chain.from_iterable(islice(of_letters, len(letters)))) for letters in spelled]


def spell(word: str) -> list[int]:
    """Numbers of the letters of a word; accents and everything else are dropped."""
    plain = word if word.isascii() else unicodedata.normalize("NFKD", word)
    return [LETTERS[letter] for letter in plain.lower() if letter in LETTERS]


def _phones_of(sound: int) -> tuple[int, ...]:
    if sound < PAIRS:
        return (sound - 1,) if sound else ()
    return divmod(sound - PAIRS, N_PHONES)


def _contexts(letters: np.ndarray) -> np.ndarray:
    """The letters around each letter of words of one length: (W, L) to (W, L, len(OFFSETS))."""
    padded = np.pad(letters, ((0, 0), (REACH, REACH)))
    length = letters.shape[1]
    return np.stack([padded[:, REACH + k : REACH + k + length] for k in OFFSETS], axis=2)


def _find_exceptions(
    keys: np.ndarray, sounds: np.ndarray, predicted: np.ndarray
) -> tuple[Level, np.ndarray, np.ndarray]:
    """Find the most frequent sounds in each context, where these are not what is predicted already.

    Args:
        keys, sounds, predicted: (N,), of all letters; letters with the same context are predicted alike.

    Returns:
        The exceptions; what is predicted with them, (N,); and which letters are in contexts that still have
        several sounds, (N,) bool.
    """
    contexts, context = np.unique(keys, return_inverse=True)
    pairs, counts = np.unique(context * N_SOUNDS + sounds, return_counts=True)
    order = np.lexsort((-counts, pairs // N_SOUNDS))  # of equally frequent ones, those with the least number
    n_sounds = np.bincount(pairs // N_SOUNDS)
    best = (pairs[order] % N_SOUNDS)[np.cumsum(n_sounds) - n_sounds]
    before = np.empty_like(best)
    before[context] = predicted
    is_new = best != before
    return Level(contexts[is_new], best[is_new].astype(np.int16)), best[context], (n_sounds > 1)[context]


def _apply(level: Level, keys: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    if not len(level.keys):
        return predicted
    places = np.minimum(np.searchsorted(level.keys, keys), len(level.keys) - 1)
    return np.where(level.keys[places] == keys, level.sounds[places], predicted)


def _align_all(words: Mapping[str, Phones]) -> tuple[np.ndarray, np.ndarray]:
    """Align all words; return the contexts, (N, len(OFFSETS)), and the sounds, (N,), of all letters."""
    groups: dict[tuple[int, int], list[tuple[list[int], Phones]]] = {}
    for word, phones in words.items():
        letters = spell(word)
        if 0 < len(phones) <= 2 * len(letters):
            groups.setdefault((len(letters), len(phones)), []).append((letters, phones))
    shapes = [
        (np.array([letters for letters, _ in group]), np.array([list(phones) for _, phones in group]))
        for group in groups.values()
    ]
    counts = _first_counts(shapes)
    for _ in range(ROUNDS):
        sample = [(spelled[::SAMPLE], spoken[::SAMPLE]) for spelled, spoken in shapes]
        costs = -np.log(counts / counts.sum(axis=1, keepdims=True))
        counts = np.full((BASE, N_SOUNDS), SMOOTHING / N_SOUNDS)
        for spelled, spoken in sample:
            np.add.at(counts, (spelled.ravel(), _align(spelled, spoken, costs).ravel()), 1.0)
    costs = -np.log(counts / counts.sum(axis=1, keepdims=True))
    aligned = [_align(spelled, spoken, costs) for spelled, spoken in shapes]
    contexts = np.concatenate([_contexts(spelled).reshape(-1, len(OFFSETS)) for spelled, _ in shapes])
    return contexts, np.concatenate([sounds.ravel() for sounds in aligned])


def _first_counts(shapes: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Counts of letters with the phones at about the same place of the word."""
    counts = np.full((BASE, N_SOUNDS), SMOOTHING / N_SOUNDS)
    for letters, phones in shapes:
        length, n_phones = letters.shape[1], phones.shape[1]
        for i in range(length):
            middle = (i * n_phones) // length
            for j in range(max(0, middle - 1), min(n_phones, middle + 2)):
                np.add.at(counts, (letters[:, i], 1 + phones[:, j]), 1.0)
    totals = counts.sum(axis=1)
    counts[:, 0] += 0.1 * totals
    counts[:, PAIRS:] += 0.01 * totals[:, None] / N_PHONES**2
    return counts


def _align(letters: np.ndarray, phones: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """The least costly sounds of the letters of words of one length, (W, L) with (W, M) phones to (W, L)."""
    n_words, length = letters.shape
    n_phones = phones.shape[1]
    ends = np.full((n_words, n_phones + 1), np.inf)  # cost of having used so many phones
    ends[:, 0] = 0.0
    taken = np.zeros((length, n_words, n_phones + 1), dtype=np.int8)
    pairs = PAIRS + N_PHONES * phones[:, :-1] + phones[:, 1:]
    for i in range(length):
        letter = letters[:, i, None]
        none = ends + costs[letter, 0]
        one, two = np.full_like(ends, np.inf), np.full_like(ends, np.inf)
        one[:, 1:] = ends[:, :-1] + costs[letter, 1 + phones]
        two[:, 2:] = ends[:, :-2] + costs[letter, pairs]
        taken[i] = np.where(two < np.minimum(none, one), 2, one < none)
        ends = np.minimum(np.minimum(none, one), two)
    sounds = np.zeros((n_words, length), dtype=np.int64)
    used, rows = np.full(n_words, n_phones), np.arange(n_words)
    for i in range(length - 1, -1, -1):
        count = taken[i][rows, used].astype(np.int64)
        last = phones[rows, np.maximum(used - 1, 0)]
        first = phones[rows, np.maximum(used - 2, 0)]
        sounds[:, i] = np.where(
            count == 0, 0, np.where(count == 1, 1 + last, PAIRS + N_PHONES * first + last)
        )
        used -= count
    return sounds

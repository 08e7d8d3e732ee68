"""The parts of made lists: sentences, pronunciations, probabilities in context, and patterns of errors.

A pattern describes the errors of a list without its words. Every hypothesis is aligned with the reference. At
each word of the reference, a hypothesis either has the word, or lacks it, or has one of several wrong words.
In each gap between words, it has nothing or one of several insertions.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from rescorer.errors import ConfigError, FormatError
from rescorer.models.ngram_files import read_ngram
from rescorer.text import Normaliser
from rescorer.trie import build_trie
from rescorer.types import NBestList
from rescorer_training.corpus import read_lines, read_sentences

VARIANT = re.compile(r"\(\d+\)$")
STRESS = re.compile(r"\d$")
COMMENT = ";;;"
FIRST_CHARACTER = 0x100
PHONE_CLASSES = (
    "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW",
    "P B T D K G CH JH",
    "F V TH DH S Z SH ZH HH",
    "M N NG",
    "L R W Y",
)
"""Classes of phones of the CMU dictionary. Phones of one class are confused more often than others."""


class Pronunciations:
    """A pronunciation dictionary in the format of the CMU dictionary: ``word PH ON ES``, ``word(2) …``."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Parse the lines of a dictionary, taking the first pronunciation of each word.

        Raises:
            ValueError: no line has a word.
        """
        self._characters: dict[str, str] = {}
        self._words: dict[str, str] = {}
        for line in lines:
            word, *phones = (line.split() if not line.startswith(COMMENT) else []) or [""]
            if phones and not VARIANT.search(word):
                self._words.setdefault(word.lower(), "".join(map(self._character, phones)))
        if not self._words:
            raise ValueError("expected lines of a word and its phones")
        self._spellings = list(self._words)

    @classmethod
    def read(cls, path: Path) -> Pronunciations:
        """Read a dictionary; raises FormatError if the file cannot be read or is not a dictionary."""
        try:
            return cls(read_lines(path))
        except ValueError as error:
            raise FormatError(str(error), file=str(path)) from None

    def _character(self, phone: str) -> str:
        name = STRESS.sub("", phone).upper()
        return self._characters.setdefault(name, chr(FIRST_CHARACTER + len(self._characters)))

    @property
    def phones(self) -> list[str]:
        """Names of the phones, in the order of their numbers."""
        return list(self._characters)

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def __getitem__(self, word: str) -> str:
        """Return the phones of a word; for an unknown word, those of the known word spelled most like it."""
        if word not in self._words:
            nearest = process.extractOne(word, self._spellings, scorer=Levenshtein.normalized_distance)
            self._words[word] = self._words[nearest[0]]
        return self._words[word]


def phone_numbers(pronunciation: str) -> np.ndarray:
    """Return the numbers of the phones of a pronunciation, (P,) int64."""
    return np.array([ord(character) - FIRST_CHARACTER for character in pronunciation], dtype=np.int64)


class PhoneCosts:
    """Costs of replacing, losing or adding a phone: −ln of probabilities, learned from pronunciations.

    Counts are smoothed: every phone counts as ``PRIOR_RIGHT`` times right and a few times wrong, more often
    for another phone of the same class.
    """

    PRIOR_RIGHT, PRIOR_CLASS, PRIOR_OTHER, PRIOR_GAP = 20.0, 2.0, 0.5, 4.0

    def __init__(self, phones: list[str], pairs: Iterable[tuple[str, str, float]] = ()) -> None:
        """Count which phones correspond in pairs of pronunciations. ``pairs`` has (right, heard, weight)."""
        size = len(phones)
        class_of = {phone: index for index, group in enumerate(PHONE_CLASSES) for phone in group.split()}
        classes = np.array([class_of.get(phone, -1) for phone in phones])
        same = classes[:, None] == classes[None, :]
        counts = np.where(same, self.PRIOR_CLASS / np.maximum(same.sum(1) - 1, 1)[:, None], 0.0)
        counts += self.PRIOR_OTHER / size
        np.fill_diagonal(counts, self.PRIOR_RIGHT)
        lost = np.full(size, self.PRIOR_GAP / 2)
        added = self.PRIOR_GAP / 2
        for right, heard, weight in pairs:
            for edit in Levenshtein.opcodes(right, heard):
                source = phone_numbers(right[edit.src_start : edit.src_end])
                target = phone_numbers(heard[edit.dest_start : edit.dest_end])
                if edit.tag in ("equal", "replace"):
                    np.add.at(counts, (source, target), weight)
                elif edit.tag == "delete":
                    np.add.at(lost, source, weight)
                else:
                    added += weight * len(target)
        totals = counts.sum(axis=1) + lost
        self.replace = -np.log(counts / totals[:, None])
        """(P, P) float64 cost of hearing the second phone instead of the first."""
        self.lose = -np.log(lost / totals)
        """(P,) float64 cost of losing each phone."""
        self.add = float(-np.log(added / (added + totals.sum())))

    def distances(self, right: str, heard: list[str]) -> np.ndarray:
        """Compute the least cost of turning a pronunciation into each of several others, (N,) float64."""
        source = phone_numbers(right)
        width = max(map(len, heard))
        targets = np.zeros((len(heard), width), dtype=np.int64)
        for row, pronunciation in enumerate(heard):
            targets[row, : len(pronunciation)] = phone_numbers(pronunciation)
        cells = np.tile(np.arange(width + 1) * self.add, (len(heard), 1))
        for phone in source:
            before, cells = cells, np.empty_like(cells)
            cells[:, 0] = before[:, 0] + self.lose[phone]
            best = np.minimum(before[:, :-1] + self.replace[phone, targets], before[:, 1:] + self.lose[phone])
            for column in range(width):
                np.minimum(best[:, column], cells[:, column] + self.add, out=cells[:, column + 1])
        result: np.ndarray = cells[np.arange(len(heard)), [len(pronunciation) for pronunciation in heard]]
        return result


DELETED = -1
"""Number of the outcome at a reference word if a hypothesis lacks the word.

0 stands for the word itself, and 1, 2, … for distinct wrong words. In a gap, 0 stands for nothing, and 1, 2,
… for distinct insertions.
"""
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The outcomes of H hypotheses at M reference words and in the M + 1 gaps around them."""

    words: np.ndarray
    """(H, M) int64 outcome of each hypothesis at each reference word."""
    gaps: np.ndarray
    """(H, M + 1) int64 outcome of each hypothesis in each gap. Gap j is before reference word j."""
    wrong: tuple[Words, ...]
    """The wrong words at each reference word. Outcome k stands for the k-th of them."""
    inserted: tuple[tuple[Words, ...], ...]
    """The insertions in each gap. Outcome k stands for the k-th of them."""

    @property
    def n_words(self) -> int:
        """Length of the reference."""
        return self.words.shape[1]

    def stretch(self, n_words: int) -> Pattern:
        """Fit the pattern to a reference of another length: repeat or leave out words at even distances.

        If a word is repeated, the insertions before it are not.
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
        """Count substitutions, deletions and insertions of each hypothesis, (H, 3) int64."""
        lengths = [np.array([0, *map(len, insertions)]) for insertions in self.inserted]
        inserted = sum(length[self.gaps[:, j]] for j, length in enumerate(lengths))
        return np.stack([(self.words > 0).sum(1), (self.words == DELETED).sum(1), inserted], axis=1)


def find_pattern(reference: Words, hypotheses: Sequence[Words]) -> Pattern:
    """Find the pattern of hypotheses by aligning them with their reference, with the fewest errors."""
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
    """Make hypotheses by a pattern from the words of another reference: the inverse of ``find_pattern``.

    Args:
        wrong: for each reference word, as many wrong words as the pattern has there.
        inserted: for each gap, as many insertions as the pattern has there.
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


class CountModel:
    """Relative counts of words, whatever the context. A word without a count is counted once."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        total = sum(counts.values()) + 1
        self._log_probs = {word: math.log(count / total) for word, count in counts.items()}
        self._unknown = -math.log(total)

    def log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        """Compute ln P of each of several words after the words of a sentence so far, (N,) float64."""
        return np.array([self._log_probs.get(word, self._unknown) for word in words])

    def score(self, words: Words) -> float:
        """Compute ln P of a sentence."""
        return float(self.log_probs((), words).sum())


class NGramContext:
    """An n-gram model in a file, such as an ARPA file."""

    def __init__(self, path: Path) -> None:
        """Load the model; raises RescorerError if the file is not an n-gram model."""
        self._model = read_ngram(path)

    def log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        return self._model.next_log_probs(context, words)

    def score(self, words: Words) -> float:
        return float(self._model.score(build_trie([tuple(words)])).log_probs.sum())


ContextModel = CountModel | NGramContext


DIGITS = re.compile("[0-9]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the texts."""

    key: str
    """Hexadecimal hash of the seed and the words. It orders sentences and seeds random numbers."""
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def random(self) -> np.random.Generator:
        """Make a generator of random numbers that depends only on the sentence and the seed."""
        return np.random.default_rng(int(self.key, 16))


@dataclass(frozen=True, slots=True)
class Choice:
    """Number and lengths of the sentences to choose, and the random seed."""

    n_sentences: int
    seed: int
    min_words: int
    max_words: int


def choose_sentences(
    paths: Sequence[Path], normaliser: Normaliser, choice: Choice, excluded: Collection[tuple[str, ...]]
) -> list[Sentence]:
    """Draw distinct sentences at random. With the same seed, a larger draw includes every smaller one.

    Sentences with digits are left out, because they can be read aloud in several ways.

    Args:
        excluded: normalised words of sentences that must not be chosen.

    Raises:
        ConfigError: no sentence fits.
        FormatError: a text cannot be read.
    """
    chosen: list[tuple[int, tuple[str, ...]]] = []  # a heap, the largest hash first
    members: set[int] = set()
    for words in read_sentences(paths, normaliser, "choosing sentences"):
        if not choice.min_words <= len(words) <= choice.max_words or words in excluded:
            continue
        text = " ".join(words)
        number = int.from_bytes(hashlib.blake2b(f"{choice.seed} {text}".encode(), digest_size=8).digest())
        is_full = len(chosen) == choice.n_sentences
        if number in members or (is_full and number > -chosen[0][0]) or DIGITS.search(text):
            continue
        members.add(number)
        if is_full:
            members.discard(-heapq.heapreplace(chosen, (-number, words))[0])
        else:
            heapq.heappush(chosen, (-number, words))
    if not chosen:
        lengths = f"{choice.min_words} to {choice.max_words} words"
        raise ConfigError(f"the texts have no sentence of {lengths} without digits that is not excluded")
    return [Sentence(f"{-negative:016x}", words) for negative, words in sorted(chosen, reverse=True)]


def reference_words(lists: Iterable[NBestList], normaliser: Normaliser) -> set[tuple[str, ...]]:
    """Return the normalised words of the references of lists."""
    return {normaliser.normalise(nbest.reference) for nbest in lists if nbest.reference is not None}

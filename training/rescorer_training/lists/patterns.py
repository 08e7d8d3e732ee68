"""Parts of made lists: sentences, pronunciations, probabilities in context, and patterns of errors.

A pattern says where the hypotheses of a list are right, wrong and different: every hypothesis is aligned with
the reference. At each word of the reference it is right, lacks the word, or has one of the wrong words that
some hypothesis has there; in each gap between words it has nothing, or some inserted words.
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
"""Phones of the CMU dictionary that are confused more often with one another than with others."""


class Pronunciations:
    """A pronunciation dictionary in the form of the CMU dictionary: ``word PH ON ES``, ``word(2) …``."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Parse a dictionary; the first pronunciation of a word counts.

        Raises:
            ValueError: there is no word in it.
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
        """Names of the phones; the number of a phone is its index."""
        return list(self._characters)

    def __contains__(self, word: str) -> bool:
        return word in self._words

    def __getitem__(self, word: str) -> str:
        """The phones of a word; of an unknown word, those of the known word that is spelled most like it."""
        if word not in self._words:
            nearest = process.extractOne(word, self._spellings, scorer=Levenshtein.normalized_distance)
            self._words[word] = self._words[nearest[0]]
        return self._words[word]


def phone_numbers(pronunciation: str) -> np.ndarray:
    """Numbers of the phones of a pronunciation, (P,) int64."""
    return np.array([ord(character) - FIRST_CHARACTER for character in pronunciation], dtype=np.int64)


class PhoneCosts:
    """−ln of the probability that a phone is replaced, lost or added, learned from pairs of pronunciations.

    Counts are smoothed: every phone is taken to have been right ``PRIOR_RIGHT`` times, and wrong a few times,
    more often for another phone of its class.
    """

    PRIOR_RIGHT, PRIOR_CLASS, PRIOR_OTHER, PRIOR_GAP = 20.0, 2.0, 0.5, 4.0

    def __init__(self, phones: list[str], pairs: Iterable[tuple[str, str, float]] = ()) -> None:
        """Count the phones of pairs of (right, heard, weight) that stand for each other."""
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
        """(P, P) float64, cost of hearing the second phone for the first."""
        self.lose = -np.log(lost / totals)
        """(P,) float64."""
        self.add = float(-np.log(added / (added + totals.sum())))

    def distances(self, right: str, heard: list[str]) -> np.ndarray:
        """Least cost of turning a pronunciation into each of several others, (N,) float64."""
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
"""Outcome at a word of the reference; 0 is the word itself, and 1, 2, … are distinct wrong words.

In a gap, 0 is nothing, and 1, 2, … are distinct insertions.
"""
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


class CountModel:
    """Relative counts of words, whatever their context; a word that was not counted counts once."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        total = sum(counts.values()) + 1
        self._log_probs = {word: math.log(count / total) for word, count in counts.items()}
        self._unknown = -math.log(total)

    def log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        """ln P of each of several words after the words of a sentence so far, (N,) float64."""
        return np.array([self._log_probs.get(word, self._unknown) for word in words])

    def score(self, words: Words) -> float:
        """ln P of a sentence, in nats."""
        return float(self.log_probs((), words).sum())


class NGramContext:
    """An n-gram model in a file, such as an ARPA file."""

    def __init__(self, path: Path) -> None:
        """Load the model; raises RescorerError if the file cannot be read as one."""
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
    """Hexadecimal hash of the seed and the words: the order of sentences, and the seed of their chance."""
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def random(self) -> np.random.Generator:
        """Random numbers that depend only on the sentence and the seed, so not on the other sentences."""
        return np.random.default_rng(int(self.key, 16))


@dataclass(frozen=True, slots=True)
class Choice:
    """Which sentences to choose."""

    n_sentences: int
    seed: int
    min_words: int
    max_words: int


def choose_sentences(
    paths: Sequence[Path], normaliser: Normaliser, choice: Choice, excluded: Collection[tuple[str, ...]]
) -> list[Sentence]:
    """Draw distinct sentences at random; a larger number keeps those of a smaller one, and adds others.

    Sentences with digits are left out, because they can be read in several ways.

    Args:
        excluded: canonical words of sentences that must not be chosen.

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
    """Canonical words of the references of lists."""
    return {normaliser.normalise(nbest.reference) for nbest in lists if nbest.reference is not None}

"""Pronunciations of words, as strings with one character per phone, and how far apart they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from rescorer.errors import FormatError
from rescorer_training.data.corpus import read_lines

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

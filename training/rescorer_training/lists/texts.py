"""Choose sentences of texts, without the references of given lists."""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError
from rescorer.text import Normaliser
from rescorer.types import NBestList
from rescorer_training.data.corpus import read_sentences

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

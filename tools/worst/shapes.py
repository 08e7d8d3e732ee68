"""Shapes of requests, and the messages that have them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rescorer.protocol.v1 import rescorer_pb2 as pb

Difference = Literal["none", "first", "middle", "last"]
DIFFERENCES: tuple[Difference, ...] = ("none", "first", "last")


@dataclass(frozen=True)
class Shape:
    """Sizes of a request, each the same for all of its lists."""

    lists: int = 1
    hypotheses: int = 1
    words: int = 1
    """Words per hypothesis."""
    differs: Difference = "none"
    """Position of the word in which hypotheses differ."""
    streams: int = 1
    name_chars: int = 8
    """Length of the names of streams."""
    context_words: int = 0
    fields: int = 0
    """Client fields per hypothesis."""
    merge: bool = False
    phrases: int = 0
    """Phrases per list."""
    phrase_words: int = 1
    """Words of the longest phrases."""
    spellings: int = 0
    """Other spellings per phrase."""
    generate: bool = False
    previous: int = 0
    """Previous utterances per list, without words."""
    word: str = "a"
    """The word of all hypotheses, with which phrases begin."""

    @property
    def is_searched(self) -> bool:
        """Whether the work is not in proportion to the size, because something is searched or dropped."""
        return bool(self.phrases or self.previous)

    def make_request(self) -> pb.RescoreRequest:
        nbest = pb.NBestList(id="x", context=" ".join(["a"] * self.context_words))
        for index in range(self.hypotheses):
            nbest.hypotheses.add(text=self._text(index))
            if self.fields:
                nbest.hypotheses[index].fields.update({f"f{number}": None for number in range(self.fields)})
        names = (
            "acoustic",
            *(f"{number:x}".ljust(self.name_chars, "n") for number in range(self.streams - 1)),
        )
        for name in names:
            nbest.streams.add(name=name, base=1, sign=1, values=[-1.0] * self.hypotheses)
        nbest.previous.extend([pb.Utterance()] * self.previous)
        new_words = map(_name, itertools.count())
        for index in range(self.phrases):
            ways = [self._way(index, next(new_words)) for _ in range(1 + self.spellings)]
            nbest.phrases.add(text=ways[0], spellings=ways[1:])
        return pb.RescoreRequest(lists=[nbest] * self.lists, merge=self.merge, generate=self.generate)

    def _way(self, index: int, name: str) -> str:
        """A phrase that stands in hypotheses, for the first ones, or that only sounds like their words."""
        words = [self.word] * (1 + index % self.phrase_words)
        if index >= self.phrase_words or self.spellings:
            words[-1] = words[-1][:-1] + name
        return " ".join(words)

    def _text(self, index: int) -> str:
        words = [self.word] * self.words
        if self.differs != "none" and words:
            words[{"first": 0, "middle": self.words // 2, "last": -1}[self.differs]] = f"w{index}"
        return " ".join(words)


def _name(number: int) -> str:
    """A short word of letters, another one for each number."""
    letters = "bdklmnprtaeiou"
    name = ""
    while number:
        number, digit = divmod(number, len(letters))
        name += letters[digit]
    return name or "s"


def searches() -> Iterator[Shape]:
    """Yield a grid of shapes in which phrases are searched, or something is dropped."""
    for hypotheses, words in ((1, 195), (5, 195), (1000, 900), (1800, 100)):
        for phrases, phrase_words, spellings in ((1, 1, 1_998), (20, 1, 98), (1_999, 1, 0), (16, 16, 0)):
            for generate in (False, True):
                yield Shape(
                    hypotheses=hypotheses,
                    words=words,
                    differs="last",
                    phrases=phrases,
                    phrase_words=phrase_words,
                    spellings=spellings,
                    generate=generate,
                    word="rust",
                )
    for lists, previous in ((1, 2_000_000), (1, 65_536), (128, 512)):
        yield Shape(lists=lists, previous=previous)


def shapes() -> Iterator[Shape]:
    """Yield a grid of shapes."""
    grid = itertools.product((1, 16, 128), (1, 100, 2000), (1, 30, 1000), (1, 40, 250), (0, 6))
    for lists, hypotheses, words, streams, fields in grid:
        for differs in DIFFERENCES:
            yield Shape(lists, hypotheses, words, differs, streams, fields=fields)

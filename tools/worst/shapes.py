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
        return pb.RescoreRequest(lists=[nbest] * self.lists, merge=self.merge)

    def _text(self, index: int) -> str:
        words = ["a"] * self.words
        if self.differs != "none" and words:
            words[{"first": 0, "middle": self.words // 2, "last": -1}[self.differs]] = f"w{index}"
        return " ".join(words)


def shapes() -> Iterator[Shape]:
    """Yield a grid of shapes."""
    grid = itertools.product((1, 16, 128), (1, 100, 2000), (1, 30, 1000), (1, 40, 250), (0, 6))
    for lists, hypotheses, words, streams, fields in grid:
        for differs in DIFFERENCES:
            yield Shape(lists, hypotheses, words, differs, streams, fields=fields)

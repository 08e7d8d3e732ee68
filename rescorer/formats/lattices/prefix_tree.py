"""Owns an n-best list in the shape of a lattice: the prefix tree of its words and times; no file's syntax.

Hypotheses share their first words as long as these and their times are the same. Each has a link of its own
from its last word to the end, where its scores are: sums along a path are then exact. What reads a lattice
finds the hypotheses again, those with the same words as one, in the order of their totals.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from rescorer.errors import InvalidList
from rescorer.formats.common import format_texts, split_words
from rescorer.formats.lattices.lattice import Span
from rescorer.formats.word_times import TIME_DECIMALS, WORDS_FIELD, get_word_times
from rescorer.types import NBestList


class Arc(NamedTuple):
    """A link; node 0 is the start."""

    source: int
    target: int
    word: str
    """Empty where nothing is said."""
    hypothesis: int | None = None
    """Which one ends here."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Nodes and links, those of a node after the one that leads to it; the last node is the end."""

    times_s: tuple[float | None, ...]
    """Of the nodes."""
    arcs: tuple[Arc, ...]

    @property
    def end(self) -> int:
        return len(self.times_s) - 1


def prefix_tree(nbest: NBestList, silent: Container[str], timed: bool = False) -> PrefixTree:
    """The tree of a list.

    Args:
        silent: what the format does not take for words.
        timed: words have the times of the field ``words``, where hypotheses have one.

    Raises:
        InvalidList: a text holds a line break or what is no word, or the field ``words`` is not of its words.
    """
    texts = [split_words(text) for text in format_texts(nbest)]
    spans = [_spans(nbest, index, words) if timed else [] for index, words in enumerate(texts)]
    times: list[float | None] = [0.0 if any(spans) else None]
    arcs: list[Arc] = []
    children: dict[tuple[int, str, float | None], int] = {}

    def follow(node: int, word: str, time: float | None) -> int:
        if (node, word, time) not in children:
            children[node, word, time] = len(times)
            arcs.append(Arc(node, len(times), word))
            times.append(time)
        return children[node, word, time]

    leaves = []
    for index, words in enumerate(texts):
        node = 0
        for place, word in enumerate(words):
            if word in silent:
                message = f"{word!r} is no word in this format"
                raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="text")
            start, end = spans[index][place] if spans[index] else (times[node], None)
            node = node if start == times[node] else follow(node, "", start)
            node = follow(node, word, end)
        leaves.append(node)
    last = max((time for time in times if time is not None), default=None)
    ends = [Arc(node, len(times), "", index) for index, node in enumerate(leaves)]
    return PrefixTree((*times, last), (*arcs, *ends))


def _spans(nbest: NBestList, index: int, words: Sequence[str]) -> list[Span]:
    """When the words begin and end, where the hypothesis tells it."""
    if WORDS_FIELD not in nbest.hypotheses[index].fields:
        return []
    times = get_word_times(nbest, index)
    if [each["word"] for each in times] != words:
        message = "are not the words of the text; expected the same"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field=WORDS_FIELD)
    starts = [round(float(each["start_s"]), TIME_DECIMALS) for each in times]
    ends = [round(each["start_s"] + each["duration_s"], TIME_DECIMALS) for each in times]
    return list(zip(starts, ends, strict=True))


def find_lattice_losses(nbest: NBestList, scales: Mapping[str, float], word_penalty: float) -> set[str]:
    """What a reader of the list's lattice does not find again under ``scales``."""
    words = [tuple(split_words(hypothesis.text)) for hypothesis in nbest.hypotheses]
    totals = [word_penalty * len(each) for each in words]
    for name, scale in scales.items():
        for index, value in enumerate(nbest.streams.get(name, ())):
            totals[index] += scale * value
    sinks = all(one > other for one, other in pairwise(totals))
    lost = set() if sinks else {"order of hypotheses, which readers sort by total score"}
    return lost | ({"hypotheses with the same words as another"} if len(set(words)) < len(words) else set())

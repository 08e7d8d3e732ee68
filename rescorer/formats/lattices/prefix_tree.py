"""Build a lattice from an n-best list: the prefix tree of its words and times, in no particular file format.

Hypotheses share their first words as long as words and times are equal. After its last word, each hypothesis
has a separate arc to the end node. That arc carries all scores of the hypothesis, so that sums along a path
are exact. A reader of the lattice recovers the hypotheses in order of total score, but only one of several
with the same words.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from rescorer.errors import InvalidList
from rescorer.formats.common import format_texts, split_words
from rescorer.formats.lattices.lattice import ESTIMATE_DECIMALS, Span
from rescorer.formats.word_times import TIME_DECIMALS, WORDS_FIELD, get_word_times
from rescorer.types import NBestList

SMALLEST_DIFFERENCE = 2 * 10.0**-ESTIMATE_DECIMALS
"""Totals that are no further apart may be read in another order, since readers round them."""


class TreeArc(NamedTuple):
    """An arc of a prefix tree; node 0 is the start."""

    source: int
    target: int
    word: str
    """Empty for an arc without a word."""
    hypothesis: int | None = None
    """Index of the hypothesis that ends with this arc, if any."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Nodes and arcs of a prefix tree; the last node is the end.

    The arcs that leave a node come after the arc that leads to it.
    """

    times_s: tuple[float | None, ...]
    """Time of each node, if known."""
    arcs: tuple[TreeArc, ...]

    @property
    def end(self) -> int:
        """Index of the end node."""
        return len(self.times_s) - 1


def build_prefix_tree(nbest: NBestList, silent: Container[str], timed: bool = False) -> PrefixTree:
    """Build the prefix tree of a list.

    Args:
        silent: Words that a reader of the format would drop.
        timed: Whether to keep the times in the hypothesis field ``words``.

    Raises:
        InvalidList: If a text contains a line break or a silent word, or the field ``words`` does not match
            the text.
    """
    texts = [split_words(text) for text in format_texts(nbest)]
    spans = [_get_spans(nbest, index, words) if timed else [] for index, words in enumerate(texts)]
    times: list[float | None] = [0.0 if any(spans) else None]
    arcs: list[TreeArc] = []
    children: dict[tuple[int, str, float | None], int] = {}

    def follow(node: int, word: str, time: float | None) -> int:
        if (node, word, time) not in children:
            children[node, word, time] = len(times)
            arcs.append(TreeArc(node, len(times), word))
            times.append(time)
        return children[node, word, time]

    leaves = []
    for index, words in enumerate(texts):
        node = 0
        for position, word in enumerate(words):
            if word in silent:
                message = f"{word!r} is not a word in this format"
                raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="text")
            start, end = spans[index][position] if spans[index] else (times[node], None)
            node = node if start == times[node] else follow(node, "", start)
            node = follow(node, word, end)
        leaves.append(node)
    last = max((time for time in times if time is not None), default=None)
    final_arcs = [TreeArc(node, len(times), "", index) for index, node in enumerate(leaves)]
    return PrefixTree((*times, last), (*arcs, *final_arcs))


def _get_spans(nbest: NBestList, index: int, words: Sequence[str]) -> list[Span]:
    """Return the start and end of each word, or an empty list if the hypothesis has no times."""
    if WORDS_FIELD not in nbest.hypotheses[index].fields:
        return []
    times = get_word_times(nbest, index)
    if [entry["word"] for entry in times] != words:
        message = "differ from the words of the text"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field=WORDS_FIELD)
    starts = [round(float(entry["start_s"]), TIME_DECIMALS) for entry in times]
    ends = [round(entry["start_s"] + entry["duration_s"], TIME_DECIMALS) for entry in times]
    return list(zip(starts, ends, strict=True))


def find_lattice_losses(nbest: NBestList, scales: Mapping[str, float], word_penalty: float) -> set[str]:
    """Return descriptions of what a reader of the lattice cannot recover if it uses the given scales."""
    words = [tuple(split_words(hypothesis.text)) for hypothesis in nbest.hypotheses]
    totals = [word_penalty * len(sequence) for sequence in words]
    for name, scale in scales.items():
        for index, value in enumerate(nbest.streams.get(name, ())):
            totals[index] += scale * value
    losses = set()
    if not all(total - following > SMALLEST_DIFFERENCE for total, following in pairwise(totals)):
        losses.add("order of hypotheses, which readers sort by total score")
    if len(set(words)) < len(words):
        losses.add("hypotheses with the same words as another")
    return losses

"""Owns word lattices in memory and the exact search for their best word sequences; no file's syntax."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from rescorer.errors import LimitExceeded

Place = TypeVar("Place", bound=Hashable)
"""All that what follows depends on: a node, or a node and the state of a language model."""

MAX_PATHS = 2_000_000
"""Partial paths that a search may keep; about a gigabyte at twenty words each, more with times."""
Span = tuple[float, float]
"""When a word begins and ends, in seconds."""
TIE_DECIMALS = 9
"""Of estimates, whose last digits depend on the order of additions."""


class Link(NamedTuple):
    """A way from one node to another."""

    target: int
    word: str
    """Empty for fillers and sentence marks."""
    scores: tuple[float, ...]
    """One of each of the lattice's streams, in nats."""
    span: Span | None = None
    """Of the word, where the lattice tells it."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """A word lattice with the words on its links, one start and one end."""

    links: tuple[tuple[Link, ...], ...]
    """Those that leave each node."""
    start: int
    end: int
    streams: tuple[str, ...] = ("acoustic",)

    def topological_order(self) -> list[int]:
        """Nodes that the start reaches, each before all that it leads to.

        Raises:
            ValueError: the links form a circle.
        """
        order: list[int] = []
        seen = {self.start}
        stack = [(self.start, iter(self.links[self.start]))]
        while stack:
            node, links = stack[-1]
            target = next((link.target for link in links if link.target not in seen), None)
            if target is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(self.links[target])))
        order.reverse()
        place = {node: index for index, node in enumerate(order)}
        circle = next((n for n in order for link in self.links[n] if place[link.target] <= place[n]), None)
        if circle is not None:
            raise ValueError(f"a way leads from node {circle} back to it; expected a lattice without circles")
        return order


class Step(NamedTuple, Generic[Place]):
    """A link taken from some place."""

    target: Place
    word: str
    total: float
    """Weighted; what the search adds up."""
    scores: tuple[float, ...]
    """Unweighted; summed along a path."""
    span: Span | None = None


class Path(NamedTuple):
    """A word sequence and the best way through a lattice with these words."""

    words: tuple[str, ...]
    total: float
    scores: tuple[float, ...]
    spans: tuple[Span, ...] = ()
    """Of the words that have one; as many as words where all of them do."""


def search_n_best(
    steps: Mapping[Place, Sequence[Step[Place]]],
    start: Place,
    is_end: Callable[[Place], bool],
    depth: int,
    max_paths: int = MAX_PATHS,
) -> list[Path]:
    """The ``depth`` best distinct word sequences, best first; paths with the same words count as the best
    of them.

    A* with the exact best completion as its estimate: paths leave the queue best first, so a place that is
    met again with the same words can be left out.

    Args:
        steps: of every place, each place before all that it leads to.
        max_paths: bound on the partial paths kept.

    Raises:
        LimitExceeded: the bound is reached before the search ends.
    """
    to_go: dict[Place, float] = {}  # total of the best way from a place to the end
    for place in reversed(list(steps)):
        ways = (step.total + to_go[step.target] for step in steps[place])
        to_go[place] = 0.0 if is_end(place) else max(ways, default=-math.inf)

    zeros = (0.0,) * next((len(step.scores) for each in steps.values() for step in each), 0)
    queue: list[tuple[float, int, Path, Place]] = [(-to_go[start], 0, Path((), 0.0, zeros), start)]
    met: set[tuple[Place, tuple[str, ...]]] = set()
    found: list[Path] = []
    pushed = 0  # settles ties, the youngest first: equal paths are followed one by one to the end
    while queue and len(found) < depth:
        _, _, path, place = heapq.heappop(queue)
        if (place, path.words) in met:
            continue
        met.add((place, path.words))
        if is_end(place):
            found.append(path)
            continue
        for step in steps[place]:
            if to_go[step.target] == -math.inf:
                continue
            pushed += 1
            if pushed > max_paths:
                raise LimitExceeded(
                    f"more than {max_paths} partial paths for {len(found)} of {depth} sequences"
                )
            longer = _extended(path, step)
            estimate = round(longer.total + to_go[step.target], TIE_DECIMALS)
            heapq.heappush(queue, (-estimate, -pushed, longer, step.target))
    return sorted(found, key=lambda path: -path.total)


def find_best_paths(
    lattice: Lattice,
    scales: Mapping[str, float],
    word_penalty: float,
    depth: int,
    max_paths: int = MAX_PATHS,
) -> list[Path]:
    """The ``depth`` best distinct word sequences of a lattice, best first.

    Args:
        scales: of every stream; a path's total is Σ scale · score + ``word_penalty`` · words.
        word_penalty: in nats, with its sign.

    Raises:
        ValueError: the lattice has circles, or no way from its start to its end.
        LimitExceeded: the search needs more than ``max_paths`` partial paths.
    """
    of_stream = [scales[name] for name in lattice.streams]

    def total(link: Link) -> float:
        return sum(w * s for w, s in zip(of_stream, link.scores, strict=True)) + word_penalty * bool(
            link.word
        )

    steps = {
        node: [
            Step(link.target, link.word, total(link), link.scores, link.span) for link in lattice.links[node]
        ]
        for node in lattice.topological_order()
    }
    found = search_n_best(steps, lattice.start, lambda node: node == lattice.end, depth, max_paths)
    if not found:
        raise ValueError("no way leads from the start to the end")
    return found


def _extended(path: Path, step: Step[Place]) -> Path:
    words = (*path.words, step.word) if step.word else path.words
    scores = tuple(a + b for a, b in zip(path.scores, step.scores, strict=True))
    spans = (*path.spans, step.span) if step.word and step.span else path.spans
    return Path(words, path.total + step.total, scores, spans)

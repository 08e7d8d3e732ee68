"""Represent word lattices in memory, and find their best word sequences by exact search.

The search is A* (Hart, Nilsson and Raphael, 1968) with the exact score of the best completion as its
heuristic.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from rescorer.errors import LimitExceeded

State = TypeVar("State", bound=Hashable)
"""State of the search: a node, or a node with the state of a language model."""

DEFAULT_DEPTH = 100
"""Number of word sequences to extract from a lattice by default."""
MAX_PATHS = 2_000_000
"""Maximum number of partial paths in a search; they take about 1 GB at twenty words each, more with times."""
Span = tuple[float, float]
"""Start and end of a word in seconds."""
ESTIMATE_DECIMALS = 9
"""Decimals to which estimated totals are rounded; further digits depend on the order of additions."""


class Arc(NamedTuple):
    """A transition from one node of a lattice to another."""

    target: int
    word: str
    """Empty for fillers and sentence marks."""
    scores: tuple[float, ...]
    """One score in nats per stream of the lattice."""
    span: Span | None = None
    """Start and end of the word, if known."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """A word lattice with words on its arcs, one start node and one end node."""

    arcs: tuple[tuple[Arc, ...], ...]
    """Outgoing arcs of each node."""
    start: int
    end: int
    streams: tuple[str, ...] = ("acoustic",)

    def topological_order(self) -> list[int]:
        """Return the nodes that are reachable from the start, each before all of its successors.

        Raises:
            ValueError: If the lattice has a cycle.
        """
        order: list[int] = []
        seen = {self.start}
        stack = [(self.start, iter(self.arcs[self.start]))]
        while stack:
            node, arcs = stack[-1]
            target = next((arc.target for arc in arcs if arc.target not in seen), None)
            if target is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(self.arcs[target])))
        order.reverse()
        positions = {node: position for position, node in enumerate(order)}
        for node in order:
            if any(positions[arc.target] <= positions[node] for arc in self.arcs[node]):
                raise ValueError(f"node {node} is on a cycle; expected a lattice without cycles")
        return order


class Step(NamedTuple, Generic[State]):
    """An arc in a search, with its weighted score."""

    target: State
    word: str
    total: float
    """Weighted score, which the search maximises."""
    scores: tuple[float, ...]
    """Unweighted scores, which are summed along a path."""
    span: Span | None = None


class Path(NamedTuple):
    """A word sequence, and the scores of the best path through a lattice with these words."""

    words: tuple[str, ...]
    total: float
    scores: tuple[float, ...]
    spans: tuple[Span, ...] = ()
    """Start and end of each word that has times; one per word if all words have times."""


def search_n_best(
    steps: Mapping[State, Sequence[Step[State]]],
    start: State,
    is_end: Callable[[State], bool],
    depth: int,
    max_paths: int = MAX_PATHS,
) -> list[Path]:
    """Find the ``depth`` best distinct word sequences, best first.

    Of the paths with the same words, only the best one counts. Paths leave the queue best first, because the
    estimate of a path's total is exact, so a state that is reached again with the same words is skipped.

    Args:
        steps: Outgoing steps of each state; a state must come before all of its successors.
        max_paths: Maximum number of partial paths in memory.

    Raises:
        LimitExceeded: If the search needs more than ``max_paths`` partial paths.
    """
    best_completion: dict[State, float] = {}  # total of the best path from a state to the end
    for state in reversed(list(steps)):
        totals = (step.total + best_completion[step.target] for step in steps[state])
        best_completion[state] = 0.0 if is_end(state) else max(totals, default=-math.inf)

    zeros = (0.0,) * next((len(step.scores) for outgoing in steps.values() for step in outgoing), 0)
    queue: list[tuple[float, int, Path, State]] = [(-best_completion[start], 0, Path((), 0.0, zeros), start)]
    visited: set[tuple[State, tuple[str, ...]]] = set()
    found: list[Path] = []
    pushed = 0  # breaks ties, newest first, so that one of several equal paths is followed to the end
    while queue and len(found) < depth:
        _, _, path, state = heapq.heappop(queue)
        if (state, path.words) in visited:
            continue
        visited.add((state, path.words))
        if is_end(state):
            found.append(path)
            continue
        for step in steps[state]:
            if best_completion[step.target] == -math.inf:
                continue
            pushed += 1
            if pushed > max_paths:
                message = f"more than {max_paths} partial paths for {len(found)} of {depth} word sequences"
                raise LimitExceeded(f"{message}; reduce depth or raise max_paths")
            longer = _extend_path(path, step)
            estimate = round(longer.total + best_completion[step.target], ESTIMATE_DECIMALS)
            heapq.heappush(queue, (-estimate, -pushed, longer, step.target))
    return sorted(found, key=lambda path: -path.total)


def find_best_paths(
    lattice: Lattice,
    scales: Mapping[str, float],
    word_penalty: float,
    depth: int,
    max_paths: int = MAX_PATHS,
) -> list[Path]:
    """Find the ``depth`` best distinct word sequences of a lattice, best first.

    The total of a path is Σ scale · score + ``word_penalty`` · number of words.

    Args:
        scales: Weight of each stream.
        word_penalty: Word insertion penalty in nats, added per word, so usually negative.

    Raises:
        ValueError: If the lattice has a cycle, or no path leads from its start to its end.
        LimitExceeded: If the search needs more than ``max_paths`` partial paths.
    """
    weights = [scales[name] for name in lattice.streams]

    def weigh(arc: Arc) -> float:
        weighted = sum(weight * score for weight, score in zip(weights, arc.scores, strict=True))
        return weighted + word_penalty * bool(arc.word)

    steps = {
        node: [Step(arc.target, arc.word, weigh(arc), arc.scores, arc.span) for arc in lattice.arcs[node]]
        for node in lattice.topological_order()
    }
    found = search_n_best(steps, lattice.start, lambda node: node == lattice.end, depth, max_paths)
    if not found:
        raise ValueError("no path leads from the start to the end")
    return found


def _extend_path(path: Path, step: Step[State]) -> Path:
    words = (*path.words, step.word) if step.word else path.words
    scores = tuple(a + b for a, b in zip(path.scores, step.scores, strict=True))
    spans = (*path.spans, step.span) if step.word and step.span else path.spans
    return Path(words, path.total + step.total, scores, spans)

"""Owns the way from a recogniser's word lattice to its n-best list: reading, LM scores, exact search.

The first pass is acoustic + ``LM_SCALE`` · LM + ``WORD_INSERTION`` · words, all in nats.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import kenlm

LM_SCALE = 9.5
"""PocketSphinx's own scale when it searches a lattice (``bestpathlw``)."""
WORD_INSERTION = math.log(0.65)
"""PocketSphinx's ``wip``, in nats; paid by each word and by the end of the sentence."""
LN_10 = math.log(10.0)  # kenlm speaks log10
END = "</s>"
SILENT = ("!NULL", "!SENT_START", "!SENT_END")
"""What a lattice calls its fillers and sentence marks."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """A word lattice: words at the nodes, acoustic log-probabilities (nats) on the links."""

    words: tuple[str, ...]
    """Word of each node; empty for fillers and sentence marks."""
    links: tuple[tuple[tuple[int, float], ...], ...]
    """Of each node, where its links lead and the acoustic score of the node's own word on that link."""
    start: int
    end: int


Place = tuple[int, kenlm.State]
"""A node and the LM's state after its word: all that what follows depends on."""


class Step(NamedTuple):
    """A link taken in some LM state."""

    target: Place
    word: str
    """Of the node it leads to; ``</s>`` at the end."""
    acoustic: float
    lm: float

    @property
    def total(self) -> float:
        return self.acoustic + LM_SCALE * self.lm + WORD_INSERTION * bool(self.word)


class Candidate(NamedTuple):
    """A word sequence on its way through a lattice; ``</s>`` closes it."""

    words: tuple[str, ...]
    acoustic: float
    """Of the best path with these words, in nats."""
    lm: float
    """In nats, unscaled."""

    @property
    def total(self) -> float:
        """The first pass's score, by which a list is ordered."""
        return self.acoustic + LM_SCALE * self.lm + WORD_INSERTION * len(self.words)

    def extended(self, step: Step) -> Candidate:
        words = (*self.words, step.word) if step.word else self.words
        return Candidate(words, self.acoustic + step.acoustic, self.lm + step.lm)


def parse_lattice(text: str) -> Lattice:
    """Reads HTK's standard lattice format with words at the nodes (``W=``) and ``a=`` in nats on the links.

    Pronunciation variants (``v=``) are one word; fillers and sentence marks have none.
    """
    header: dict[str, int] = {}
    words: dict[int, str] = {}
    links: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for line in text.splitlines():
        values = dict(re.findall(r"(\w+)=(\S+)", line)) if not line.startswith("#") else {}
        if "I" in values:
            words[int(values["I"])] = "" if values["W"] in SILENT else values["W"]
        elif "J" in values:
            links[int(values["S"])].append((int(values["E"]), float(values["a"])))
        else:
            header |= {key: int(values[key]) for key in ("start", "end") if key in values}
    nodes = range(len(words))
    return Lattice(
        tuple(words[node] for node in nodes),
        tuple(tuple(links[node]) for node in nodes),
        header["start"],
        header["end"],
    )


def topological_order(lattice: Lattice) -> list[int]:
    """Nodes that the start reaches, each before all that it leads to."""
    order: list[int] = []
    seen = {lattice.start}
    stack = [(lattice.start, iter(lattice.links[lattice.start]))]
    while stack:
        node, links = stack[-1]
        target = next((target for target, _ in links if target not in seen), None)
        if target is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(target)
            stack.append((target, iter(lattice.links[target])))
    return order[::-1]


def with_lm(lattice: Lattice, model: kenlm.Model) -> dict[Place, list[Step]]:
    """Every place of the lattice and the steps that leave it, each place before all that it leads to."""
    begin = kenlm.State()
    model.BeginSentenceWrite(begin)
    states: defaultdict[int, dict[kenlm.State, None]] = defaultdict(dict, {lattice.start: {begin: None}})
    steps: dict[Place, list[Step]] = {}
    for node in topological_order(lattice):
        for state in states[node]:
            steps[node, state] = []
            for target, acoustic in lattice.links[node]:
                word = END if target == lattice.end else lattice.words[target]
                lm, after = advance(model, state, word)
                states[target][after] = None
                steps[node, state].append(Step((target, after), word, acoustic, lm))
    return steps


def advance(model: kenlm.Model, state: kenlm.State, word: str) -> tuple[float, kenlm.State]:
    """ln P of a word and the state after it; a node without a word changes nothing."""
    if not word:
        return 0.0, state
    after = kenlm.State()
    return model.BaseScore(state, word, after) * LN_10, after


def n_best(lattice: Lattice, model: kenlm.Model, depth: int) -> list[Candidate]:
    """The ``depth`` best distinct word sequences, best first; paths with the same words count as the best
    of them.

    A* over places with the exact best completion as its estimate: paths leave the queue best first, so a
    place that is met again with the same words can be left out.
    """
    steps = with_lm(lattice, model)
    to_go: dict[Place, float] = {}  # total of the best way from a place to the end
    for place in reversed(steps):
        ways = (step.total + to_go[step.target] for step in steps[place])
        to_go[place] = 0.0 if place[0] == lattice.end else max(ways, default=-math.inf)

    start = next(iter(steps))
    queue = [(-to_go[start], Candidate((), 0.0, 0.0), start)]
    met: set[tuple[int, tuple[str, ...]]] = set()
    found: list[Candidate] = []
    while queue and len(found) < depth:
        _, candidate, place = heapq.heappop(queue)
        if (place[0], candidate.words) in met:
            continue
        met.add((place[0], candidate.words))
        if place[0] == lattice.end:
            found.append(candidate)
        for step in steps[place]:
            if to_go[step.target] > -math.inf:
                longer = candidate.extended(step)
                heapq.heappush(queue, (-longer.total - to_go[step.target], longer, step.target))
    return sorted(found, key=lambda each: (-each.total, each.words))

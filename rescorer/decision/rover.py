"""Combine the lists of several recognisers for the same utterance by voting word by word (ROVER).

After Fiscus, "A post-processing system to yield reduced word error rates: recognizer output voting error
reduction" (ASRU 1997): the outputs are aligned into one confusion network, and the best word of each slot
wins. Here a system votes with its whole list: a hypothesis counts its posterior in its own list times the
weight of the system. NIST's confidence of having no word is ``null_weight``, which multiplies the vote for
no word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.decision.confusion_network import EMPTY, MIN_POSTERIOR, ConfusionNetwork
from rescorer.errors import ConfigError
from rescorer.ranking import TIE_DECIMALS, best_first, posteriors
from rescorer.trie import Words
from rescorer.types import MAX_NUMBER

MAX_DEPTH = 20
"""Number of hypotheses of each list that vote; further ones hardly have posteriors, but take time."""


@dataclass(frozen=True, slots=True)
class RoverSettings:
    """How systems vote.

    Raises:
        ConfigError: a value is not one of those described.
    """

    weights: tuple[float, ...]
    """Weight of each system, above 0; only their ratios matter."""
    temperatures: tuple[float, ...]
    """The posteriors of each system are the softmax of its totals divided by this positive number."""
    null_weight: float = 1.0
    """Factor of the vote for no word, above 0: higher values give fewer words."""

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.temperatures):
            counts = f"{len(self.weights)} weights and {len(self.temperatures)} temperatures"
            raise ConfigError(f"{counts}; expected one of each per system")
        for name, values in (
            ("weights", self.weights),
            ("temperatures", self.temperatures),
            ("null_weight", (self.null_weight,)),
        ):
            for value in values:
                if not 0 < value <= MAX_NUMBER:
                    raise ConfigError(f"{name}: {value!r}; expected finite numbers above 0")


@dataclass(frozen=True, slots=True)
class SystemList:
    """The list of one system for an utterance."""

    words: tuple[Words, ...]
    """Canonical words of each hypothesis."""
    totals: np.ndarray
    """(H,) float64 in nats."""
    surfaces: tuple[tuple[str, ...], ...] = ()
    """The words of each hypothesis as they are written; empty: as the canonical words."""


@dataclass(frozen=True, slots=True)
class VotedWord:
    """A word that won the vote of its slot."""

    word: str
    posterior: float
    """Share of the votes, before the vote for no word is weighted; not calibrated."""
    surface: str
    """The word as the first system that voted for it writes it."""


@dataclass(frozen=True, slots=True)
class VotingSlot:
    """The words that compete for one place."""

    votes: dict[str, float]
    """Votes for each word, and for ``EMPTY``; they sum to 1."""
    surfaces: dict[str, str]
    """How each word is written by the first system, by word."""


def build_network(lists: Sequence[SystemList], settings: RoverSettings) -> list[VotingSlot]:
    """Align the lists of all systems for one utterance, the heaviest system first; return their slots.

    Raises:
        LimitExceeded: the network would take too long.
    """
    network = ConfusionNetwork()
    relative = np.array(settings.weights) / max(settings.weights)  # whose sum is finite
    shares = (relative / relative.sum()).tolist()
    for index in np.argsort(-relative, kind="stable").tolist():
        system = lists[index]
        order = best_first(system.totals)[:MAX_DEPTH]
        probabilities = posteriors(system.totals[order], settings.temperatures[index])
        for position, probability in zip(order.tolist(), probabilities.tolist(), strict=True):
            if probability >= MIN_POSTERIOR:
                surfaces = system.surfaces[position] if system.surfaces else None
                network.add(system.words[position], shares[index] * probability, surfaces=surfaces)
    slots = zip(network.posteriors(), network.surfaces(), strict=True)
    return [VotingSlot(votes, surfaces) for votes, surfaces in slots]


def vote(slots: Sequence[VotingSlot], null_weight: float = 1.0) -> tuple[VotedWord, ...]:
    """Take the word with the most votes in each slot, unless having no word has more.

    Votes are rounded before they are compared, and ties go to what came first into the slot.
    """
    words = []
    for slot in slots:
        shares = slot.votes
        votes = {word: share * null_weight if word == EMPTY else share for word, share in shares.items()}
        best = max(votes, key=lambda word: round(votes[word], TIE_DECIMALS))
        if best != EMPTY:
            words.append(VotedWord(best, min(shares[best], 1.0), slot.surfaces[best]))
    return tuple(words)


def combine(lists: Sequence[SystemList], settings: RoverSettings) -> tuple[VotedWord, ...]:
    """Combine the lists of all systems for one utterance into words, which no list need have together.

    Raises:
        LimitExceeded: the lists are too long.
    """
    return vote(build_network(lists, settings), settings.null_weight)

"""Compile phrases into one automaton over canonical words."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rescorer.conversation import Phrase
from rescorer.errors import MAX_QUOTED_CHARS, LimitExceeded, did_you_mean, quote
from rescorer.trie import Words

MAX_PHRASES = 5_000
"""Largest number of phrases of a list, with their other spellings."""
MAX_PHRASE_WORDS = 16
"""Largest number of canonical words of a phrase."""
MAX_PHRASE_CHARS = 1_000
"""Largest number of characters of a phrase."""
MAX_WEIGHT = 100.0
MAX_PHRASE_SLOTS = 7
"""Largest number of slots of phrases with equal words, which are all read."""
MAX_NAMED_SLOTS = 20
"""Number of the bundle's slots that the error about an unknown one names."""
MAX_COMPARED_SLOTS = 1_000
"""Number of the bundle's slots among which this error looks for a similar one, in 10 ms."""
ENTRY_PROBABILITY = 0.01
"""Probability of the phrase model that a phrase begins at a word."""


@dataclass(slots=True)
class Node:
    """A prefix of phrases."""

    children: dict[str, Node] = field(default_factory=dict)
    phrase: int = -1
    """Index of the phrase that ends here; of several, the one with the largest weight. -1: none does."""
    longer_weight: float = 0.0
    """Largest weight of the longer phrases that begin like this; 0 if there are none."""
    mass: float = 0.0
    """Sum of the weights of the phrases that begin like this, those of equal words counted once."""
    slots: tuple[str, ...] = ()
    """The slots of the phrases that end here."""


@dataclass(frozen=True, slots=True)
class PhraseSet:
    """Phrases, ready to be found in hypotheses."""

    phrases: tuple[Phrase, ...]
    root: Node
    n_nodes: int
    """Number of nodes below the roots."""
    slots: Mapping[str, Node] = field(default_factory=dict)
    """The root of the phrases of each slot, by the slot's word in canonical form."""
    longest: int = MAX_PHRASE_WORDS
    """Number of words of the longest phrase, or more."""

    def word_log_probs(self, words: Words) -> tuple[float, ...]:
        """Return the log-probability of each word of a phrase, or of its beginning, under the phrase model.

        A phrase begins with probability ``ENTRY_PROBABILITY`` and is drawn in proportion to the weights; its
        words follow one another.
        """
        node, log_mass = self.root, math.log(self.root.mass / ENTRY_PROBABILITY)
        log_probs = []
        for word in words:
            node, before = node.children[word], log_mass
            log_mass = math.log(node.mass)  # a share of masses may be too small for a float64
            log_probs.append(log_mass - before)
        return tuple(log_probs)

    def find_slots(self, words: Words) -> tuple[str, ...]:
        """Return the slots of the phrases that have exactly these words."""
        path = walk(self.root, words)
        return path[-1].slots if len(path) == len(words) else ()

    def slot_masses(self, slot: str, words: Words) -> np.ndarray:
        """Return the weight of what is left of the phrases of a slot after each of some words, (n + 2,).

        The first value is the weight of all phrases of the slot, the last one that of the phrase that has
        exactly these words.
        """
        masses = np.zeros(len(words) + 2)
        if (root := self.slots.get(slot)) is not None:
            path = walk(root, words)
            masses[: len(path) + 1] = [root.mass, *(node.mass for node in path)]
            if len(path) == len(words) and path[-1].phrase >= 0:
                masses[-1] = self.phrases[path[-1].phrase].weight
        return masses


def walk(root: Node, words: Words) -> list[Node]:
    """Return the node after each of the first words, as long as phrases begin with them."""
    node, path = root, []
    for word in words:
        if (child := node.children.get(word)) is None:
            break
        node = child
        path.append(node)
    return path


def compile_phrases(
    phrases: Sequence[Phrase], normalise: Callable[[str], Words], slots: Collection[str] = ()
) -> PhraseSet:
    """Build the automaton of phrases and their other spellings.

    A phrase that is given twice counts once, with its largest weight.

    Args:
        slots: words that the n-grams of the bundle know as slots, in canonical form.

    Raises:
        LimitExceeded: there are too many phrases; one has no words, too many words or characters, a
            weight that is not above 0 and at most ``MAX_WEIGHT``, or a slot that no n-gram has.
    """
    count = sum(1 + len(phrase.spellings) for phrase in phrases)
    if count > MAX_PHRASES:
        message = f"{count:,} phrases and spellings; expected at most {MAX_PHRASES:,}"
        raise LimitExceeded(message, field="phrases")
    root, n_nodes, longest = Node(), 0, 0
    slot_roots: dict[str, Node] = {}
    for index, phrase in enumerate(phrases):
        if not isinstance(phrase.weight, (int, float)) or not 0 < phrase.weight <= MAX_WEIGHT:
            expected = f"expected a number above 0, at most {MAX_WEIGHT:g}"
            message = f"{phrase.weight!r} for {quote(phrase.text)}; {expected}"
            raise LimitExceeded(message, field=f"phrases[{index}].weight")
        slot = _find_slot(phrase, index, normalise, slots) if phrase.slot else ""
        for place, text in _spellings(phrase, index):
            if len(text) > MAX_PHRASE_CHARS:
                message = f"{quote(text)} has {len(text):,} characters; expected at most {MAX_PHRASE_CHARS:,}"
                raise LimitExceeded(message, field=place)
            words = normalise(text)
            if not 1 <= len(words) <= MAX_PHRASE_WORDS:
                message = f"{quote(text)} has {len(words)} words; expected 1 to {MAX_PHRASE_WORDS}"
                raise LimitExceeded(message, field=place)
            longest = max(longest, len(words))
            n_nodes += _add(root, words, index, phrases)
            if slot:
                n_nodes += _add(slot_roots.setdefault(slot, Node()), words, index, phrases)
                _add_slot(root, words, slot, text, index)
    for node in (root, *slot_roots.values()):
        _sum_weights(node, phrases)
    return PhraseSet(tuple(phrases), root, n_nodes, slot_roots, longest)


def _find_slot(phrase: Phrase, index: int, normalise: Callable[[str], Words], slots: Collection[str]) -> str:
    """The word of a phrase's slot in canonical form; raises LimitExceeded if no n-gram knows it."""
    place = f"phrases[{index}].slot"
    if not isinstance(phrase.slot, str):
        raise LimitExceeded(f"{phrase.slot!r} for {quote(phrase.text)}; expected a string", field=place)
    slot = phrase.slot[:MAX_PHRASE_CHARS]
    words = (slot,) if slot in slots else normalise(slot)
    if len(words) != 1 or words[0] not in slots:
        others = f" and {len(slots) - MAX_NAMED_SLOTS:,} more" if len(slots) > MAX_NAMED_SLOTS else ""
        by_name = sorted(slots)
        known = f"has: {', '.join(by_name[:MAX_NAMED_SLOTS])}{others}" if slots else "has none"
        message = f"{quote(phrase.slot)} for {quote(phrase.text)} is not a slot; the bundle {known}"
        message += did_you_mean(slot[:MAX_QUOTED_CHARS], by_name[:MAX_COMPARED_SLOTS])
        raise LimitExceeded(message, field=place)
    return words[0]


def _add_slot(root: Node, words: Words, slot: str, text: str, index: int) -> None:
    """Add a slot to the node at which a phrase ends; raises LimitExceeded if that has too many."""
    node = walk(root, words)[-1]
    if slot not in node.slots:
        if len(node.slots) == MAX_PHRASE_SLOTS:
            message = (
                f"{quote(text)} has other slots already; expected at most {MAX_PHRASE_SLOTS} for a phrase"
            )
            raise LimitExceeded(message, field=f"phrases[{index}].slot")
        node.slots = (*node.slots, slot)


def _spellings(phrase: Phrase, index: int) -> list[tuple[str, str]]:
    """The field and the text of each way to write a phrase."""
    others = ((f"phrases[{index}].spellings[{i}]", text) for i, text in enumerate(phrase.spellings))
    return [(f"phrases[{index}].text", phrase.text), *others]


def _add(root: Node, words: Words, index: int, phrases: Sequence[Phrase]) -> int:
    """Add a phrase; return the number of new nodes."""
    node, weight, n_new = root, phrases[index].weight, 0
    for word in words:
        node.longer_weight = max(node.longer_weight, weight)
        if (child := node.children.get(word)) is None:
            child = node.children[word] = Node()
            n_new += 1
        node = child
    if node.phrase < 0 or phrases[node.phrase].weight < weight:
        node.phrase = index
    return n_new


def _sum_weights(node: Node, phrases: Sequence[Phrase]) -> float:
    """Set the mass of a node and of those below it; no deeper than a phrase is long."""
    own = phrases[node.phrase].weight if node.phrase >= 0 else 0.0
    node.mass = own + math.fsum(_sum_weights(child, phrases) for child in node.children.values())
    return node.mass

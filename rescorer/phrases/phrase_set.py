"""Compile phrases into one automaton over canonical words."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rescorer.conversation import Phrase
from rescorer.errors import LimitExceeded, quote
from rescorer.trie import Words

MAX_PHRASES = 5_000
"""Largest number of phrases of a list, with their other spellings."""
MAX_PHRASE_WORDS = 16
"""Largest number of canonical words of a phrase."""
MAX_WEIGHT = 100.0
ENTRY_PROBABILITY = 0.01
"""Probability of the phrase model that a phrase begins at a word."""


@dataclass(slots=True)
class Node:
    """A prefix of phrases."""

    children: dict[str, Node] = field(default_factory=dict)
    phrase: int = -1
    """Index of the phrase that ends here; of several, the one with the largest weight. -1: none does."""
    best_weight: float = 0.0
    """Largest weight of the phrases that begin like this."""
    mass: float = 0.0
    """Sum of the weights of the phrases that begin like this, those of equal words counted once."""


@dataclass(frozen=True, slots=True)
class PhraseSet:
    """Phrases, ready to be found in hypotheses."""

    phrases: tuple[Phrase, ...]
    root: Node

    def word_log_probs(self, words: Words) -> tuple[float, ...]:
        """Return the log-probability of each word of a phrase, or of its beginning, under the phrase model.

        A phrase begins with probability ``ENTRY_PROBABILITY`` and is drawn in proportion to the weights; its
        words follow one another.
        """
        node, mass = self.root, self.root.mass / ENTRY_PROBABILITY
        log_probs = []
        for word in words:
            node = node.children[word]
            log_probs.append(math.log(node.mass / mass))
            mass = node.mass
        return tuple(log_probs)


def compile_phrases(phrases: Sequence[Phrase], normalise: Callable[[str], Words]) -> PhraseSet:
    """Build the automaton of phrases and their other spellings.

    A phrase that is given twice counts once, with its largest weight.

    Raises:
        LimitExceeded: there are too many phrases; one has no words, too many, or a weight that is not above 0
            and at most ``MAX_WEIGHT``.
    """
    count = sum(1 + len(phrase.spellings) for phrase in phrases)
    if count > MAX_PHRASES:
        message = f"{count:,} phrases and spellings; expected at most {MAX_PHRASES:,}"
        raise LimitExceeded(message, field="phrases")
    root = Node()
    for index, phrase in enumerate(phrases):
        if not 0 < phrase.weight <= MAX_WEIGHT:
            message = (
                f"{phrase.weight} for {quote(phrase.text)}; expected a number above 0, at most {MAX_WEIGHT:g}"
            )
            raise LimitExceeded(message, field=f"phrases[{index}].weight")
        for place, text in _spellings(phrase, index):
            words = normalise(text)
            if not 1 <= len(words) <= MAX_PHRASE_WORDS:
                message = f"{quote(text)} has {len(words)} words; expected 1 to {MAX_PHRASE_WORDS}"
                raise LimitExceeded(message, field=place)
            _add(root, words, index, phrases)
    _sum_weights(root, phrases)
    return PhraseSet(tuple(phrases), root)


def _spellings(phrase: Phrase, index: int) -> list[tuple[str, str]]:
    """The field and the text of each way to write a phrase."""
    others = ((f"phrases[{index}].spellings[{i}]", text) for i, text in enumerate(phrase.spellings))
    return [(f"phrases[{index}].text", phrase.text), *others]


def _add(root: Node, words: Words, index: int, phrases: Sequence[Phrase]) -> None:
    node, weight = root, phrases[index].weight
    for word in words:
        node = node.children.setdefault(word, Node())
        node.best_weight = max(node.best_weight, weight)
    if node.phrase < 0 or phrases[node.phrase].weight < weight:
        node.phrase = index


def _sum_weights(node: Node, phrases: Sequence[Phrase]) -> float:
    """Set the mass of a node and of those below it; no deeper than a phrase is long."""
    own = phrases[node.phrase].weight if node.phrase >= 0 else 0.0
    node.mass = own + math.fsum(_sum_weights(child, phrases) for child in node.children.values())
    return node.mass

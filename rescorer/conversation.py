"""Immutable data types of what is known of the conversation around a list."""

from __future__ import annotations

from dataclasses import dataclass

DISTANCE_COST = 5.0
"""Number of phones that speak for a phrase as much as a phone that is unlike speaks against it."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """Something that was said before the utterance of a list, in the same conversation."""

    text: str
    speaker: str = ""
    """The person who spoke, if known."""
    confidence: float = 1.0
    """How sure it is that this was said, 0 to 1: a cache counts its words so much."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A name or phrase that is more likely than usual, such as a contact or a product."""

    text: str
    weight: float = 1.0
    """Credit per word, relative to other phrases; above 0. The weights say how many nats a credit of 1 is."""
    spellings: tuple[str, ...] = ()
    """Other ways in which the recogniser may write it."""
    slot: str = ""
    """Word that stood for such phrases in the text of an n-gram, such as ``$name``; empty: none did."""


@dataclass(frozen=True, slots=True)
class Generated:
    """How a hypothesis was made that the recogniser did not have in its list: a phrase in place of a span."""

    source: int
    """0-based input rank of the hypothesis that it was made from, whose scores it has."""
    start: int
    """Index of the first replaced word among those of the source's text, separated by white space."""
    end: int
    """Index after the last replaced word."""
    heard: str
    """What the phrase replaces, as written in the source."""
    phrase: str
    """Text of the phrase, as sent."""
    distance: float
    """How far apart the two sound: 1 for each phone that is unlike, less for similar ones; at least 0."""
    phones: int
    """Number of phones of the phrase."""
    further: tuple[Generated, ...] = ()
    """Replacements of later spans of the same source, which do not overlap."""

    @property
    def parts(self) -> tuple[Generated, ...]:
        """All replacements, in the order of their spans."""
        return (self, *self.further)

    @property
    def sound_match(self) -> float:
        """What speaks for the phrases, added up: phones, less ``DISTANCE_COST`` times the distance. A long
        phrase at some distance is less often heard by chance than a short one."""
        own = self.phones - DISTANCE_COST * self.distance
        return own + sum(part.sound_match for part in self.further)

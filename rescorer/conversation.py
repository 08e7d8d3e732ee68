"""Immutable data types of what is known of the conversation around a list."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Utterance:
    """Something that was said before the utterance of a list, in the same conversation."""

    text: str
    speaker: str = ""
    """The person who spoke, if known."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A name or phrase that is more likely than usual, such as a contact or a product."""

    text: str
    weight: float = 1.0
    """Credit per word, relative to other phrases; above 0. The weights say how many nats a credit of 1 is."""
    spellings: tuple[str, ...] = ()
    """Other ways in which the recogniser may write it."""

"""Owns what is compared when errors are counted: which marks of a transcript mean something, words or
characters, and which alignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from rescorer.errors import ConfigError
from rescorer.evaluation.error_rate.alignment import Arc, Network, Token, align_network, align_words
from rescorer.evaluation.error_rate.alternations import (
    CLOSE,
    NOTHING,
    OPEN,
    Part,
    expand_alternations,
    parse_alternations,
)
from rescorer.evaluation.error_rate.error_counts import WordErrors, fewest_errors

Method = Literal["levenshtein", "sclite"]
Normalise = Callable[[str], tuple[str, ...]]
Heard = TypeVar("Heard", tuple[str, ...], tuple[Token, ...])


@dataclass(frozen=True, slots=True)
class Counting:
    """How errors are counted."""

    method: Method = "levenshtein"
    """``levenshtein``: the fewest errors; ``sclite``: those of sclite's alignment, at times one more."""
    characters: bool = False
    """Characters instead of words, spaces left out: for languages that write none (sclite -c)."""
    optional_words: bool = False
    """``(word)`` may be left out (sclite -D)."""
    fragments: bool = False
    """``wo-`` and ``-rd`` are right for every word that begins or ends so (sclite -F)."""

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ConfigError(f"counting is {self.method!r}; expected one of {', '.join(get_args(Method))}")
        if self.method != "sclite" and (self.optional_words or self.fragments):
            raise ConfigError("optional words and fragments are sclite's; count with sclite")
        if self.characters and self.fragments:
            raise ConfigError("fragments are of words; they cannot be had with characters")

    @property
    def unit(self) -> str:
        return "character" if self.characters else "word"

    def against(self, reference: str, words: Normalise, list_id: str = "") -> Callable[[str], WordErrors]:
        """A counter of the errors of hypotheses, as they are written, against one reference.

        With alternations the best fitting reading counts: the one with the fewest errors, or the one with
        sclite's lowest cost.

        Args:
            words: text to canonical words; the words of a token depend on that token alone.

        Raises:
            InvalidList: malformed alternations.
        """
        normalise = _in_characters(words) if self.characters else words
        marks = self.optional_words or self.fragments
        if self.method == "levenshtein":
            readings = expand_alternations(reference, list_id)
            references = tuple(dict.fromkeys(normalise(" ".join(reading)) for reading in readings))
            return _remembered(normalise, lambda heard: fewest_errors(references, heard))
        if not (marks or any(mark in reference for mark in (OPEN, CLOSE, NOTHING))):
            spoken = normalise(reference)
            return _remembered(normalise, lambda heard: align_words(spoken, heard))

        def tokens(text: str) -> tuple[Token, ...]:
            if marks:
                return tuple(token for each in text.split() for token in self._marked(each, normalise))
            return tuple(map(Token, normalise(text)))

        network = build_network(parse_alternations(reference, list_id), tokens)
        return _remembered(tokens, lambda heard: align_network(network, heard))

    def _marked(self, written: str, normalise: Normalise) -> list[Token]:
        """One token with its marks; the normaliser sees it without them."""
        optional = self.optional_words and len(written) > 2 and written[0] == "(" and written[-1] == ")"
        word = written[1:-1] if optional else written
        letters = word.strip("-")
        if not (self.fragments and letters and letters != word):
            return [Token(each, optional) for each in normalise(word)]
        parts = list(normalise(letters))
        if parts:
            parts[0] = "-" * word.startswith("-") + parts[0]
            parts[-1] += "-" * word.endswith("-")
        # an optional word that begins with a hyphen is no fragment to sclite
        return [
            Token(each, optional, each.endswith("-") or (each.startswith("-") and not optional))
            for each in parts
        ]


PLAIN = Counting()
"""The fewest errors in words."""


def build_network(parts: Sequence[Part], tokens: Callable[[str], Sequence[Token]]) -> Network:
    """The network of a reference; a word of which ``tokens`` leaves nothing has no arc."""
    arcs: list[Arc] = []

    def add(token: Token | None, before: tuple[int, ...]) -> tuple[int, ...]:
        arcs.append(Arc(token, before))
        return (len(arcs),)

    def walk(sequence: Sequence[Part], before: tuple[int, ...]) -> tuple[int, ...]:
        for part in sequence:
            if part == NOTHING:
                before = add(None, before)
            elif isinstance(part, str):
                for token in tokens(part):
                    before = add(token, before)
            else:
                start, before = before, ()
                for alternative in part:
                    known = len(arcs)
                    ends = walk(alternative, start)
                    before += ends if len(arcs) > known else add(None, start)
        return before

    ends = walk(parts, (0,))
    return Network(tuple(arcs), ends)


def _in_characters(words: Normalise) -> Normalise:
    return lambda text: tuple("".join(words(text)))


def _remembered(
    read: Callable[[str], Heard], count: Callable[[Heard], WordErrors]
) -> Callable[[str], WordErrors]:
    """Counts hypotheses that are the same once they are read only once."""
    known: dict[Heard, WordErrors] = {}

    def counter(text: str) -> WordErrors:
        heard = read(text)
        if heard not in known:
            known[heard] = count(heard)
        return known[heard]

    return counter

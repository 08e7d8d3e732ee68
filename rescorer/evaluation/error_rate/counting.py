"""Settings for counting errors: transcription marks to honour, units to count, and the alignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from rescorer.errors import ConfigError
from rescorer.evaluation.error_rate.alignment import Arc, Network, Token, align_network, align_words
from rescorer.evaluation.error_rate.alternations import (
    CLOSE,
    EMPTY,
    OPEN,
    Part,
    expand_alternations,
    parse_alternations,
)
from rescorer.evaluation.error_rate.error_counts import WordErrors, count_fewest_errors
from rescorer.text import split_units
from rescorer.types import ErrorUnit

Method = Literal["levenshtein", "sclite"]
Normalise = Callable[[str], tuple[str, ...]]
ErrorCounter = Callable[[str], WordErrors]
"""Counts the errors of a hypothesis, given as text, against a fixed reference."""
TokensT = TypeVar("TokensT", tuple[str, ...], tuple[Token, ...])


@dataclass(frozen=True, slots=True)
class CountingSettings:
    """How errors are counted."""

    method: Method = "levenshtein"
    """``levenshtein``: fewest possible errors; ``sclite``: sclite's alignment, sometimes one error more."""
    unit: ErrorUnit = "word"
    """``word``, ``character``, or ``mixed``: characters of scripts without spaces, and words of others; see
    ``rescorer.text.units``. sclite's -c and -c NOASCII count the same where each character is one code point
    and, for ``mixed``, all other words are ASCII."""
    optional_words: bool = False
    """A word written ``(word)`` may be left out (sclite -D)."""
    fragments: bool = False
    """``wo-`` matches every word with that beginning, ``-rd`` every word with that ending (sclite -F)."""

    def __post_init__(self) -> None:
        """Raises ConfigError if the settings contradict each other."""
        if self.method not in get_args(Method):
            raise ConfigError(f"counting is {self.method!r}; expected one of {', '.join(get_args(Method))}")
        if self.method != "sclite" and (self.optional_words or self.fragments):
            raise ConfigError(
                f"optional words and fragments need sclite's alignment, but counting is {self.method!r}; "
                "count with sclite"
            )
        if self.unit not in get_args(ErrorUnit):
            raise ConfigError(f"unit is {self.unit!r}; expected one of {', '.join(get_args(ErrorUnit))}")
        if self.unit != "word" and self.fragments:
            unit = "characters" if self.unit == "character" else "the mixed unit"
            raise ConfigError(f"fragments are parts of words and cannot be combined with {unit}")

    def split(self, words: Sequence[str]) -> tuple[str, ...]:
        """Split canonical words into the units that are counted."""
        return split_units(words, self.unit)

    def counter_for(self, reference: str, words: Normalise, list_id: str = "") -> ErrorCounter:
        """Build a function that counts the errors of hypotheses against one reference.

        A reference with alternatives counts as the reading that matches the hypothesis best: the one with the
        fewest errors, or with the lowest cost for sclite.

        Args:
            words: converts text to canonical words; it must convert every token independently of the others.

        Raises:
            InvalidList: the alternatives are malformed.
        """
        normalise = words if self.unit == "word" else lambda text: self.split(words(text))
        has_marks = self.optional_words or self.fragments
        if self.method == "levenshtein":
            readings = expand_alternations(reference, list_id)
            references = tuple(dict.fromkeys(normalise(" ".join(reading)) for reading in readings))
            return _cached_counter(normalise, lambda tokens: count_fewest_errors(references, tokens))
        if not (has_marks or any(mark in reference for mark in (OPEN, CLOSE, EMPTY))):
            spoken = normalise(reference)
            return _cached_counter(normalise, lambda tokens: align_words(spoken, tokens))

        def tokenise(text: str) -> tuple[Token, ...]:
            if has_marks:
                return tuple(token for word in text.split() for token in self._parse_marks(word, normalise))
            return tuple(map(Token, normalise(text)))

        network = build_network(parse_alternations(reference, list_id), tokenise)
        return _cached_counter(tokenise, lambda tokens: align_network(network, tokens))

    def _parse_marks(self, written: str, normalise: Normalise) -> list[Token]:
        """Remove the marks from one written word, so that the normaliser sees only the word."""
        optional = self.optional_words and len(written) > 2 and written[0] == "(" and written[-1] == ")"
        word = written[1:-1] if optional else written
        letters = word.strip("-")
        if not (self.fragments and letters and letters != word):
            return [Token(part, optional) for part in normalise(word)]
        parts = list(normalise(letters))
        if parts:
            parts[0] = "-" * word.startswith("-") + parts[0]
            parts[-1] += "-" * word.endswith("-")
        # sclite does not treat an optional word that starts with a hyphen as a fragment
        return [
            Token(part, optional, part.endswith("-") or (part.startswith("-") and not optional))
            for part in parts
        ]


DEFAULT_COUNTING = CountingSettings()
"""Fewest possible errors in words."""


def build_network(parts: Sequence[Part], tokenise: Callable[[str], Sequence[Token]]) -> Network:
    """Build the network of a reference; a word without tokens gets no arc."""
    arcs: list[Arc] = []

    def add_arc(token: Token | None, predecessors: tuple[int, ...]) -> tuple[int, ...]:
        arcs.append(Arc(token, predecessors))
        return (len(arcs),)

    def add_sequence(sequence: Sequence[Part], predecessors: tuple[int, ...]) -> tuple[int, ...]:
        for part in sequence:
            if part == EMPTY:
                predecessors = add_arc(None, predecessors)
            elif isinstance(part, str):
                for token in tokenise(part):
                    predecessors = add_arc(token, predecessors)
            else:
                start, predecessors = predecessors, ()
                for alternative in part:
                    n_arcs = len(arcs)
                    ends = add_sequence(alternative, start)
                    predecessors += ends if len(arcs) > n_arcs else add_arc(None, start)
        return predecessors

    final_arcs = add_sequence(parts, (0,))
    return Network(tuple(arcs), final_arcs)


def _cached_counter(
    tokenise: Callable[[str], TokensT], count: Callable[[TokensT], WordErrors]
) -> ErrorCounter:
    """Count hypotheses with the same tokens only once."""
    cache: dict[TokensT, WordErrors] = {}

    def counter(text: str) -> WordErrors:
        tokens = tokenise(text)
        if tokens not in cache:
            cache[tokens] = count(tokens)
        return cache[tokens]

    return counter

"""Settings for counting errors: transcription marks to honour, units to count, and the alignment.

Reference and hypothesis may both have alternatives. The pair of readings that match best counts: the one with
the fewest errors or, for sclite, the cheapest path through both networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeVar, get_args

from rescorer.errors import ConfigError
from rescorer.evaluation.error_rate.alignment import Arc, Network, Token, align_network, align_words
from rescorer.evaluation.error_rate.alternations import (
    EMPTY,
    Part,
    expand_alternations,
    has_marks,
    parse_alternations,
)
from rescorer.evaluation.error_rate.error_counts import WordErrors, count_closest_readings
from rescorer.text import split_units
from rescorer.types import ErrorUnit

Method = Literal["levenshtein", "sclite"]
Normalise = Callable[[str], tuple[str, ...]]
ErrorCounter = Callable[[str], WordErrors]
"""Counts the errors of a hypothesis, given as text, against a fixed reference."""
Heard = TypeVar("Heard")
"""What a hypothesis is counted as: its words, all its readings or a network of them."""


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
    alternations: bool = True
    """``{ a / b / @ }`` is a choice, in references and hypotheses; if not, braces are ordinary characters."""

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

        Where one of them has alternatives, the readings that match best count: those with the fewest errors,
        or with the lowest cost for sclite. For sclite, ``@`` is the null word also outside braces.

        Args:
            words: converts text to canonical words; it must convert every token independently of the others.

        Raises:
            InvalidList: the alternatives are malformed; the function that is returned raises it for those of
                a hypothesis.
        """
        normalise = words if self.unit == "word" else lambda text: self.split(words(text))
        if self.method == "sclite":
            return self._align_with(reference, normalise, list_id)

        def read(text: str, field: str = "text") -> tuple[tuple[str, ...], ...]:
            readings = self.expand(text, list_id, field)
            return tuple(dict.fromkeys(normalise(" ".join(reading)) for reading in readings))

        references = read(reference, "reference")
        return _cached_counter(read, lambda readings: count_closest_readings(references, readings))

    def expand(self, text: str, list_id: str = "", field: str = "reference") -> tuple[tuple[str, ...], ...]:
        """All readings of a text as written; see ``expand_alternations``.

        Raises:
            InvalidList: the alternatives are malformed.
        """
        return expand_alternations(text, list_id, field) if self.alternations else (tuple(text.split()),)

    def _align_with(self, reference: str, normalise: Normalise, list_id: str) -> ErrorCounter:
        """Build the counter of sclite; texts without any marks take a fast path."""
        has_options = self.optional_words or self.fragments

        def is_plain(text: str) -> bool:
            return not (has_options or (self.alternations and has_marks(text)))

        def tokenise(text: str) -> tuple[Token, ...]:
            if has_options:
                return tuple(token for word in text.split() for token in self._parse_marks(word, normalise))
            return tuple(map(Token, normalise(text)))

        def read(text: str, field: str = "text") -> Network:
            if self.alternations:
                return build_network(parse_alternations(text, list_id, field), tokenise)
            return build_network(text.split(), tokenise, empty=None)

        @cache
        def reference_network() -> Network:
            return read(reference, "reference")

        spoken = normalise(reference) if is_plain(reference) else None
        if spoken is None:
            reference_network()  # an error must come before the first hypothesis

        def hear(text: str) -> tuple[str, ...] | Network:
            return normalise(text) if spoken is not None and is_plain(text) else read(text)

        def count(heard: tuple[str, ...] | Network) -> WordErrors:
            if isinstance(heard, Network):
                return align_network(reference_network(), heard)
            return align_words(spoken or (), heard)

        return _cached_counter(hear, count)

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


def build_network(
    parts: Sequence[Part], tokenise: Callable[[str], Sequence[Token]], empty: str | None = EMPTY
) -> Network:
    """Build the network of a text; a word without tokens gets no arc, and ``empty`` is the null word."""
    arcs: list[Arc] = []

    def add_arc(token: Token | None, predecessors: tuple[int, ...]) -> tuple[int, ...]:
        arcs.append(Arc(token, predecessors))
        return (len(arcs),)

    def add_sequence(sequence: Sequence[Part], predecessors: tuple[int, ...]) -> tuple[int, ...]:
        for part in sequence:
            if part == empty:
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


def _cached_counter(hear: Callable[[str], Heard], count: Callable[[Heard], WordErrors]) -> ErrorCounter:
    """Count hypotheses that are heard as the same only once."""
    counted = cache(count)
    return lambda text: counted(hear(text))

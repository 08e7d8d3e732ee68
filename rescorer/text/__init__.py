"""Text comes in, canonical words go out: in the same way for lists, references and training text.

Models read the words of one normaliser; errors are counted on the words of another. The setting ``rules`` of
each normaliser says which of two sets of rules it follows.
"""

from rescorer.text.normaliser import (
    DROPPED_NUMBER,
    END_NUMBER,
    EVENT_PATTERNS,
    FILLERS,
    LANGUAGE_TAG,
    LETTERS,
    KnownTokens,
    Normaliser,
    NormaliserSettings,
    utf8_bytes,
)
from rescorer.text.units import (
    COUNTING_ADVICE,
    SpacingTally,
    rate_name,
    remark_on_spacing,
    split_units,
    unit_noun,
)

__all__ = [
    "COUNTING_ADVICE",
    "DROPPED_NUMBER",
    "END_NUMBER",
    "EVENT_PATTERNS",
    "FILLERS",
    "LANGUAGE_TAG",
    "LETTERS",
    "KnownTokens",
    "Normaliser",
    "NormaliserSettings",
    "SpacingTally",
    "rate_name",
    "remark_on_spacing",
    "split_units",
    "unit_noun",
    "utf8_bytes",
]

"""Text in, canonical words out: the same for n-best lists, references and training text, in every script.

What models read and what errors are counted on are two normalisers; the ``rules`` of their settings say by
which rules each works.
"""

from rescorer.text.normaliser import (
    EVENT_PATTERNS,
    FILLERS,
    LANGUAGE_TAG,
    LETTERS,
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
    "EVENT_PATTERNS",
    "FILLERS",
    "LANGUAGE_TAG",
    "LETTERS",
    "Normaliser",
    "NormaliserSettings",
    "SpacingTally",
    "rate_name",
    "remark_on_spacing",
    "split_units",
    "unit_noun",
    "utf8_bytes",
]

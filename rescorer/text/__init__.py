"""Text in, canonical words out: the same for n-best lists, references and training text, in every script.

What models read and what errors are counted on are two normalisers; the ``rules`` of their settings say by
which rules each works.
"""

from rescorer.text.normaliser import Normaliser, utf8_bytes
from rescorer.text.settings import EVENT_PATTERNS, FILLERS, LETTERS, NormaliserSettings

__all__ = [
    "EVENT_PATTERNS",
    "FILLERS",
    "LETTERS",
    "Normaliser",
    "NormaliserSettings",
    "utf8_bytes",
]

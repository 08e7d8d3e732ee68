"""Classes of characters: for words, grapheme clusters, and scripts without spaces.

``tools/unicode_classes.py`` generates ``unicode_classes.json`` from the properties of Unicode. Each class is
the inside of a bracket expression. Unicode's standard annex 29, UAX #29, defines grapheme clusters.
"""

from __future__ import annotations

import json
from pathlib import Path

_CLASSES: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

UNICODE_VERSION = _CLASSES["UNICODE_VERSION"]
CONTROL = _CLASSES["CONTROL"]
"""Characters that stand alone."""
EXTEND = _CLASSES["EXTEND"]
"""Marks that belong to the character before them."""
SPACING_MARK = _CLASSES["SPACING_MARK"]
"""Vowel signs next to the character to which they belong."""
PREPEND = _CLASSES["PREPEND"]
"""Characters that belong to the one after them."""
REGIONAL_INDICATOR = _CLASSES["REGIONAL_INDICATOR"]
"""Letters, two of which are a flag."""
PICTOGRAPH = _CLASSES["PICTOGRAPH"]
"""Emoji, which zero width joiners can join."""
CONSONANT = _CLASSES["CONSONANT"]
"""Indic consonants that form conjuncts."""
LINKER = _CLASSES["LINKER"]
"""Signs, such as the virama, that join the next consonant."""
CONJUNCT_EXTEND = _CLASSES["CONJUNCT_EXTEND"]
"""Marks that may stand between linker and consonant."""
JAMO_L = _CLASSES["JAMO_L"]
"""Leading consonants of Hangul."""
JAMO_V = _CLASSES["JAMO_V"]
"""Vowels of Hangul."""
JAMO_T = _CLASSES["JAMO_T"]
"""Trailing consonants of Hangul."""
TERMINAL_PUNCTUATION = _CLASSES["TERMINAL_PUNCTUATION"]
"""Marks at the end of sentences and their parts."""
QUOTES_AND_BRACKETS = _CLASSES["QUOTES_AND_BRACKETS"]
"""Quotation_Mark, and the general categories of opening and closing punctuation."""
DASHES = _CLASSES["DASHES"]
"""Dash_Punctuation: hyphens and dashes."""
FORMAT_CHARACTERS = _CLASSES["FORMAT_CHARACTERS"]
"""General category Cf."""
SCRIPTS_WITHOUT_SPACES = tuple(_CLASSES["SCRIPTS_WITHOUT_SPACES"].split(", "))
"""Scripts without spaces between words: a line may end between letters (UAX #14); and Tibetan."""
WITHOUT_SPACES = _CLASSES["WITHOUT_SPACES"]
"""Characters of these scripts, those that only they use in common with each other, and wide punctuation."""

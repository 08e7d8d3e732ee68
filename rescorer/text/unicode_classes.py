"""Classes of characters: for words, grapheme clusters, and scripts without spaces.

``tools/unicode_classes.py`` generates ``unicode_classes.json`` from the properties of Unicode. Each class is
the text between the brackets of a regular expression. Grapheme clusters are defined in Unicode's standard
annex 29 (UAX #29).
"""

from __future__ import annotations

import json
from pathlib import Path

_classes: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

UNICODE_VERSION = _classes["UNICODE_VERSION"]
CONTROL = _classes["CONTROL"]
"""Control characters, which do not join their neighbours in a grapheme cluster."""
EXTEND = _classes["EXTEND"]
"""Marks that belong to the character before them."""
SPACING_MARK = _classes["SPACING_MARK"]
"""Vowel signs next to the character to which they belong."""
PREPEND = _classes["PREPEND"]
"""Characters that belong to the one after them."""
REGIONAL_INDICATOR = _classes["REGIONAL_INDICATOR"]
"""Letters that form a flag in pairs."""
PICTOGRAPH = _classes["PICTOGRAPH"]
"""Emoji, which zero width joiners can join."""
CONSONANT = _classes["CONSONANT"]
"""Indic consonants that form conjuncts."""
LINKER = _classes["LINKER"]
"""Signs, such as the virama, that join a consonant to the next one."""
CONJUNCT_EXTEND = _classes["CONJUNCT_EXTEND"]
"""Marks that may stand between a linker and the next consonant."""
JAMO_L = _classes["JAMO_L"]
"""Leading consonants of Hangul."""
JAMO_V = _classes["JAMO_V"]
"""Vowels of Hangul."""
JAMO_T = _classes["JAMO_T"]
"""Trailing consonants of Hangul."""
TERMINAL_PUNCTUATION = _classes["TERMINAL_PUNCTUATION"]
"""Marks at the end of sentences and their parts."""
QUOTES_AND_BRACKETS = _classes["QUOTES_AND_BRACKETS"]
"""Quotation_Mark, and the general categories of opening and closing punctuation."""
DASHES = _classes["DASHES"]
"""Dash_Punctuation: hyphens and dashes."""
FORMAT_CHARACTERS = _classes["FORMAT_CHARACTERS"]
"""General category Cf."""
SCRIPTS_WITHOUT_SPACES = tuple(_classes["SCRIPTS_WITHOUT_SPACES"].split(", "))
"""Scripts without spaces between words: Tibetan, and those with line breaks between letters (UAX #14)."""
WITHOUT_SPACES = _classes["WITHOUT_SPACES"]
"""Characters of scripts without spaces, characters that only such scripts share, and wide punctuation."""

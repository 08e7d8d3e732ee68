"""The first rules: what models of bundles read whose ``text.json`` does not name its rules.

They are kept as they were, to the byte, because a model is right only for the words that it was trained on.
For counting errors they are not right in every script: they remove all symbols, join words between which
other scripts' punctuation stands, and take every comma between digits for a separator of thousands.
"""

from __future__ import annotations

import re
import unicodedata

from rescorer.safe_input.patterns import compile_patterns, matches
from rescorer.text.settings import NormaliserSettings


class FirstRules:
    """The words of one token under the first rules."""

    def __init__(self, settings: NormaliserSettings) -> None:
        self.settings = settings
        self._drop = compile_patterns(settings.drop)
        self._keep = compile_patterns(settings.keep)
        joiners = re.escape(settings.multiwords) + (r"\-‐‑–—" if settings.hyphens == "split" else "")
        self._joiners = re.compile(f"[{joiners}]+") if joiners else None

    def words_of(self, token: str) -> list[str]:
        """Return the words of a token without white space; there may be none, or several."""
        settings = self.settings
        if len(token) <= MAX_COMPOSED_CHARACTERS:
            token = unicodedata.normalize(settings.unicode_form, token)
        token = INVISIBLE.sub("", token)
        if settings.variants:
            token = VARIANT.sub("", token)
        strip = settings.punctuation == "strip"
        # A token to drop, keep or replace may be followed by punctuation: "<sil>," and "Uh-huh."
        forms = [token, token.strip(EDGE_PUNCTUATION)] if strip else [token]
        if any(matches(self._drop, form) for form in forms):
            return []
        if settings.case != "keep":
            forms = [form.lower() if settings.case == "lower" else form.upper() for form in forms]
        unsplit = [form for form in forms if form in settings.replace or matches(self._keep, form)]
        if unsplit:
            parts = unsplit[:1]
        else:
            text = INNER_PUNCTUATION.sub(" ", THOUSANDS_SEPARATOR.sub("", forms[0])) if strip else forms[0]
            text = self._joiners.sub(" ", text) if self._joiners else text
            parts = [strip_punctuation(part) if strip else part for part in text.split()]
        replaced = (settings.replace.get(part, part) for part in parts if part)
        return [word for part in replaced for word in part.split()]


# Tokens are untrusted input, and matching blocks the whole process. The patterns below therefore take time
# that is linear in the length of the token.
VARIANT = re.compile(r"(?<=.)\(\d+\)(?=\W*$)")
INVISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
"""Control and format characters, which are invisible but would make words differ."""
EDGE_PUNCTUATION = '.,!?;:…"“”'
INNER_PUNCTUATION = re.compile(r"(?<=[^\W_])(?:[/,;:!?…()\[\]\"“”]|\.{2,}(?!\.))+(?=[^\W_])")
"""Punctuation between two words without a space: ``and/or``, ``wait...what``.

A run of dots is only matched as a whole, because trying all ways to divide it takes exponential time.
"""
THOUSANDS_SEPARATOR = re.compile(r"(?<=\d),(?=\d)")
MAX_COMPOSED_CHARACTERS = 1000
"""Length of the longest token to which Unicode normalisation is applied.

No word is longer, and the normalisation takes quadratic time in the number of combining marks.
"""

DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
TYPOGRAPHIC_APOSTROPHES = str.maketrans({"’": "'", "ʼ": "'", "＇": "'"})


def strip_punctuation(word: str) -> str:
    """Remove punctuation and symbols except apostrophes, hyphens and decimal points inside the word.

    A leading apostrophe is kept (``'tis``, ``'em``) unless the word also ends with one.
    """
    quoted = word.startswith("‘")
    word = DECIMAL_POINT.sub("\0", word.translate(TYPOGRAPHIC_APOSTROPHES))
    kept = "".join(c for c in word if c in "'-" or unicodedata.category(c)[0] not in "PS")
    kept = kept.replace("\0", ".").strip("-")
    if kept.endswith("'") and (quoted or kept.startswith("'")):
        kept = kept.strip("'")
    return kept if kept.strip("'-") else ""

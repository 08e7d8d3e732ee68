"""The second rules: which tokens are equal, in every script.

Two texts have equal words only by rules that have a name here; no other two words become equal, and no words
are joined or lost.

- **case**: ``Sea`` and ``sea``; ``I`` and ``i`` unless the language tells them apart.
- **sentence marks**: Unicode's Terminal_Punctuation and a few others separate words, in every script, and are
  removed: ``yes,no``, ``نعم،لا``. The dots of ``U.S.`` are removed without separating its letters. A comma or
  point before or between digits is part of the number: ``3,5`` is not ``35``.
- **quotes and brackets** separate words and are removed, except apostrophes within a word; a slash separates
  two words, but not two numbers.
- **hyphens** and dashes separate words and are removed, except the minus sign of a number.
- **joining marks** such as ``_`` in ``we_did`` separate words.
- **thousands**: separators that cannot be decimal marks are removed: ``1,234,567``.
- **compatibility**: full-width forms, Arabic presentation forms and ligatures are the ordinary letters.
- **invisible characters** (format characters, controls, variation selectors of emoji) are removed, for they
  change the layout, not the word. Those that can change the word stay (Unicode Standard Annex 31, A1, A2 and
  B): joiners next to a virama or within an emoji, the non-joiner between Arabic letters, tags of flags, and
  signs that are visible. The zero-width space separates words, which is its purpose in Thai and Khmer.
- **pronunciation variants**: ``to(2)`` is ``to``; **events** such as ``[NOISE]`` are no words.

All other symbols are part of the word: ``c++``, ``5%``, ``€5``, tone letters, vowel signs, harakat.

Tokens are untrusted input, and matching blocks the whole process: all patterns take linear time.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from rescorer.safe_input.patterns import compile_patterns, matches
from rescorer.text.settings import FILLERS, LETTERS, NormaliserSettings
from rescorer.text.unicode_classes import (
    DASHES,
    FORMAT_CHARACTERS,
    QUOTES_AND_BRACKETS,
    TERMINAL_PUNCTUATION,
)
from rescorer.text.units import find_clusters

MAX_COMPOSED_CHARACTERS = 1000
"""Length of the longest text to which Unicode normalisation is applied as a whole: it takes quadratic time in
the number of combining marks. Longer tokens, which scripts without spaces have, are composed by cluster."""
VARIANT = re.compile(r"(?<=.)\(\d+\)(?=\W*$)")
UNKNOWN_PIECE = "\u2047"
"""``⁇``, SentencePiece's unknown word: a word of its own, although Unicode calls it a sentence mark."""

# characters that no text has once its controls are removed, in place of marks that are part of a number
_POINT, _COMMA, _MINUS = "\x00", "\x01", "\x02"
_RESTORE: Final = str.maketrans({_POINT: ".", _COMMA: ",", _MINUS: "-"})

OTHER_SENTENCE_MARKS = r"\u2025\u2026\u00a1\u00bf\u2e18\u055d"
"""Sentence marks that Terminal_Punctuation lacks: ellipses, inverted Spanish marks, the Armenian comma."""
_SENTENCE_MARKS = TERMINAL_PUNCTUATION.replace("\u2047-", "\u2048-") + OTHER_SENTENCE_MARKS
"""All sentence marks except ``UNKNOWN_PIECE``."""
_DOUBLE_QUOTES = r"\u0022\u00ab\u00bb\u201c-\u201f"
_APOSTROPHES = "'\u2018\u2019\u02bc\u05f3\uff07"
"""The Hebrew geresh, U+05F3, is among them: most texts write it as an apostrophe."""
_CURRENCY = "$\u00a2-\u00a5\u20a0-\u20cf"
EDGE_MARKS = "`\u00b4\u00b7\u0f0b"
"""Removed at the edges of a word only: spacing accents used as quotes, the Greek semicolon, which within a
Catalan word is a letter's part, and the Tibetan mark between syllables."""

_ZERO_WIDTH_SPACE = "\u200b"
_JOINERS = "\u200c\u200d"
_VISIBLE_FORMAT = (
    r"\u180e\u0600-\u0605\u06dd\u070f\u0890-\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f"
)
_FLAG_TAGS = r"\U000e0020-\U000e007f"
INVISIBLE = re.compile(
    rf"(?![{_JOINERS}{_ZERO_WIDTH_SPACE}{_VISIBLE_FORMAT}{_FLAG_TAGS}])"
    rf"[\x00-\x1f\x7f-\x9f\ufe0e\ufe0f{FORMAT_CHARACTERS}]"
)
_JOINER_RUN = re.compile(f"[{_JOINERS}]+")
_ARMENIAN_INTONATION = re.compile("[\u055b\u055c\u055e]")
"""Marks of emphasis, exclamation and question, which stand within the word."""
_GERSHAYIM = re.compile('(?<=[\u05d0-\u05ea])"(?=[\u05d0-\u05ea])')
_GREEK_SEMICOLON = re.compile(
    "\u0387|(?<=[\u0370-\u03ff\u1f00-\u1fff])\u00b7(?=[\u0370-\u03ff\u1f00-\u1fff])"
)
_SLASH = re.compile(r"(?<=[^\x00-\x40\x5b-\x60\x7b-\x7f\s\d])/(?=[^\x00-\x40\x5b-\x60\x7b-\x7f\s\d])")
_NUMBER_MARK = re.compile(
    rf"(?<=\d)[.,](?=\d)|(?<![^\s(\[{{\"'{_CURRENCY}+\-\u2012\u2013\u2212\u00b1~=<>/])[.,](?=\d)"
)
"""A point or comma within a number, or before its first digit."""
_THOUSANDS = re.compile(
    r"(?<![\d.,])\d{1,3}(?:"
    r"(?:,\d{2,3})+,\d{3}(?:\.\d+)?|,\d{3}\.\d+"  # several commas, or commas and a point
    r"|(?:\.\d{3})+\.\d{3}(?:,\d+)?|\.\d{3},\d+"  # several points, or points and a comma
    r")(?![\d.,]?\d)"
)
MIN_THOUSANDS_CHARACTERS = 5
"""Length of the shortest number with a separator of thousands, ``1,234``."""
_KNOWN_THOUSANDS = {
    decimal: re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{mark}\d{{3}})+(?!\d|{mark}\d)")
    for decimal, mark in ((".", ","), (",", r"\."))
}
"""Numbers with separators of thousands, by a known decimal mark."""
_ARABIC_THOUSANDS = re.compile(r"(?<=\d)\u066c(?=\d)")
_INITIALS = re.compile(r"(?<!\S)(?:[^\W\d_]\.){2,}(?!\S)")
"""Letters that are each followed by a dot, as in ``U.S.`` and ``a.m.``."""
_SIGN = re.compile(
    rf"(?<![^\s=<>~{_CURRENCY}])[-\u2010-\u2013\u2212](?=[^\w\s\-\u2010-\u2015\u2212]{{0,2}}\d)"
)
"""The minus sign of a number, which many texts write as a hyphen or an en dash. It may stand behind a
currency sign, and have one, or a decimal mark, before the first digit."""
_CLOSING_QUOTES = {"'": "'\u2019", "\u2018": "'\u2019", "\u201a": "'\u2018\u2019"}
"""The single quotes that end what each single quote begins."""
VIRAMA = 9
"""The combining class of viramas, which take the vowel from the consonant before them."""
_DOTTED_I = re.compile("i\u0307")


def _edges_of(marks: str) -> re.Pattern[str]:
    """A pattern of runs of marks at the edges of a token; each run is tried once, which takes linear time."""
    return re.compile(f"^(?:{marks})+|(?<!{marks})(?:{marks})+$")


class SecondRules:
    """The words of one token under the second rules.

    >>> rules = SecondRules(NormaliserSettings())
    >>> rules.words_of("Well-known,"), rules.words_of("3,5"), rules.words_of("C++")
    (['well', 'known'], ['3,5'], ['c++'])
    """

    def __init__(self, settings: NormaliserSettings) -> None:
        self.settings = settings
        fillers = [pattern for name in settings.fillers for pattern in FILLERS[name]]
        self._drop = compile_patterns([*settings.drop, *fillers])
        self._keep = compile_patterns(settings.keep)
        letters = LETTERS.get(settings.letters, "")
        self._strips = settings.punctuation == "strip"
        self._case = "keep" if letters else settings.case
        spaced = f"(?![{re.escape(letters)}])" if letters else ""
        # a dot is treated by itself, because of initials; an apostrophe, because of words such as don't
        self._separators = re.compile(
            rf"{spaced}(?![.'\u2018\u2019])[{_SENTENCE_MARKS}{QUOTES_AND_BRACKETS}]"
        )
        self._dot = re.compile(rf"{spaced}\.")
        self._edges = _edges_of(rf"{spaced}[{_SENTENCE_MARKS}{_DOUBLE_QUOTES}]")
        self._dash = re.compile(rf"{spaced}[{DASHES}]")
        self._edge_marks = "".join(mark for mark in EDGE_MARKS if mark not in letters)
        self._edge_dashes = _edges_of(rf"{spaced}[{DASHES}{EDGE_MARKS}]")
        self._apostrophes = "" if "'" in letters else _APOSTROPHES
        joiners = "".join(mark for mark in settings.multiwords if mark not in letters)
        self._joiners = re.compile(f"[{re.escape(joiners)}]") if joiners else None
        self._slash = None if "/" in letters else _SLASH
        self._has_signs = "-" not in letters

    def words_of(self, token: str) -> list[str]:
        """Return the words of a token without white space; there may be none, or several."""
        token = self._clean(token)
        if _ZERO_WIDTH_SPACE in token or any(map(str.isspace, token)):
            return [
                word for part in token.replace(_ZERO_WIDTH_SPACE, " ").split() for word in self._split(part)
            ]
        return self._split(token)

    def _clean(self, token: str) -> str:
        """Compose and fold characters, and remove those that are invisible."""
        if token.isascii():
            return INVISIBLE.sub("", token)
        token = self._compose(_GREEK_SEMICOLON.sub(";", token))  # a Catalan dot, once composed
        if self.settings.compatibility == "fold":
            token = "".join(map(fold_compatibility, token))
        return self._compose(self._fold_joiners(INVISIBLE.sub("", self._compose(token))))

    def _compose(self, text: str) -> str:
        if text.isascii():
            return text
        form = self.settings.unicode_form
        if len(text) <= MAX_COMPOSED_CHARACTERS:
            return unicodedata.normalize(form, text)
        # a text without spaces: no composition crosses the bounds of a cluster
        return "".join(
            cluster if len(cluster) > MAX_COMPOSED_CHARACTERS else unicodedata.normalize(form, cluster)
            for cluster in find_clusters(text)
        )

    def _fold_joiners(self, token: str) -> str:
        return _JOINER_RUN.sub(_keep_joiner, token) if "\u200c" in token or "\u200d" in token else token

    def _split(self, token: str) -> list[str]:
        settings = self.settings
        if settings.variants:
            token = VARIANT.sub("", token)
        # a token to drop, keep or replace may stand next to punctuation: "<sil>," and "Uh-huh."
        forms = [token, self._edges.sub("", token)] if self._strips else [token]
        if (whole := self._whole_word(forms)) is not None:
            return whole
        text = self._separate(token) if self._strips else token
        if settings.hyphens == "split" and not self._strips:
            text = self._dash.sub(" ", text)
        if self._joiners:
            text = self._joiners.sub(" ", text)
        words = []
        for part in text.split():
            stripped = self._strip(part.translate(_RESTORE)) if self._strips else part
            if not stripped:
                continue
            whole = self._whole_word([stripped])
            words += self._replaced(self._fold_case(stripped)) if whole is None else whole
        return words

    def _whole_word(self, forms: list[str]) -> list[str] | None:
        """The words of a token to drop, to keep or to replace, in one of its forms; None for others."""
        if any(matches(self._drop, form) for form in forms):
            return []
        for form in map(self._fold_case, forms):
            if form and (form in self.settings.replace or matches(self._keep, form)):
                return self._replaced(form)
        return None

    def _replaced(self, word: str) -> list[str]:
        return self.settings.replace.get(word, word).split()

    def _separate(self, token: str) -> str:
        """Put spaces in place of the punctuation of a token; marks of numbers become placeholders."""
        if self._apostrophes:
            token = self._unquote(token)
        if not token.isascii():
            token = _GERSHAYIM.sub("\u05f4", _ARMENIAN_INTONATION.sub("", token))
        token = _NUMBER_MARK.sub(lambda mark: _POINT if mark[0] == "." else _COMMA, token)
        text = self._separators.sub(" ", token).replace(UNKNOWN_PIECE, f" {UNKNOWN_PIECE} ")
        if self._has_signs:
            text = _SIGN.sub(_MINUS, text)
        if self.settings.hyphens == "split":
            text = self._dash.sub(" ", text)
        text = self._dot.sub(" ", _INITIALS.sub(lambda initials: initials[0].replace(".", ""), text))
        return self._slash.sub(" ", text) if self._slash else text

    def _strip(self, word: str) -> str:
        """Remove what is not part of a word that stands between separators."""
        word = self._strip_edges(word)
        if len(word) < MIN_THOUSANDS_CHARACTERS:
            return word
        word = _THOUSANDS.sub(_remove_thousands, _ARABIC_THOUSANDS.sub("", word))
        return (
            _KNOWN_THOUSANDS[mark].sub(_remove_thousands, word)
            if (mark := self.settings.decimal_mark)
            else word
        )

    def _unquote(self, token: str) -> str:
        """Remove single quotes around a token, next to other marks or not: ``‘yes,’``."""
        core = self._edges.sub("", token)
        if len(core) > 1 and core[-1] in _CLOSING_QUOTES.get(core[0], ""):
            return core[1:-1]
        return token

    def _strip_edges(self, word: str) -> str:
        """Remove quotes, dashes and marks at the edges of a word, and unify its apostrophes.

        A leading apostrophe is kept (``'tis``, ``'em``) unless the word also ends with one; a leading single
        quotation mark (U+2018) is not.
        """
        word = word.lstrip(self._edge_marks + ("\u2018" if self._apostrophes else "")).rstrip(
            self._edge_marks
        )
        sign = "-" if self._has_signs and _SIGN.match(word) else ""
        word = word[len(sign) :]
        if self.settings.hyphens == "keep":
            word = self._edge_dashes.sub("", word)
        if self._apostrophes:
            word = re.sub(f"[{self._apostrophes}]", "'", word)
            if word.startswith("'") and word.endswith("'"):
                word = word.strip("'" + self._edge_marks)
        return sign + word if word.strip("'") else ""

    def _fold_case(self, word: str) -> str:
        if self._case == "keep":
            return word
        if self._case == "upper":
            dotted = self.settings.has_dotless_i
            folded = word.replace("i", "\u0130").replace("\u0131", "I") if dotted else word
            folded = "".join(map(upper_case, folded))
        else:
            folded = word.replace("\u0130", "i")
            if self.settings.has_dotless_i:
                folded = folded.replace("I", "\u0131")
            # an i is written with a dot anyway, whether the dot is coded (lower() of İ) or not
            folded = _DOTTED_I.sub("i", folded.lower())
        return self._compose(folded)


def fold_compatibility(character: str) -> str:
    """The ordinary letters of a full-width or half-width character, an Arabic presentation form or a
    ligature; any other character as it is."""
    if character < "\ufb00":
        return character
    kind, _, codes = unicodedata.decomposition(character).partition(" ")
    is_width = kind in ("<wide>", "<narrow>")
    is_form = kind in ("<initial>", "<medial>", "<final>", "<isolated>") or "\ufb00" <= character <= "\ufb4f"
    if not is_width and not (is_form and kind.startswith("<") and unicodedata.category(character)[0] == "L"):
        return character
    folded = "".join(chr(int(code, 16)) for code in codes.split())
    # forms of marks alone, and of whole phrases such as U+FDFA, decompose to texts with spaces
    return folded if is_width or " " not in folded else character


def upper_case(letter: str) -> str:
    """The upper case of a letter, unless other letters have it: ß, ı and ᾳ do not become SS, I and ΑΙ."""
    if letter == "\u00df":
        return "\u1e9e"
    upper = letter.upper()
    is_its_own = len(upper) == 1 or unicodedata.normalize("NFC", upper.lower()) == letter
    return upper if is_its_own and letter not in "\u0131\u017f" else letter.lower()


def _keep_joiner(run: re.Match[str]) -> str:
    """The first joiner of a run if it may change the word; nothing otherwise (UAX 31, rules A1, A2 and B)."""
    text, joiner = run.string, run[0][0]
    before, after = text[run.start() - 1 : run.start()], text[run.end() : run.end() + 1]
    if not before:
        return ""
    if joiner == "\u200c":
        if not after or not all(unicodedata.category(one)[0] in "LM" for one in (before, after)):
            return ""
        is_arabic = (
            unicodedata.bidirectional(before) in ("AL", "NSM") and unicodedata.bidirectional(after) == "AL"
        )
        return joiner if is_arabic or unicodedata.combining(before) == VIRAMA else ""
    if unicodedata.combining(before) == VIRAMA:
        return joiner
    if not after:
        return ""
    if unicodedata.combining(after) == VIRAMA:  # a form of the letter before it, as in the Bengali ya-phalaa
        return joiner if unicodedata.category(before)[0] in "LM" else ""
    is_emoji = unicodedata.category(before) in ("So", "Sk") and unicodedata.category(after) == "So"
    return joiner if is_emoji else ""


def _remove_thousands(number: re.Match[str]) -> str:
    """Remove the separators of thousands; the last mark is the decimal one if it differs from the first."""
    text = number[0]
    if unicodedata.digit(text[0]) == 0:  # no number with thousands begins with 0
        return text
    first = next(mark for mark in text if mark in ".,")
    return text.replace(first, "")

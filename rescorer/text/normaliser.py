"""Normalise text into canonical words, in the same way for n-best lists, references and training text.

A bundle stores the settings of a normaliser as ``text.json``. The setting ``rules`` chooses between two sets
of rules. A file without this setting was written before the second rules existed. It gets the first rules
with their defaults, so that its model continues to read the same words. Every token is normalised
independently of its neighbours, so that results can be cached. Tokens are untrusted input, and matching
blocks the whole process, so all patterns take linear time.

The first rules are kept as they were, to the byte, because a model is right only for the words on which it
was trained. They are not right for counting errors in every script: they remove all symbols, join words
between which the punctuation of other scripts stands, and take every comma between digits for a separator of
thousands.

In every script, the second rules make words equal, join them or remove them only for the reasons in this
list.

- **case**: ``Sea`` and ``sea``; ``I`` and ``i`` unless the language tells them apart.
- **sentence marks**: Unicode's Terminal_Punctuation and a few others separate words, in every script, and are
  removed: ``yes,no``, ``نعم،لا``. The dots of ``U.S.`` are removed without separating its letters. A comma or
  point before or between digits is part of the number: ``3,5`` is not ``35``.
- **quotes and brackets** separate words and are removed, except apostrophes within a word; a slash separates
  two words, but not two numbers.
- **hyphens** and dashes separate words and are removed, except the minus sign of a number.
- **joining marks** such as ``_`` in ``we_did`` separate words.
- **thousands**: separators that cannot be decimal marks are removed: ``1,234,567``.
- **compatibility**: full-width forms, Arabic presentation forms and ligatures become the ordinary letters.
- **invisible characters** (format characters, controls, variation selectors of emoji) are removed, because
  they change the layout, not the word. Those that can change the word stay (Unicode Standard Annex 31, A1, A2
  and B): joiners next to a virama or within an emoji, the non-joiner between Arabic letters, tags of flags,
  and signs that are visible. The zero-width space separates words, which is its purpose in Thai and Khmer.
- **pronunciation variants**: ``to(2)`` is ``to``; **events** such as ``[NOISE]`` are removed.

All other symbols are part of the word: ``c++``, ``5%``, ``€5``, tone letters, vowel signs, harakat.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import chain, count, islice, repeat
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from rescorer.errors import ConfigError, did_you_mean, quote
from rescorer.safe_input import check_patterns, compile_patterns, matches
from rescorer.text.unicode_classes import DASHES, FORMAT_CHARACTERS, QUOTES_AND_BRACKETS, TERMINAL_PUNCTUATION
from rescorer.text.units import find_clusters, has_long_clusters

if TYPE_CHECKING:
    from rescorer.text.token_table import TokenTable

FIRST_DROP_PATTERNS = (
    r"</?s>",  # sentence marks
    r"<(sil|eps|noise|spoken_noise|unintelligible)>",
    r"!(NULL|ENTER|EXIT|SENT_START|SENT_END)",  # HTK
    r"\[(NOISE|SPEECH|COUGH|SMACK|UH|UM|LAUGHTER|BREATH|SILENCE|VOCALIZED-NOISE|INAUDIBLE)\]",
    r"\+\+[A-Za-z_]+\+\+",  # Sphinx fillers
    r"-pau-|sil",
)
"""Patterns of tokens that the first rules drop by default, including English fillers and the word "sil"."""
EVENT_PATTERNS = (
    r"</?s>",  # sentence marks
    r"<(sil|silence|eps|noise|spoken_noise|unintelligible|laughter|laugh|breath|cough|music)>",
    r"!(NULL|ENTER|EXIT|SENT_START|SENT_END|SIL)",  # HTK
    r"\[(NOISE|SPEECH|COUGH|SMACK|LAUGHTER|BREATH|SILENCE|SIL|VOCALIZED-NOISE|INAUDIBLE|MUSIC)\]",
    r"\+\+[A-Za-z_]+\+\+",  # Sphinx's noise words
    r"-pau-",
)
"""Patterns of tokens that mark events instead of words, in any case. They are removed by default."""
FIRST_KEEP_PATTERNS = (r"%\w+", r"<\w+>", r"\[(oov|unk)\]")
KEEP_PATTERNS = (r"%\w+", r"<[^<>\s]+>", r"\[(oov|unk)\]", "\u2047")
"""Patterns of tokens that are kept whole, as one word. SentencePiece writes an unknown word as ``\u2047``."""

FILLERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "english": (r"\[(UH|UM|ER|AH|HM|MM)\]", r"uhm?|uhh|umm?|erm?|ah|ahh|eh|hmm?|mmm?|mhm"),
        # the words that NIST's English GLM files of the Hub-5 and RT evaluations map to %hesitation
        "switchboard": (r"%hesitation|\[hesitation\]", r"uh|um|eh|mm|hm|ah|huh|ha|er|oof|hee|ach|eee|ew"),
    }
)
"""Patterns of fillers, such as "uhm", by language or corpus. The setting ``fillers`` contains these names."""

LETTERS: Mapping[str, str] = MappingProxyType(
    {
        # Buckwalter, Arabic transliteration: punctuation outside this set is punctuation there too
        "buckwalter": "'|>&<}{`~*$_",
        # X-SAMPA (Wells 1995) uses every printable sign of ASCII
        "x-sampa": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    }
)
"""The signs that are letters in an alphabet, by the name of the alphabet. The setting ``letters`` is one of
these names. All these alphabets also distinguish upper case from lower case."""

DOTLESS_LANGUAGES = frozenset({"tr", "az", "crh", "gag", "kaa"})
"""Languages in which the lower case of I is ı and the upper case of i is İ."""
LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*")

MAX_REPLACEMENT_CHARACTERS = 100
"""Maximum length of a replacement, so that a text with many replaced words cannot grow without limit."""

Rules = Literal[1, 2]
SECOND_RULES_SETTINGS = ("compatibility", "language", "fillers", "letters", "decimal_mark")
"""Settings that the first rules do not have."""


def _are_strings(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple) and _are_strings(value)


_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "rules": ("1 or 2", lambda value: type(value) is int),
    "drop": ("a list of strings", _is_list),
    "keep": ("a list of strings", _is_list),
    "fillers": ("a list of strings", _is_list),
    "variants": ("true or false", lambda value: isinstance(value, bool)),
    "replace": (
        "an object of strings",
        lambda value: isinstance(value, dict) and _are_strings(value.values()),
    ),
}
"""For each setting that is not a string: the expected value as errors describe it, and a check of values."""
_CHOICES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "rules": get_args(Rules),
        "unicode_form": ("NFC", "NFKC"),
        "compatibility": ("fold", "keep"),
        "case": ("lower", "upper", "keep"),
        "hyphens": ("split", "keep"),
        "punctuation": ("strip", "keep"),
        "decimal_mark": ("", ".", ","),
        "letters": ("", *LETTERS),
    }
)


@dataclass(frozen=True, slots=True)
class NormaliserSettings:
    """Settings of ``Normaliser``, stored in a bundle as ``text.json``.

    The steps are applied in the order of the fields.

    Raises:
        ConfigError: a regular expression is invalid, a value is not allowed, or the first rules are given a
            setting that they do not have.
    """

    rules: Rules = 2
    """2 for the second rules, 1 for the first rules. A file without this setting has the first rules."""
    language: str = ""
    """Language of the text as a tag of BCP 47, such as ``tr`` or ``az-Latn``; empty if unknown. It decides on
    cases: in Turkish, I and ı are the cases of one letter, and İ and i are those of another."""
    unicode_form: Literal["NFC", "NFKC"] = "NFC"
    """Unicode normalisation form."""
    compatibility: Literal["fold", "keep"] = "fold"
    """``fold`` if full-width and half-width characters, Arabic presentation forms and ligatures become
    ordinary letters. Unlike with NFKC, ``m²`` and ``½`` then stay as they are."""
    drop: tuple[str, ...] = EVENT_PATTERNS
    """Regular expressions of tokens that are removed. A whole token must match. ``check_pattern`` of
    ``safe_input`` says which expressions are accepted."""
    fillers: tuple[str, ...] = ()
    """Fillers that are removed as well, by the names of their sets: ``english``, ``switchboard``."""
    variants: bool = True
    """Whether to remove the number of a pronunciation variant: ``to(2)`` becomes ``to``."""
    case: Literal["lower", "upper", "keep"] = "lower"
    """Case of canonical words."""
    keep: tuple[str, ...] = KEEP_PATTERNS
    """Regular expressions of tokens that skip the steps for multiwords, hyphens and punctuation."""
    letters: str = ""
    """Name of an alphabet in which signs are letters: ``buckwalter`` or ``x-sampa``. Case is then kept."""
    multiwords: str = "_"
    """Characters that join several words in one token, as in ``we_did``; empty if there are none."""
    hyphens: Literal["split", "keep"] = "split"
    """Whether to split hyphenated words."""
    punctuation: Literal["strip", "keep"] = "strip"
    """Whether to remove punctuation. Sentence marks, quotes and brackets then separate words. The first rules
    also remove all symbols, and do not separate words at the marks of scripts other than Latin."""
    decimal_mark: str = ""
    """``.`` or ``,``; the other one then separates thousands, even in ``1,234``. If this is empty, only
    separators that cannot be decimal marks are removed, as in ``1,234,567`` and ``1,234.5``."""
    replace: Mapping[str, str] = field(default_factory=dict)
    """Replacements of words, applied before and after splitting, such as ``{"uh-huh": "uh_huh"}``.

    An empty replacement removes the word. Replacements are not processed further.
    """

    def __post_init__(self) -> None:
        for name in ("drop", "keep"):
            try:
                check_patterns(getattr(self, name))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                expected = ", ".join(str(value) if value != "" else "''" for value in allowed)
                raise ConfigError(f"{name}: expected one of {expected}, got {getattr(self, name)!r}")
        for name in self.fillers:
            if name not in FILLERS:
                known = ", ".join(FILLERS)
                raise ConfigError(
                    f"fillers: no set is named {quote(name)}; known: {known}{did_you_mean(name, FILLERS)}"
                )
        if self.language and not LANGUAGE_TAG.fullmatch(self.language):
            raise ConfigError(f"language: expected a tag such as 'tr' or 'pt-BR', got {quote(self.language)}")
        for word, replacement in self.replace.items():
            if len(replacement) > MAX_REPLACEMENT_CHARACTERS:
                raise ConfigError(
                    f"replace: the replacement of {quote(word)} has {len(replacement):,} characters; "
                    f"expected at most {MAX_REPLACEMENT_CHARACTERS}"
                )
        for setting in fields(self) if self.rules == 1 else ():
            if setting.name in SECOND_RULES_SETTINGS and getattr(self, setting.name) != setting.default:
                raise ConfigError(f'{setting.name}: needs the second rules; set "rules" to 2')

    @classmethod
    def first_rules(cls, **settings: Any) -> NormaliserSettings:
        """Return settings of the first rules, with their defaults for settings that are not given."""
        defaults: dict[str, Any] = {"rules": 1, "drop": FIRST_DROP_PATTERNS, "keep": FIRST_KEEP_PATTERNS}
        return cls(**(defaults | settings))

    @classmethod
    def raw(cls) -> NormaliserSettings:
        """Return settings that only split at white space, for normalised text such as the Penn Treebank.

        They use the first rules, so that models that earlier versions trained on raw text stay the same.
        """
        return cls.first_rules(
            drop=(), variants=False, case="keep", keep=(), multiwords="", hyphens="keep", punctuation="keep"
        )

    @property
    def has_dotless_i(self) -> bool:
        """Whether, in the language of the text, I and i are not the two cases of one letter."""
        return self.language.lower().partition("-")[0] in DOTLESS_LANGUAGES

    def describe(self) -> str:
        """Describe the rules in a few words, for reports of what was counted: ``rules 2, language tr``."""
        default = NormaliserSettings() if self.rules == 2 else NormaliserSettings.first_rules()
        if self == NormaliserSettings.raw():
            return "white space only"
        parts = [f"rules {self.rules}"]
        for setting in fields(self):
            value = getattr(self, setting.name)
            if value == getattr(default, setting.name):
                continue
            if setting.name in ("drop", "keep", "replace"):
                parts.append(f"{setting.name} of its own")
            else:
                shown = " ".join(value) if isinstance(value, tuple) else value
                parts.append(f"{setting.name} {shown if shown != '' else 'none'}")
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The content of ``text.json``. Settings of the first rules are written as before the second rules
        existed, so that hashes and recorded runs stay the same.
        """
        values = asdict(self)
        if self.rules == 1:
            values = {k: v for k, v in values.items() if k not in ("rules", *SECOND_RULES_SETTINGS)}
        return values

    def to_json(self) -> str:
        """The text of ``text.json``."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> NormaliserSettings:
        """Build settings from the content of ``text.json``.

        Raises:
            ConfigError: a setting is unknown or invalid.
        """
        known = {setting.name for setting in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"unknown normaliser settings {unknown}; known settings: {sorted(known)}")
        arguments: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        for name, value in arguments.items():
            expected, fits = _TYPES.get(name, ("a string", lambda value: isinstance(value, str)))
            if not fits(value):
                raise ConfigError(f"{name}: expected {expected}, got {ascii(value)[:100]}")
        return cls(**arguments) if arguments.get("rules", 1) == 2 else cls.first_rules(**arguments)


class FirstRules:
    """Finds the words of one token by the first rules."""

    def __init__(self, settings: NormaliserSettings) -> None:
        self.settings = settings
        self._drop = compile_patterns(settings.drop)
        self._keep = compile_patterns(settings.keep)
        joiners = re.escape(settings.multiwords) + (r"\-‐‑–—" if settings.hyphens == "split" else "")
        self._joiners = re.compile(f"[{joiners}]+") if joiners else None
        self._are_letters_plain = not any(map(str.isalpha, settings.multiwords))
        """Whether no letter joins words."""

    def words_of(self, token: str, enough: int | None = None) -> list[str]:
        """Return the words of a token without white space; there may be none, or several.

        Args:
            enough: number of words after which no more are looked for; None: all of them.
        """
        settings = self.settings
        if (
            self._are_letters_plain and token.isascii() and token.isalpha()
        ):  # most tokens: no mark to look for
            if matches(self._drop, token):
                return []
            if settings.case != "keep":
                token = token.lower() if settings.case == "lower" else token.upper()
            return settings.replace.get(token, token).split()
        if len(token) <= MAX_COMPOSED_CHARACTERS:
            token = unicodedata.normalize(settings.unicode_form, token)
        token = INVISIBLE_TO_FIRST_RULES.sub("", token)
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
        parts: Iterable[str]
        if unsplit:
            parts = unsplit[:1]
        else:
            text = INNER_PUNCTUATION.sub(" ", THOUSANDS_SEPARATOR.sub("", forms[0])) if strip else forms[0]
            text = self._joiners.sub(" ", text) if self._joiners else text
            parts = (strip_punctuation(part) if strip else part for part in text.split())
        replaced = (settings.replace.get(part, part) for part in parts if part)
        return [*islice((word for part in replaced for word in part.split()), enough)]


VARIANT = re.compile(r"(?<=.)\(\d+\)(?=\W*$)")
INVISIBLE_TO_FIRST_RULES = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]"
)
"""Control and format characters. They are invisible, but would make words differ."""
EDGE_PUNCTUATION = '.,!?;:…"“”'
INNER_PUNCTUATION = re.compile(r"(?<=[^\W_])(?:[/,;:!?…()\[\]\"“”]|\.{2,}(?!\.))+(?=[^\W_])")
"""Punctuation between two words without a space: ``and/or``, ``wait...what``.

A run of dots matches only as a whole, because trying all ways to divide it would take exponential time.
"""
THOUSANDS_SEPARATOR = re.compile(r"(?<=\d),(?=\d)")
MAX_COMPOSED_CHARACTERS = 1000
"""Longest text to which Unicode normalisation is applied as a whole; its time is quadratic in the number of
combining marks. Longer tokens occur in scripts without spaces. The first rules do not compose them, and the
second rules compose each of their grapheme clusters separately."""

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


UNKNOWN_PIECE = "\u2047"
"""``⁇``, which SentencePiece writes for an unknown word. It is a word, though Unicode has it as a mark."""

# characters that no text has once its controls are removed, in place of marks that are part of a number
_POINT, _COMMA, _MINUS = "\x00", "\x01", "\x02"
_RESTORE: Final = str.maketrans({_POINT: ".", _COMMA: ",", _MINUS: "-"})

OTHER_SENTENCE_MARKS = r"\u2025\u2026\u00a1\u00bf\u2e18\u055d"
"""Sentence marks that Terminal_Punctuation lacks: ellipses, inverted Spanish marks, the Armenian comma."""
_SENTENCE_MARKS = TERMINAL_PUNCTUATION.replace("\u2047-", "\u2048-") + OTHER_SENTENCE_MARKS
"""All sentence marks except ``UNKNOWN_PIECE``."""
_DOUBLE_QUOTES = r"\u0022\u00ab\u00bb\u201c-\u201f"
_APOSTROPHES = "'\u2018\u2019\u02bc\u05f3\uff07"
"""Apostrophes. The Hebrew geresh (U+05F3) is one of them, because most texts write it as an apostrophe."""
_CURRENCY = "$\u00a2-\u00a5\u20a0-\u20cf"
EDGE_MARKS = "`\u00b4\u00b7\u0f0b"
"""Marks that are removed only at the edges of a word: accents used as quotes, the Greek semicolon (within
Catalan words, the same mark is part of a letter), and the Tibetan mark between syllables."""

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
"""Armenian marks of emphasis, exclamation and question, which stand within the word."""
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
"""Patterns of numbers with separators of thousands, for each decimal mark."""
_ARABIC_THOUSANDS = re.compile(r"(?<=\d)\u066c(?=\d)")
_INITIALS = re.compile(r"(?<!\S)(?:[^\W\d_]\.){2,}(?!\S)")
"""Letters that are each followed by a dot, as in ``U.S.`` and ``a.m.``."""
_SIGN = re.compile(
    rf"(?<![^\s=<>~{_CURRENCY}])[-\u2010-\u2013\u2212](?=[^\w\s\-\u2010-\u2015\u2212]{{0,2}}\d)"
)
"""The minus sign of a number, which many texts write as a hyphen or an en dash. A currency sign may precede
it, and a currency sign or a decimal mark may come between it and the first digit."""
_CLOSING_QUOTES = {"'": "'\u2019", "\u2018": "'\u2019", "\u201a": "'\u2018\u2019"}
"""For each opening single quote, the quotes that may close it."""
VIRAMA = 9
"""The combining class of viramas, which silence the vowel of the consonant before them."""
_DOTTED_I = re.compile("i\u0307")


def _edges_of(marks: str) -> re.Pattern[str]:
    """Make a pattern that matches runs of marks at both ends of a token in linear time."""
    return re.compile(f"^(?:{marks})+|(?<!{marks})(?:{marks})+$")


class SecondRules:
    """Finds the words of one token by the second rules.

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
        self._are_letters_plain = not any(map(str.isalpha, settings.multiwords))
        """Whether no letter joins words."""
        self._has_signs = "-" not in letters

    def words_of(self, token: str, enough: int | None = None) -> list[str]:
        """Return the words of a token without white space; there may be none, or several.

        Args:
            enough: number of words after which no more are looked for; None: all of them.
        """
        if (
            self._are_letters_plain and token.isascii() and token.isalpha()
        ):  # most tokens: no mark to look for
            whole = self._whole_word([token])
            return self._replaced(self._fold_case(token)) if whole is None else whole
        token = self._clean(token)
        if _ZERO_WIDTH_SPACE in token or any(map(str.isspace, token)):
            parts = token.replace(_ZERO_WIDTH_SPACE, " ").split()
            return [*islice((word for part in parts for word in self._split(part, enough)), enough)]
        return self._split(token, enough)

    def _clean(self, token: str) -> str:
        """Compose and fold characters, and remove invisible ones."""
        if token.isascii():
            return INVISIBLE.sub("", token)
        token = self._compose(_GREEK_SEMICOLON.sub(";", token))  # a Catalan dot, once composed
        if self.settings.compatibility == "fold":
            token = token if max(token) < FIRST_FOLDED else "".join(map(fold_compatibility, token))
        token = INVISIBLE.sub("", self._compose(token))
        has_joiner = "\u200c" in token or "\u200d" in token
        return self._compose(_JOINER_RUN.sub(_keep_joiner, token) if has_joiner else token)

    def _compose(self, text: str) -> str:
        if text.isascii():
            return text
        form = self.settings.unicode_form
        if len(text) <= MAX_COMPOSED_CHARACTERS or not has_long_clusters(text):
            return unicodedata.normalize(form, text)
        # a text without spaces: no composition crosses the bounds of a cluster
        return "".join(
            cluster if len(cluster) > MAX_COMPOSED_CHARACTERS else unicodedata.normalize(form, cluster)
            for cluster in find_clusters(text)
        )

    def _split(self, token: str, enough: int | None) -> list[str]:
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
        return [*islice(chain.from_iterable(map(self._words_of_part, text.split())), enough)]

    def _words_of_part(self, part: str) -> list[str]:
        """Return the words of a part of a token that no mark divides any more."""
        stripped = self._strip(part.translate(_RESTORE)) if self._strips else part
        if not stripped:
            return []
        whole = self._whole_word([stripped])
        return self._replaced(self._fold_case(stripped)) if whole is None else whole

    def _whole_word(self, forms: list[str]) -> list[str] | None:
        """Return the words of a token if one of its forms is to be dropped, kept or replaced, otherwise
        None.
        """
        if any(matches(self._drop, form) for form in forms):
            return []
        for form in map(self._fold_case, forms):
            if form and (form in self.settings.replace or matches(self._keep, form)):
                return self._replaced(form)
        return None

    def _replaced(self, word: str) -> list[str]:
        return self.settings.replace.get(word, word).split()

    def _separate(self, token: str) -> str:
        """Replace the punctuation of a token by spaces, but marks within numbers by placeholders."""
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
        """Remove marks at the edges of a word, and separators of thousands in numbers."""
        word = self._strip_edges(word)
        if len(word) < MIN_THOUSANDS_CHARACTERS:
            return word
        word = _THOUSANDS.sub(_remove_thousands, _ARABIC_THOUSANDS.sub("", word))
        known = _KNOWN_THOUSANDS.get(self.settings.decimal_mark)
        return known.sub(_remove_thousands, word) if known else word

    def _unquote(self, token: str) -> str:
        """Remove single quotes around a token, even if other marks stand next to them: ``‘yes,’``."""
        core = self._edges.sub("", token)
        if len(core) > 1 and core[-1] in _CLOSING_QUOTES.get(core[0], ""):
            return core[1:-1]
        return token

    def _strip_edges(self, word: str) -> str:
        """Remove quotes, dashes and marks at the edges of a word, and unify its apostrophes.

        A leading apostrophe is kept (``'tis``, ``'em``) unless the word also ends with one. A leading single
        quotation mark (U+2018) is removed.
        """
        opening = self._edge_marks + ("\u2018" if self._apostrophes else "")
        word = word.lstrip(opening).rstrip(self._edge_marks)
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


FIRST_FOLDED = "\ufb00"
"""First of the characters that ``fold_compatibility`` changes."""


def fold_compatibility(character: str) -> str:
    """The ordinary letters of a full- or half-width character, an Arabic presentation form or a ligature.

    Any other character is returned as it is.
    """
    if character < FIRST_FOLDED:
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
    """Return a letter in upper case, except if other letters have the same upper case, as SS, I and ΑΙ for
    ß, ı and ᾳ."""
    if letter == "\u00df":
        return "\u1e9e"
    upper = letter.upper()
    is_its_own = len(upper) == 1 or unicodedata.normalize("NFC", upper.lower()) == letter
    return upper if is_its_own and letter not in "\u0131\u017f" else letter.lower()


def _keep_joiner(run: re.Match[str]) -> str:
    """Return the first joiner of a run if it may change the word (UAX 31, A1, A2 and B), otherwise ""."""
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
    """Remove separators of thousands from a number. A last mark that differs from the first stays."""
    text = number[0]
    if unicodedata.digit(text[0]) == 0:  # no number with thousands begins with 0
        return text
    first = next(mark for mark in text if mark in ".,")
    return text.replace(first, "")


class Normaliser:
    """Converts text to canonical words.

    >>> Normaliser().normalise("<s> Here's  to(2) [NOISE] we_did, well-known!")
    ("here's", 'to', 'we', 'did', 'well', 'known')
    """

    def __init__(self, settings: NormaliserSettings | None = None) -> None:
        self.settings = settings or NormaliserSettings()
        rules = FirstRules if self.settings.rules == 1 else SecondRules
        self._words_of = rules(self.settings).words_of
        self._replacement_growth = max_replacement_growth(self.settings.replace)
        self._cache: dict[str, tuple[str, ...]] = {}
        self.known = KnownTokens()
        """Numbers of the tokens in the cache. When the cache is cleared, new ones begin."""
        self._single_words: dict[str, str] = {}
        """The word of each cached token that has exactly one word, as most tokens have."""
        self._cache_bytes = 0

    def normalise(self, text: str, enough: int | None = None) -> tuple[str, ...]:
        """Return the canonical words of a text; there may be none.

        Args:
            enough: number of words after which no more are looked for, because the text is refused anyway;
                None: all of them.
        """
        tokens = text.split()
        try:
            words = [*map(self._single_words.__getitem__, tokens)]
        except KeyError:  # a token that is not in the cache, or not one word
            words = self._normalise_tokens(tokens, enough)
        return tuple(words)  # a tuple made from an iterator grows, and its memory is kept for reuse in vain

    def _normalise_tokens(self, tokens: list[str], enough: int | None) -> list[str]:
        try:
            return [*chain.from_iterable(map(self._cache.__getitem__, tokens))]
        except KeyError:  # a token that is not in the cache
            found = map(self.normalise_token, tokens, repeat(enough))
            return [*islice(chain.from_iterable(found), enough)]

    def normalise_token(self, token: str, enough: int | None = None) -> tuple[str, ...]:
        """Return the canonical words of one token, which contains no white space; see ``normalise``."""
        words = self._cache.get(token)
        if words is None:
            words = tuple(self._words_of(token, enough))
            is_whole = enough is None or len(words) < enough
            if is_whole and len(token) <= MAX_CACHED_CHARACTERS:
                self._add_to_cache(token, words)
        return words

    def surfaces(self, text: str) -> tuple[str, ...]:
        """Return the spelling in a text of each of its canonical words.

        A word that is a whole token is spelt like the token, without the number of a pronunciation variant.
        A word that is only a part of a token, such as ``we`` in ``we_did``, is spelt like the canonical word.
        """
        surfaces = list[str]()
        for token in text.split():
            words = self.normalise_token(token)
            if len(words) == 1:
                written = VARIANT.sub("", token) if self.settings.variants else token
                surfaces.append(written if self.normalise_token(written) == words else token)
            else:
                surfaces += words
        return tuple(surfaces)

    def max_growth(self, text: str) -> int:
        """Return the largest factor by which the words can be longer than this text, in bytes of UTF-8."""
        settings = self.settings
        if text.isascii():
            by_character = 2 if settings.has_dotless_i else 1  # I becomes ı, or i İ
        else:
            by_character = MAX_CHARACTER_GROWTH[settings.unicode_form]
        return by_character * self._replacement_growth

    def max_words(self, text: str) -> int:
        """Return an upper bound of the number of words of this text, without normalising it."""
        return (utf8_bytes(text) * self.max_growth(text) + 1) // 2

    def clear(self) -> None:
        """Forget all tokens."""
        self._cache.clear()
        self._single_words.clear()
        self.known = KnownTokens()
        self._cache_bytes = 0

    def _add_to_cache(self, token: str, words: tuple[str, ...]) -> None:
        if self._cache_bytes >= MAX_CACHE_BYTES:
            self.clear()
        self._cache[token] = words
        if len(words) == 1:
            (self._single_words[token],) = words
        self.known.add(token, words)
        self._cache_bytes += CACHE_ENTRY_BYTES + sum(map(sys.getsizeof, (token, words, *words)))


TEXT_END = "\ufdd0"
"""Token that marks the end of a text. Unicode has assigned this character to nothing, for such purposes."""
END_NUMBER, DROPPED_NUMBER = -1, -2
MAX_NUMBERED_WORDS = 8
"""Largest number of words of a token that has a number, so that many of these tokens cannot fill memory."""


class KnownTokens:
    """Numbers of tokens and words. A token that is one word has the number of this word.

    Any thread may read and add tokens.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {TEXT_END: END_NUMBER}
        """Number of each token: that of its word; ``DROPPED_NUMBER`` if it has no words; or a key of
        ``several``."""
        self.several: dict[int, tuple[int, ...]] = {}
        """The numbers of the words of tokens that have several, by numbers below ``DROPPED_NUMBER``. Tokens
        with more than ``MAX_NUMBERED_WORDS`` words have no number."""
        self.words: dict[int, str] = {}
        """Each numbered word."""
        self.number_of: dict[str, int] = {}
        """The number of each word."""
        self._next, self._next_several = count(), count(DROPPED_NUMBER - 1, -1)

    @cached_property
    def table(self) -> TokenTable:
        """A table of these tokens, with which long texts are looked up several times as fast."""
        from rescorer.text.token_table import TokenTable  # imports NumPy, which clients need not have

        return TokenTable()

    def add(self, token: str, words: Sequence[str]) -> None:
        """Add a token with its words. The number of a word does not depend on the token that has it."""
        numbers = [*map(self._number_of, words)]
        if len(numbers) > MAX_NUMBERED_WORDS:
            return
        number = numbers[0] if numbers else DROPPED_NUMBER
        if len(numbers) > 1:
            number = next(self._next_several)
            self.several[number] = tuple(numbers)
        self.numbers.setdefault(token, number)

    def _number_of(self, word: str) -> int:
        """Return the number of a word; a new word gets the next one."""
        number = self.number_of.get(word)
        if number is None:
            number = next(self._next)
            self.words[number] = word
            number = self.number_of.setdefault(word, number)
        return number

    def split(self, texts: Sequence[str]) -> list[str]:
        """Return all tokens of texts, one text after another, with ``TEXT_END`` after each.

        Raises:
            KeyError: a text contains ``TEXT_END``.
        """
        joined = f" {TEXT_END} ".join([*texts, ""])
        if joined.count(TEXT_END) > len(texts):
            raise KeyError(TEXT_END)
        return joined.split()


MAX_CACHE_BYTES = 60_000_000
"""Number of bytes at which the token cache is cleared. About 110,000 words fit, more than most texts have."""
CACHE_ENTRY_BYTES = 360
"""Number of bytes that a token takes in all caches, in addition to its strings."""
MAX_CACHED_CHARACTERS = 65_536
"""Length of the longest token that is cached. Ranking reads the tokens of a list again."""
MAX_CHARACTER_GROWTH = {"NFC": 3, "NFKC": 11}
"""Largest factor by which normalisation and a change of case can lengthen a character, in bytes of UTF-8."""


def max_replacement_growth(replace: Mapping[str, str]) -> int:
    """Return how many times longer a replacement can be than its word, in bytes of UTF-8, rounded up."""
    sizes = ((utf8_bytes(word), utf8_bytes(replacement)) for word, replacement in replace.items())
    return max((ceil(after / before) for before, after in sizes if before and after), default=1)


def utf8_bytes(text: str) -> int:
    """Return the size of a text in UTF-8, in which a lone surrogate counts three bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))

"""Settings of a normaliser, which a bundle stores as ``text.json``, and the named sets that they can use.

``rules`` says which code reads the other settings. A file without it was written before there were second
rules: it means the first rules and their defaults, so that a model goes on reading the same words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from rescorer.errors import ConfigError, did_you_mean, quote
from rescorer.safe_input.patterns import check_patterns

FIRST_DROP_PATTERNS = (
    r"</?s>",  # sentence marks
    r"<(sil|eps|noise|spoken_noise|unintelligible)>",
    r"!(NULL|ENTER|EXIT|SENT_START|SENT_END)",  # HTK
    r"\[(NOISE|SPEECH|COUGH|SMACK|UH|UM|LAUGHTER|BREATH|SILENCE|VOCALIZED-NOISE|INAUDIBLE)\]",
    r"\+\+[A-Za-z_]+\+\+",  # Sphinx fillers
    r"-pau-|sil",
)
"""Tokens that the first rules drop by default; among them are English fillers and the word "sil"."""
EVENT_PATTERNS = (
    r"</?s>",  # sentence marks
    r"<(sil|silence|eps|noise|spoken_noise|unintelligible|laughter|laugh|breath|cough|music)>",
    r"!(NULL|ENTER|EXIT|SENT_START|SENT_END|SIL)",  # HTK
    r"\[(NOISE|SPEECH|COUGH|SMACK|LAUGHTER|BREATH|SILENCE|SIL|VOCALIZED-NOISE|INAUDIBLE|MUSIC)\]",
    r"\+\+[A-Za-z_]+\+\+",  # Sphinx's noise words
    r"-pau-",
)
"""Tokens of recognisers that stand for events, not for words, and are dropped by default, in any case."""
FIRST_KEEP_PATTERNS = (r"%\w+", r"<\w+>", r"\[(oov|unk)\]")
KEEP_PATTERNS = (r"%\w+", r"<[^<>\s]+>", r"\[(oov|unk)\]", "\u2047")
"""Tokens that are words as they are; ``\u2047`` is how SentencePiece writes an unknown word."""

FILLERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "english": (r"\[(UH|UM|ER|AH|HM|MM)\]", r"uhm?|uhh|umm?|erm?|ah|ahh|eh|hmm?|mmm?|mhm"),
        # the words that NIST's English GLM files of the Hub-5 and RT evaluations map to %hesitation
        "switchboard": (
            r"%hesitation|\[hesitation\]",
            r"uh|um|eh|mm|hm|ah|huh|ha|er|oof|hee|ach|eee|ew",
        ),
    }
)
"""Fillers of a language or corpus by name, as patterns of tokens; ``fillers`` of the settings names them."""

LETTERS: Mapping[str, str] = MappingProxyType(
    {
        # Buckwalter, Arabic transliteration: punctuation outside this set is punctuation there too
        "buckwalter": "'|>&<}{`~*$_",
        # X-SAMPA (Wells 1995) uses every printable sign of ASCII
        "x-sampa": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    }
)
"""Signs that are letters in an alphabet, by its name; ``letters`` of the settings names one. These alphabets
also tell upper case from lower case."""

DOTLESS_LANGUAGES = frozenset({"tr", "az", "crh", "gag", "kaa"})
"""Languages in which the lower case of I is ı and the upper case of i is İ."""
LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*")

MAX_REPLACEMENT_CHARACTERS = 100
"""Longest replacement of a word. A text of many such words must not grow beyond all bounds."""

Rules = Literal[1, 2]
SECOND_RULES_SETTINGS = ("compatibility", "language", "fillers", "letters", "decimal_mark")
"""Settings that the first rules lack."""


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
"""Types of the settings that are not strings."""
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
        ConfigError: a regular expression is invalid, a value is not one of those permitted, or the first
            rules are asked for a setting that they lack.
    """

    rules: Rules = 2
    """2: ``second_rules``; 1: ``first_rules``, those of a file without this setting."""
    language: str = ""
    """Language of the text, such as ``tr`` or ``az-Latn``, a tag of BCP 47. It decides the case of I and ı,
    which are two letters in Turkish. Empty: not known."""
    unicode_form: Literal["NFC", "NFKC"] = "NFC"
    """Unicode normalisation form."""
    compatibility: Literal["fold", "keep"] = "fold"
    """Whether full-width and half-width characters, Arabic presentation forms and ligatures become ordinary
    letters; unlike with NFKC, ``m²`` and ``½`` stay as they are."""
    drop: tuple[str, ...] = EVENT_PATTERNS
    """Regular expressions of tokens that are removed; they must match the whole token. Module
    ``patterns`` says which expressions are accepted."""
    fillers: tuple[str, ...] = ()
    """Names of sets of fillers that are removed too: ``english``, ``switchboard``."""
    variants: bool = True
    """Whether to remove pronunciation variant numbers: ``to(2)`` becomes ``to``."""
    case: Literal["lower", "upper", "keep"] = "lower"
    """Case of canonical words."""
    keep: tuple[str, ...] = KEEP_PATTERNS
    """Regular expressions of tokens that skip the steps for multiwords, hyphens and punctuation."""
    letters: str = ""
    """Name of an alphabet in which signs are letters: ``buckwalter`` or ``x-sampa``; its case is kept."""
    multiwords: str = "_"
    """Characters that join several words in one token, such as ``we_did``; empty: none."""
    hyphens: Literal["split", "keep"] = "split"
    """Whether to split hyphenated words."""
    punctuation: Literal["strip", "keep"] = "strip"
    """Whether to remove punctuation: sentence marks, quotes and brackets separate words and are removed. The
    first rules also remove all symbols, and join what other scripts' marks separate."""
    decimal_mark: str = ""
    """``.`` or ``,``: the other one separates thousands, also in ``1,234``. Empty: not known, so that only
    separators that cannot be decimal marks, as in ``1,234,567`` and ``1,234.5``, are removed."""
    replace: Mapping[str, str] = field(default_factory=dict)
    """Replacements of words, applied before and after splitting, such as ``{"uh-huh": "uh_huh"}``.

    An empty value removes the word. Replacements are not processed further.
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
        if self.rules == 1:
            self._check_first_rules()

    def _check_first_rules(self) -> None:
        for setting in fields(self):
            if setting.name in SECOND_RULES_SETTINGS and getattr(self, setting.name) != setting.default:
                raise ConfigError(f'{setting.name}: needs the second rules; set "rules" to 2')

    @classmethod
    def first_rules(cls, **settings: Any) -> NormaliserSettings:
        """Return settings of the first rules, with those rules' defaults for all that are not given."""
        defaults: dict[str, Any] = {"rules": 1, "drop": FIRST_DROP_PATTERNS, "keep": FIRST_KEEP_PATTERNS}
        return cls(**(defaults | settings))

    @classmethod
    def raw(cls) -> NormaliserSettings:
        """Return settings that only split at white space, for normalised text such as the Penn Treebank.

        They are of the first rules, as before there were others: models trained on raw text stay the same.
        """
        return cls.first_rules(
            drop=(), variants=False, case="keep", keep=(), multiwords="", hyphens="keep", punctuation="keep"
        )

    @property
    def has_dotless_i(self) -> bool:
        """Whether I and i are not two cases of one letter in the language of the text."""
        return self.language.lower().partition("-")[0] in DOTLESS_LANGUAGES

    def describe(self) -> str:
        """The rules in a few words, for what is counted by them: ``rules 2, language tr``."""
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
        """The content of ``text.json``. Settings of the first rules are written as before there were others,
        so that hashes and recorded runs stay the same."""
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
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"unknown normaliser settings {unknown}; known settings: {sorted(known)}")
        arguments: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        for name, value in arguments.items():
            expected, fits = _TYPES.get(name, ("a string", lambda value: isinstance(value, str)))
            if not fits(value):
                raise ConfigError(f"{name}: expected {expected}, got {ascii(value)[:100]}")
        return cls(**arguments) if arguments.get("rules", 1) == 2 else cls.first_rules(**arguments)

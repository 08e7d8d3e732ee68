"""Write ``rescorer/text/unicode_classes.json``: the characters of words and units.

The properties are those of the library regex, which is needed only here, in any environment::

    pip install regex==2026.11.19
    python tools/unicode_classes.py            # or --check: fail if the file differs

The tables are in the repository, so that error rates do not change with the version of a library. They follow
Unicode 18.0. Python's ``unicodedata`` has neither grapheme clusters nor scripts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "rescorer" / "text" / "unicode_classes.json"
UNICODE_VERSION = "18.0"
HANGUL = "HANGUL"
WIDE_MARKS = r"\p{sc=Common}&&[\p{ea=W}\p{ea=F}]&&[\p{P}\p{S}]--\p{Extended_Pictographic}"
"""East Asian punctuation, which does not belong to the words next to it."""
BREAKABLE = ("ID", "CJ", "NS", "SA", "AK", "AP", "AS")
"""Line breaking classes (UAX #14) of letters after which a line may end without a space."""
SCRIPTS = (
    "Ahom", "Balinese", "Batak", "Bopomofo", "Brahmi", "Cham", "Dives Akuru", "Grantha",
    "Gurung Khema", "Han", "Hiragana", "Javanese", "Jurchen", "Katakana", "Kawi", "Khmer", "Lao",
    "Makasar", "Myanmar", "New Tai Lue", "Nushu", "Seal", "Tai Le", "Tai Tham", "Tai Viet",
    "Tangut", "Thai", "Tibetan", "Tulu-Tigalari", "Yi",
)  # fmt: skip
"""The scripts without spaces, as Unicode spells them. ``find_scripts_without_spaces`` must find them."""
ALWAYS = ("Tibetan",)
"""Scripts without spaces between words whose lines end at marks between syllables."""

CLASSES = {
    "CONTROL": r"\p{GCB=Control}\p{GCB=CR}\p{GCB=LF}",
    "EXTEND": r"\p{GCB=Extend}",
    "SPACING_MARK": r"\p{GCB=SpacingMark}",
    "PREPEND": r"\p{GCB=Prepend}",
    "REGIONAL_INDICATOR": r"\p{GCB=Regional_Indicator}",
    "PICTOGRAPH": r"\p{Extended_Pictographic}",
    "CONSONANT": r"\p{InCB=Consonant}",
    "LINKER": r"\p{InCB=Linker}",
    "CONJUNCT_EXTEND": r"\p{InCB=Extend}",
    "JAMO_L": r"\p{GCB=L}",
    "JAMO_V": r"\p{GCB=V}",
    "JAMO_T": r"\p{GCB=T}",
    "TERMINAL_PUNCTUATION": r"\p{Terminal_Punctuation}",
    "QUOTES_AND_BRACKETS": r"\p{Quotation_Mark}\p{Ps}\p{Pe}\p{Pi}\p{Pf}",
    "DASHES": r"\p{Pd}",
    "FORMAT_CHARACTERS": r"\p{Cf}",
}
"""The expressions of the classes that ``rescorer/text/unicode_classes.py`` describes."""


def make_ranges(code_points: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of consecutive code points."""
    first = last = None
    for code in code_points:
        if first is None or last is None:
            first = last = code
        elif code == last + 1:
            last = code
        else:
            yield first, last
            first = last = code
    if first is not None and last is not None:
        yield first, last


def escape(code: int) -> str:
    """A character as a bracket expression has it."""
    is_sign = code < 0x80 and not chr(code).isalnum() and code > 0x20
    return f"\\u{code:04x}" if is_sign else chr(code)


def format_class(code_points: Iterable[int]) -> str:
    """The inside of a bracket expression."""
    return "".join(
        escape(first) + (("-" if last > first + 1 else "") + escape(last) if last > first else "")
        for first, last in make_ranges(code_points)
    )


class Properties:
    """Looks up the characters that have a property."""

    def __init__(self) -> None:
        import regex  # type: ignore[import-not-found, import-untyped, unused-ignore]

        self._regex: Any = regex
        self._all = "".join(map(chr, range(0x110000)))

    def find(self, expression: str) -> list[int]:
        return [ord(char) for char in self._regex.findall(f"[{expression}]", self._all, self._regex.V1)]

    def share(self, expression: str, code_points: Iterable[int]) -> float:
        text = "".join(map(chr, code_points))
        return len(self._regex.findall(f"[{expression}]", text, self._regex.V1)) / max(len(text), 1)

    def scripts(self) -> list[str]:
        """Names of all scripts in the spelling of the library: in capitals, without spaces."""
        names: dict[int, str] = {}
        for name, number in self._regex._regex_core.PROPERTIES["SCRIPT"][1].items():
            names.setdefault(number, name)
        return sorted(set(names.values()) - {"COMMON", "INHERITED", "UNKNOWN"})


def find_scripts_without_spaces(properties: Properties) -> list[str]:
    """Find scripts of whose letters most need no space to break a line, and add those of ``ALWAYS``."""
    breakable = "".join(rf"\p{{lb={name}}}" for name in BREAKABLE)
    found = [
        name
        for name in properties.scripts()
        if properties.share(breakable, properties.find(rf"\p{{sc={name}}}&&\p{{L}}")) > 0.5
    ]
    return sorted({*found, *map(spell, ALWAYS)} - {HANGUL})


def spell(name: str) -> str:
    """Spell the name of a script like the library."""
    return name.upper().replace(" ", "").replace("-", "")


def generate() -> str:
    properties = Properties()
    classes = {"UNICODE_VERSION": UNICODE_VERSION}
    classes |= {name: format_class(properties.find(expression)) for name, expression in CLASSES.items()}
    scripts = find_scripts_without_spaces(properties)
    if scripts != sorted(map(spell, SCRIPTS)):
        sys.exit(f"by the rule, SCRIPTS should be {scripts}")
    own = "".join(rf"\p{{sc={name}}}" for name in scripts)
    shared = "".join(rf"\p{{scx={name}}}" for name in properties.scripts() if name not in (*scripts, HANGUL))
    extended = "".join(rf"\p{{scx={name}}}" for name in scripts)
    characters = set(properties.find(own)) | set(
        properties.find(rf"[\p{{sc=Common}}\p{{sc=Inherited}}]&&[{extended}]--[{shared}]")
    )
    characters |= set(properties.find(WIDE_MARKS))
    classes["SCRIPTS_WITHOUT_SPACES"] = ", ".join(SCRIPTS)
    classes["WITHOUT_SPACES"] = format_class(sorted(characters))
    return json.dumps(classes, indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write rescorer/text/unicode_classes.json.")
    parser.add_argument("--check", action="store_true", help="only fail if the file is not up to date")
    text = generate()
    if parser.parse_args().check:
        sys.exit(0 if FILE.read_text(encoding="utf-8") == text else f"{FILE} is not up to date")
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

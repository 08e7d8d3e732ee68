"""Slow and obvious twins of ``rescorer.text.units``: each rule of UAX #29 in turn, for each boundary."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

from rescorer.text import unicode_classes as classes

ZWJ = "\u200d"


@cache
def has(char: str, name: str) -> bool:
    """Whether a character is in a class of ``unicode_classes``."""
    return re.match(f"[{getattr(classes, name)}]", char) is not None


def hangul_kind(char: str) -> str:
    if "\uac00" <= char <= "\ud7a3":
        return "LVT" if (ord(char) - 0xAC00) % 28 else "LV"
    return next((kind for kind in "LVT" if has(char, f"JAMO_{kind}")), "")


def is_boundary(text: str, place: int) -> bool:
    """Whether a grapheme cluster begins at a place between two characters."""
    before, after = text[place - 1], text[place]
    if before == "\r" and after == "\n":  # GB3
        return False
    if has(before, "CONTROL") or has(after, "CONTROL"):  # GB4, GB5
        return True
    left, right = hangul_kind(before), hangul_kind(after)
    if left == "L" and right in ("L", "V", "LV", "LVT"):  # GB6
        return False
    if left in ("LV", "V") and right in ("V", "T"):  # GB7
        return False
    if left in ("LVT", "T") and right == "T":  # GB8
        return False
    if has(after, "EXTEND") or after == ZWJ or has(after, "SPACING_MARK"):  # GB9, GB9a
        return False
    if has(before, "PREPEND"):  # GB9b
        return False
    if has(after, "CONSONANT"):  # GB9c
        linker = text[:place].rstrip("".join(filter(is_conjunct_extend, set(text))))
        if linker and has(linker[-1], "LINKER"):
            return False
    if has(after, "PICTOGRAPH") and before == ZWJ:  # GB11
        base = text[: place - 1].rstrip("".join(char for char in set(text) if has(char, "EXTEND")))
        if base and has(base[-1], "PICTOGRAPH"):
            return False
    if has(after, "REGIONAL_INDICATOR"):  # GB12, GB13
        flags = len(text[:place]) - len(text[:place].rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))
        return flags % 2 == 0
    return True  # GB999


def is_conjunct_extend(char: str) -> bool:
    return has(char, "CONJUNCT_EXTEND")


def plain_clusters(text: str) -> list[str]:
    """The grapheme clusters of a text as it is."""
    starts = [place for place in range(len(text)) if place == 0 or is_boundary(text, place)]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=bool(text))]


def plain_units(words: Sequence[str], unit: str) -> list[str]:
    """The units of canonical words."""
    if unit == "word":
        return list(words)
    if unit == "character":
        return [unicodedata.normalize("NFC", cluster) for cluster in plain_clusters("".join(words))]
    runs: list[str] = []  # words, joined where no space is needed
    for word in words:
        joins = has(word[0], "WITHOUT_SPACES") or has(word[0], "EXTEND") or has(word[0], "SPACING_MARK")
        if runs and has(runs[-1][-1], "WITHOUT_SPACES") and (joins or word[0] == ZWJ):
            runs[-1] += word
        else:
            runs.append(word)
    units: list[str] = []
    for run in runs:
        is_word = False
        for cluster in plain_clusters(run):
            is_own = has(cluster[0], "WITHOUT_SPACES")
            if is_own or not is_word:
                units.append(cluster)
            else:
                units[-1] += cluster
            is_word = not is_own
    # text without such letters is left alone
    has_own = any(has(char, "WITHOUT_SPACES") for word in words for char in word)
    return [unicodedata.normalize("NFC", text) for text in units] if has_own else list(words)

"""Owns the choice among the list formats, and the telling of a format from a file.

A choice is written ``NAME`` or ``NAME:OPTION=VALUE,…``; a file whose format is not told is looked at, and
refused where two formats fit or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, did_you_mean
from rescorer.formats.base import Choice
from rescorer.formats.catalogue import FORMATS
from rescorer.formats.io.sniff import read_sample
from rescorer.types import NBestList


def choose(choice: str) -> Choice:
    """The format that ``NAME[:OPTION=VALUE,…]`` names.

    Raises:
        ConfigError: no such format, or the options are malformed.
    """
    name, colon, rest = choice.partition(":")
    if name not in FORMATS:
        raise ConfigError(f"no format {name!r}; there is {', '.join(FORMATS)}{did_you_mean(name, FORMATS)}")
    options: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not option or option in options:
            raise ConfigError(f"{choice!r}: expected {name}:OPTION=VALUE,… with each option once")
        options[option] = value
    return Choice(FORMATS[name], options)


def detect(path: str | Path) -> tuple[str, str]:
    """Name of the format of a file or folder, and what says so; a pipe is JSON lines.

    Raises:
        FormatError: no format fits, or more than one: it names them and what speaks for each.
    """
    place = Path(path)
    if str(path) == "-" or (place.exists() and not place.is_file() and not place.is_dir()):
        return "jsonl", "a pipe, which can be read only once, is JSON lines unless told"
    sample = read_sample(place)
    seen = {name: saw for name, each in FORMATS.items() if (saw := each.looks_like(sample))}
    if len(seen) == 1:
        return next(iter(seen.items()))
    if seen:
        both = " and ".join(f"{name} ({saw})" for name, saw in seen.items())
        raise FormatError(f"could be {both}; say which with --format", file=str(path))
    begins = f"it begins {sample.first[:60]!r}" if sample.first else "it has no text in UTF-8"
    if place.is_file() and not place.stat().st_size:
        begins = "it is empty"
    known = ", ".join(FORMATS)
    raise FormatError(f"no format known fits: {begins}; say one with --format: {known}", file=str(path))


def assign_groups(
    lists: Iterator[NBestList | InputError], group_of: Callable[[str], str]
) -> Iterator[NBestList | InputError]:
    """The lists, those that do not say their group with the one that their id tells."""
    for item in lists:
        if isinstance(item, NBestList) and not item.group:
            item = replace(item, group=group_of(item.id))
        yield item

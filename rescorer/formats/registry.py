"""Choose a list format by name, or detect it from a file.

A choice is written ``NAME`` or ``NAME:OPTION=VALUE,…``. Without a choice, the beginning of the file is read;
ambiguous and unknown files are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, did_you_mean
from rescorer.formats.base import FormatChoice
from rescorer.formats.catalogue import FORMATS
from rescorer.formats.io.sniff import read_sample
from rescorer.formats.nbest.known_fields import suggest_map
from rescorer.types import NBestList


def choose(choice: str) -> FormatChoice:
    """Parse the choice of a format, ``NAME[:OPTION=VALUE,…]``.

    Raises:
        ConfigError: If the format is unknown, or the options are malformed.
    """
    name, colon, rest = choice.partition(":")
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise ConfigError(f"unknown format {name!r}; known: {known}{did_you_mean(name, FORMATS)}")
    options: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not option or option in options:
            raise ConfigError(f"{choice!r}: expected {name}:OPTION=VALUE,… with each option once")
        options[option] = value
    return FormatChoice(FORMATS[name], options)


def detect(path: str | Path) -> tuple[str, str]:
    """Detect the format of a file or folder; return its name and the evidence. A pipe is JSON lines.

    The name of a file counts only if its content matches no format.

    Raises:
        FormatError: If no format matches, or several formats match; in that case the error names each with
            its evidence.
    """
    location = Path(path)
    if is_pipe(path):
        return "jsonl", "the default for a pipe, which can be read only once"
    sample = read_sample(path)
    matches = {
        name: evidence for name, format_ in FORMATS.items() if (evidence := format_.looks_like(sample))
    }
    if not matches:
        matches = {
            name: f"a file name that ends in {format_.suffix}"
            for name, format_ in FORMATS.items()
            if format_.suffix and not sample.is_folder
            if location.name.removesuffix(".gz").endswith(format_.suffix)
        }
    if len(matches) == 1:
        return next(iter(matches.items()))
    if matches:
        candidates = " or ".join(f"{name} ({evidence})" for name, evidence in matches.items())
        raise FormatError(f"ambiguous: could be {candidates}; choose one with --format", file=str(path))
    beginning = f"it begins with {sample.first[:60]!r}" if sample.first else "it has no UTF-8 text"
    if location.is_file() and not location.stat().st_size:
        beginning = "it is empty"
    hints = filter(None, map(suggest_map, sample.documents))
    beginning += "".join(f"; {hint}" for hint in islice(hints, 1))
    message = f"no known format matches: {beginning}; choose one with --format: {', '.join(FORMATS)}"
    raise FormatError(message, file=str(path))


def is_pipe(path: str | Path) -> bool:
    """Whether a source is standard input, a pipe or a device, which can be read only once."""
    location = Path(path)
    return str(path) == "-" or (location.exists() and not location.is_file() and not location.is_dir())


def assign_groups(
    lists: Iterator[NBestList | InputError], group_of: Callable[[str], str]
) -> Iterator[NBestList | InputError]:
    """Yield the lists; a list without a group gets the group that ``group_of`` returns for its id."""
    for item in lists:
        if isinstance(item, NBestList) and not item.group:
            item = replace(item, group=group_of(item.id))
        yield item

"""Choose a list format by name, or detect it from a file.

A choice is written ``NAME`` or ``NAME:OPTION=VALUE,…``. Without a choice, the beginning of the file is read;
ambiguous and unknown files are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, did_you_mean
from rescorer.formats.base import Format, FormatChoice
from rescorer.formats.catalogue import FORMATS
from rescorer.formats.io.sniff import Sample, read_sample
from rescorer.formats.io.utterance_folder import name_entries
from rescorer.types import NBestList

MAX_SAMPLED_FILES = 10
"""Number of files of a folder among which one that tells the format is looked for."""


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

    The name of a file counts only if its content matches no format. A folder is one list file of its format;
    ``parts.find_parts`` finds the files and folders of lists in a folder.

    Raises:
        FormatError: If no format matches, or several formats match; in that case the error names each with
            its evidence.
    """
    location = Path(path)
    if is_pipe(path):
        return "jsonl", "the default for a pipe, which can be read only once"
    sample, matches = match_path(path)
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
    if location.is_dir():
        beginning = f"the folder has {name_entries(location)}" if sample.names else "the folder is empty"
    message = f"no known format matches: {beginning}; choose one with --format: {', '.join(FORMATS)}"
    raise FormatError(message, file=str(path))


def match_path(path: str | Path, formats: Mapping[str, Format] = FORMATS) -> tuple[Sample, dict[str, str]]:
    """Read a sample of a file or folder; return it with the evidence for each format that it matches.

    If the first file of a folder matches nothing, such as a list of silence, a few others are tried.

    Raises:
        FormatError: If a file cannot be opened.
    """
    sample = read_sample(path)
    if (matches := find_matches(sample, formats)) or not Path(path).is_dir():
        return sample, matches
    entries = sorted(entry for entry in Path(path).iterdir() if not entry.name.startswith("."))
    for entry in islice(filter(Path.is_file, entries), 1, MAX_SAMPLED_FILES):
        other = replace(read_sample(entry), path=sample.path, names=sample.names)
        if matches := find_matches(other, formats):
            return other, matches
    return sample, {}


def find_matches(sample: Sample, formats: Mapping[str, Format] = FORMATS) -> dict[str, str]:
    """Return the evidence for each of the formats that a sample matches, by name."""
    found = {name: format_.looks_like(sample) for name, format_ in formats.items()}
    return {name: evidence for name, evidence in found.items() if evidence}


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

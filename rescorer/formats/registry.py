"""Choose a list format by name, or detect it from a file.

A choice is written ``NAME`` or ``NAME:OPTION=VALUE,…``. Without a choice, the beginning of the file is read;
ambiguous and unknown files are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, did_you_mean
from rescorer.formats.base import Format, FormatChoice
from rescorer.formats.catalogue import FORMATS
from rescorer.formats.io.sniff import Sample, read_sample
from rescorer.formats.io.text_io import read_lines_strict
from rescorer.formats.io.utterance_folder import name_entries
from rescorer.formats.nbest.known_fields import suggest_map, suggest_table
from rescorer.formats.nbest.plain_text import KALDI_TEXT, begins_with_ids, choose_reading, suggest_ways
from rescorer.formats.nist.references import read_references
from rescorer.formats.nist.stm import find_damaged
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
    if is_pipe(path):
        return "jsonl", "the default for a pipe, which can be read only once"
    sample, matches = match_path(path)
    matches = matches or _match_name(sample)
    if len(matches) == 1:
        return next(iter(matches.items()))
    if matches:
        candidates = " or ".join(f"{name} ({evidence})" for name, evidence in matches.items())
        raise FormatError(f"ambiguous: could be {candidates}; choose one with --format", file=str(path))
    beginning = f"it begins with {sample.first[:60]!r}" if sample.first else "it has no UTF-8 text"
    if sample.path.is_file() and not sample.path.stat().st_size:
        beginning = "it is empty"
    if sample.path.is_dir():
        beginning = f"the folder has {name_entries(sample.path)}" if sample.names else "the folder is empty"
    hints = filter(None, (suggest_map(value) or suggest_table(value) for value in sample.documents))
    beginning += "".join(f"; {hint}" for hint in islice(hints, 1))
    hint = f"; {suggest_ways(sample.lines)}" if _may_be_plain(sample) else ""
    message = f"no known format matches: {beginning}{hint}; formats for --format: {', '.join(FORMATS)}"
    raise FormatError(message, file=str(path))


def detect_measured(path: str | Path, reference: str | Path | None) -> str:
    """Detect the format of lists that are measured by references, as ``detect`` does; also of plain text.

    Args:
        reference: a file of references, if there is one.

    Raises:
        FormatError: If no format matches, or the lines could begin with an id or a word.
    """
    if reference is not None and not is_pipe(path) and is_plain_text(path):
        if is_plain_text(reference):
            return choose_reading(path, reference)
        with suppress(FormatError):  # a document, whose lists or utterances it takes more to match
            if not is_pipe(reference) and begins_with_ids(_read_texts(path), read_references(reference)):
                return KALDI_TEXT
    return detect(path)[0]


def is_plain_text(path: str | Path) -> bool:
    """Whether a file is text without markup: it has no other format than that of ids and words, if any."""
    if not Path(path).is_file():
        return False
    sample = read_sample(path)
    matches = find_matches(sample) or _match_name(sample)
    return _may_be_plain(sample) and not matches.keys() - {KALDI_TEXT}


def _read_texts(path: str | Path) -> Iterator[str]:
    return (text for _, text in read_lines_strict(path))


def _may_be_plain(sample: Sample) -> bool:
    is_text = bool(sample.lines) and not sample.is_folder
    return is_text and sample.first[:1] not in "{[<" and "\t" not in sample.text


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


COLUMNS = ("ctm", "stm")
"""Formats whose lines have columns of numbers before their words."""


def find_matches(sample: Sample, formats: Mapping[str, Format] = FORMATS) -> dict[str, str]:
    """Return the evidence for each of the formats that a sample matches, by name; loose ones only alone."""
    found = {name: format_.looks_like(sample) for name, format_ in formats.items()}
    matches = {name: evidence for name, evidence in found.items() if evidence}
    strict = {name: evidence for name, evidence in matches.items() if not formats[name].is_loose}
    if strict or matches.keys() - {KALDI_TEXT}:
        return strict or matches
    damaged = {name: evidence for name, evidence in find_damaged(sample).items() if name in formats}
    # columns of numbers are no words, whereas words in parentheses may end a line of ids and words
    columns = {name: evidence for name, evidence in damaged.items() if name in COLUMNS}
    return columns or matches or damaged


def _match_name(sample: Sample) -> dict[str, str]:
    """Return the formats whose files are called so."""
    name_of_file = sample.path.name.removesuffix(".gz").lower()
    return {
        name: f"a file name that ends in {Path(name_of_file).suffix}"
        for name, format_ in FORMATS.items()
        if format_.suffix and not sample.is_folder and name_of_file.endswith(format_.suffix)
    }


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

"""Read and write Kaldi n-best archives in text form: a folder with ``words_text``, ``acwt`` and ``lmwt*``.

    words_text: utt1-1 LAST MONTH OVERALL GOODS      acwt: utt1-1 -5402.7      lmwt.lmonly: utt1-1 12.31

A key is the utterance id and the rank of the hypothesis; scores are natural-log costs. ``lmwt`` is the graph
cost, which includes pronunciation and transition costs besides the LM's. Other archives of costs, such as
``lmwt.rnn``, become streams of the same name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby, zip_longest
from pathlib import Path
from typing import NamedTuple, TextIO

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import (
    DUPLICATE_ID,
    Row,
    Write,
    add_location,
    build_list,
    format_key,
    format_texts,
    parse_number,
    split_words,
)
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.targets import make_folder
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

COST = Units("e", "cost")
TEXT_ARCHIVE = "words_text"
STREAMS = {
    "acwt": "acoustic",
    "lmwt": "graph",
    "lmwt.withlm": "graph_with_lm",
    "lmwt.nolm": "graph_without_lm",
    "lmwt.lmonly": "lm",
}
"""Streams by the archive names that Kaldi's scripts use."""
EXTRA_ARCHIVE_PREFIX = "lmwt."
"""Prefix of the names of other archives."""
EXPECTED_FOLDER = (
    f"expected a folder with {TEXT_ARCHIVE}, acwt and lmwt; {TEXT_ARCHIVE} has words, not ids, as "
    "utils/int2sym.pl -f 2- words.txt writes them"
)
ARCHIVE_NAME = re.compile(r"[^\s/\0]{1,100}")
KEY = re.compile(r"(.+)-([0-9]+)")


class Entry(NamedTuple):
    """One line of an archive, or the error if it cannot be read."""

    line: int
    key: str
    value: str
    error: FormatError | None = None


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield the lists of a folder, reading its archives in parallel.

    All archives need the same keys in the same order; reading stops with an error at the first difference.
    An unreadable line in one archive, or a duplicate id, yields an error in place of the list. Hypotheses are
    in the order of their numbers, whatever that of the archives is.

    Raises:
        FormatError: If the source is not a folder with ``words_text``, or an archive cannot be opened.
    """
    folder = Path(source) if isinstance(source, (str, Path)) else None
    if folder is None or not (paths := find_archives(folder)):
        raise FormatError(EXPECTED_FOLDER, file=source_name(source))
    seen: set[str] = set()
    for list_id, group in groupby(_zip_archives(paths), lambda entries: _list_id(_common_key(entries))):
        hypotheses = sorted(group, key=lambda entries: _rank(_common_key(entries)))
        file, line = str(paths[TEXT_ARCHIVE]), hypotheses[0][0].line
        error = next((entry.error for entries in hypotheses for entry in entries if entry.error), None)
        if error is None and not list_id:
            message = f"expected a key like UTTERANCE-N, got {_common_key(hypotheses[0])!r}"
            error = FormatError(message, file=file, line=line)
        if error is not None:
            yield error
        elif list_id in seen:
            yield InvalidList(DUPLICATE_ID, list_id=list_id, file=file, line=line)
        else:
            rows = [_build_row(entries, paths) for entries in hypotheses]
            nbest = build_list(list_id, rows, dict.fromkeys(_stream_names(paths), COST), file)
            yield nbest if isinstance(nbest, NBestList) else _locate_score(nbest, hypotheses, paths)
        seen.add(list_id)


def looks_like(sample: Sample) -> str:
    """Return the evidence that a folder has this format, or an empty string."""
    if TEXT_ARCHIVE in sample.names:
        return f"a folder with {TEXT_ARCHIVE}"
    # The reader says which archive is missing.
    return "a folder with acwt" if "acwt" in sample.names else ""


def find_archives(folder: Path) -> dict[str, Path]:
    """Return the archives of a folder by name, ``words_text`` first; none if ``words_text`` is missing."""
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    found = {path.name.removesuffix(".gz"): path for path in files}
    known = (TEXT_ARCHIVE, *STREAMS)
    extra = (name for name in found if name.startswith(EXTRA_ARCHIVE_PREFIX) and name not in known)
    return {name: found[name] for name in (*known, *extra) if name in found} if TEXT_ARCHIVE in found else {}


def _stream_names(paths: dict[str, Path]) -> list[str]:
    return [STREAMS.get(name, name) for name in paths if name != TEXT_ARCHIVE]


def _locate_score(
    error: InvalidList, hypotheses: list[tuple[Entry, ...]], paths: dict[str, Path]
) -> InvalidList:
    """Add the file and line of the invalid score to an error."""
    if error.hypothesis is None or error.field not in _stream_names(paths):
        return error
    column = 1 + _stream_names(paths).index(error.field)
    return add_location(error, str([*paths.values()][column]), hypotheses[error.hypothesis][column].line)


def _zip_archives(paths: dict[str, Path]) -> Iterator[tuple[Entry, ...]]:
    """Yield the entries of all archives key by key; ends with an error when the keys differ."""
    for entries in zip_longest(*(_read_entries(path) for path in paths.values())):
        present = tuple(entry for entry in entries if entry is not None)
        key = _common_key(present)
        for path, entry in zip(paths.values(), entries, strict=True):
            if entry is None or not (entry.key == key or entry.error):
                found = repr(entry.key) if entry else "the end of the file"
                message = (
                    f"expected the key {key!r} as in another archive, got {found}; "
                    "all archives need the same keys in the same order"
                )
                error = FormatError(message, file=str(path), line=entry.line if entry else None)
                yield (Entry(present[0].line, key, "", error),)
                return
        yield present


def _common_key(entries: tuple[Entry, ...]) -> str:
    """Return the key of parallel entries, ignoring those that could not be read."""
    return next((entry.key for entry in entries if not entry.error), entries[0].key)


def _read_entries(path: Path) -> Iterator[Entry]:
    for line, text in read_lines(path):
        if isinstance(text, FormatError):
            yield Entry(line, "", "", text)
        elif text.strip():
            key, *values = split_words(text)
            yield Entry(line, key, " ".join(values))


def _list_id(key: str) -> str:
    match = KEY.fullmatch(key)
    return match[1] if match else ""


def _rank(key: str) -> tuple[int, str]:
    """Return what orders keys by their number: archives sorted by name have ``u1-10`` before ``u1-2``."""
    match = KEY.fullmatch(key)
    number = match[2].lstrip("0") if match else ""
    return len(number), number


def _build_row(entries: tuple[Entry, ...], paths: dict[str, Path]) -> Row:
    text, *scores = entries
    numbers = {
        name: parse_number(entry.value) for name, entry in zip(_stream_names(paths), scores, strict=True)
    }
    return Row(text.value, numbers, {}, text.line)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write the archives of a folder, with one archive of scores per stream of the first list.

    The writer raises InvalidList for a list that has white space in its id, lacks one of these streams, has
    another stream that an archive could hold, or has a stream whose name cannot be the name of an archive.
    """
    folder = make_folder(target)
    files: dict[str, TextIO] = {}
    streams: dict[str, str] = {}
    with ExitStack() as stack:

        def write(nbest: NBestList) -> None:
            key = format_key(nbest)
            texts = format_texts(nbest)
            own_streams = _streams_by_archive(nbest)
            if not files:
                streams.update(own_streams)
            for archive in streams.keys() - own_streams.keys():
                message = "missing stream; earlier lists have it"
                raise InvalidList(message, list_id=nbest.id, field=streams[archive])
            for archive in own_streams.keys() - streams.keys():
                message = "earlier lists do not have this stream; all lists need the same streams"
                raise InvalidList(message, list_id=nbest.id, field=own_streams[archive])
            costs = {name: [repr(-score) for score in nbest.streams[streams[name]]] for name in streams}
            for name, values in {TEXT_ARCHIVE: texts, **costs}.items():
                if name not in files:
                    files[name] = stack.enter_context(open_output(folder / name))
                files[name].writelines(
                    f"{key}-{rank} {value}\n" for rank, value in enumerate(values, start=1)
                )

        yield write


def _streams_by_archive(nbest: NBestList) -> dict[str, str]:
    """Return the streams that the folder can hold, by archive name."""
    extra = [name for name in nbest.streams if name.startswith(EXTRA_ARCHIVE_PREFIX)]
    for name in extra:
        if name in STREAMS or name.endswith(".gz") or not ARCHIVE_NAME.fullmatch(name):
            message = "cannot name an archive: it is the name of another stream, or not a valid file name"
            raise InvalidList(message, list_id=nbest.id, field=name)
    known = {name: stream for name, stream in STREAMS.items() if stream in nbest.streams}
    return known | {name: name for name in extra}

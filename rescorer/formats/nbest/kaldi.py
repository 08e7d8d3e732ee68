"""Owns Kaldi's linear n-best archives in text form: a folder with ``words_text``, ``acwt`` and ``lmwt*``.

    words_text: utt1-1 LAST MONTH OVERALL GOODS      acwt: utt1-1 -5402.7      lmwt.lmonly: utt1-1 12.31

Keys are the utterance's id and the place in its list; scores are natural-log costs. ``lmwt`` is the graph's
cost (pronunciations and transitions too), not the LM's alone. Further archives of costs, such as
``lmwt.rnn``, are streams of their own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby, zip_longest
from pathlib import Path
from typing import NamedTuple, TextIO

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import Row, Write, key_of, line_texts, list_of, number, placed, words_of
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.io.utterance_folder import make_folder
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

COST = Units("e", "cost")
TEXTS = "words_text"
STREAMS = {
    "acwt": "acoustic",
    "lmwt": "graph",
    "lmwt.withlm": "graph_with_lm",
    "lmwt.nolm": "graph_without_lm",
    "lmwt.lmonly": "lm",
}
"""Streams by archive, as Kaldi's scripts call the archives."""
FURTHER = "lmwt."
"""What the names of further archives begin with."""
NAME = re.compile(r"[^\s/\0]{1,100}")
KEY = re.compile(r"(.+)-([0-9]+)")


class Entry(NamedTuple):
    """One line of an archive, or why it cannot be read."""

    line: int
    key: str
    value: str
    fault: FormatError | None = None


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yields the lists of a folder, read from its archives side by side.

    The archives hold the same keys in the same order. A list with a fault in any of them is its fault; where
    they no longer go together, reading stops. An id that was met before is a fault too.

    Raises:
        FormatError: the source is no folder with ``words_text``, or an archive cannot be opened.
    """
    folder = Path(source) if isinstance(source, (str, Path)) else None
    if folder is None or not (paths := archives(folder)):
        raise FormatError(f"expected a folder with {TEXTS}, acwt and lmwt", file=source_name(source))
    seen: set[str] = set()
    for list_id, together in groupby(_side_by_side(paths), lambda entries: _list_id(_key(entries))):
        found = list(together)
        file, line = str(paths[TEXTS]), found[0][0].line
        fault = next((entry.fault for entries in found for entry in entries if entry.fault), None)
        if fault is None and not list_id:
            fault = FormatError(f"expected the key UTTERANCE-N, not {_key(found[0])!r}", file=file, line=line)
        if fault is not None:
            yield fault
        elif list_id in seen:
            yield InvalidList("is here a second time", list_id=list_id, file=file, line=line)
        else:
            rows = [_row(entries, paths) for entries in found]
            nbest = list_of(list_id, rows, dict.fromkeys(_streams(paths), COST), file)
            yield nbest if isinstance(nbest, NBestList) else _placed(nbest, found, paths)
        seen.add(list_id)


def looks_like(sample: Sample) -> str:
    """What says that a folder is of this format; empty where nothing does."""
    return f"a folder with {TEXTS}" if TEXTS in sample.names else ""


def archives(folder: Path) -> dict[str, Path]:
    """The folder's archives by name, the texts first; empty where it has none with texts."""
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    found = {path.name.removesuffix(".gz"): path for path in files}
    known = (TEXTS, *STREAMS)
    names = [*known, *(name for name in found if name.startswith(FURTHER) and name not in known)]
    return {name: found[name] for name in names if name in found} if TEXTS in found else {}


def _streams(paths: dict[str, Path]) -> list[str]:
    return [STREAMS.get(name, name) for name in paths if name != TEXTS]


def _placed(fault: InvalidList, found: list[tuple[Entry, ...]], paths: dict[str, Path]) -> InvalidList:
    """A score's fault with the place of the score."""
    if fault.hypothesis is None or fault.field not in _streams(paths):
        return fault
    column = 1 + _streams(paths).index(fault.field)
    return placed(fault, str([*paths.values()][column]), found[fault.hypothesis][column].line)


def _side_by_side(paths: dict[str, Path]) -> Iterator[tuple[Entry, ...]]:
    """The entries of all archives, key by key; the last one is a fault where the keys no longer agree."""
    for entries in zip_longest(*(_entries(path) for path in paths.values())):
        present = tuple(entry for entry in entries if entry is not None)
        key = _key(present)
        for path, entry in zip(paths.values(), entries, strict=True):
            if entry is None or not (entry.key == key or entry.fault):
                found = f"the key {entry.key!r}" if entry else "the end"
                message = f"{found}, where another archive has {key!r}; expected the same keys in one order"
                fault = FormatError(message, file=str(path), line=entry.line if entry else None)
                yield (Entry(present[0].line, key, "", fault),)
                return
        yield present


def _key(entries: tuple[Entry, ...]) -> str:
    """What the entries are called; one that cannot be read does not tell."""
    return next((entry.key for entry in entries if not entry.fault), entries[0].key)


def _entries(path: Path) -> Iterator[Entry]:
    for line, text in read_lines(path):
        if isinstance(text, FormatError):
            yield Entry(line, "", "", text)
        elif text.strip():
            key, *values = words_of(text)
            yield Entry(line, key, " ".join(values))


def _list_id(key: str) -> str:
    match = KEY.fullmatch(key)
    return match[1] if match else ""


def _row(entries: tuple[Entry, ...], paths: dict[str, Path]) -> Row:
    texts, *scores = entries
    numbers = {name: number(entry.value) for name, entry in zip(_streams(paths), scores, strict=True)}
    return Row(texts.value, numbers, {}, texts.line)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Writes the archives of a folder; those of scores are the streams of the first list.

    A list is refused that lacks one of these streams or has another that an archive could hold, or whose id
    holds white space, or a stream whose archive would have another's name.
    """
    folder = make_folder(target)
    files: dict[str, TextIO] = {}
    of_archive: dict[str, str] = {}
    with ExitStack() as stack:

        def write(nbest: NBestList) -> None:
            key = key_of(nbest)
            texts = line_texts(nbest)
            own = _archives_of(nbest)
            streams = of_archive if files else own
            for missing in streams.keys() - own.keys():
                message = "no such stream, though earlier lists have one"
                raise InvalidList(message, list_id=nbest.id, field=streams[missing])
            for more in own.keys() - streams.keys():
                message = "earlier lists have no such stream; expected the same in all"
                raise InvalidList(message, list_id=nbest.id, field=own[more])
            of_archive.update(streams)
            for name in (TEXTS, *streams):
                if name not in files:
                    files[name] = stack.enter_context(open_output(folder / name))
                values = texts if name == TEXTS else [repr(-score) for score in nbest.streams[streams[name]]]
                files[name].writelines(
                    f"{key}-{rank} {value}\n" for rank, value in enumerate(values, start=1)
                )

        yield write


def _archives_of(nbest: NBestList) -> dict[str, str]:
    """The streams that the folder can hold, by their archives."""
    further = [name for name in nbest.streams if name.startswith(FURTHER)]
    for name in further:
        if name in STREAMS or name.endswith(".gz") or not NAME.fullmatch(name):
            message = "would be an archive of another stream, or of no name that a file can have"
            raise InvalidList(message, list_id=nbest.id, field=name)
    known = {name: stream for name, stream in STREAMS.items() if stream in nbest.streams}
    return known | {name: name for name in further}

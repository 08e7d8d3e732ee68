"""Owns the lists of HTK lattices (SLF): each lattice expanded to its exact best word sequences.

One lattice a file, its name the id, alone or in a folder; ``slf.py`` owns the syntax. A list is written as
the prefix tree of its words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from rescorer.errors import InputError, InvalidList, LimitExceeded
from rescorer.formats.common import Row, Write, build_list
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source
from rescorer.formats.io.utterance_folder import create_file, make_folder, read_list_files
from rescorer.formats.lattices.lattice import MAX_PATHS, Lattice, Path
from rescorer.formats.lattices.lattice import find_best_paths as lattice_paths
from rescorer.formats.lattices.prefix_tree import find_lattice_losses, prefix_tree
from rescorer.formats.lattices.slf import (
    SILENT,
    STREAMS,
    escape_value,
    parse_log_base,
    parse_score,
    read_lattice,
)
from rescorer.formats.word_times import WORDS_FIELD, build_word_times
from rescorer.types import NBestList

SUFFIXES = (".slf", ".lat")
OPTIONS = {"acscale": "acoustic", "lmscale": "lm", "prscale": "pronunciation", "wdpenalty": "word_penalty"}
DEFAULT_DEPTH = 100
NAME_FIELD = "utterance"
"""Field of a list with the name in its lattice's header."""
NO_WORD = "!NULL"


@dataclass(frozen=True, slots=True)
class Scales:
    """How a path's total is made: Σ scale · score + ``word_penalty`` · words; None: as the header says."""

    acoustic: float | None = None
    """``acscale=``, or 1."""
    lm: float | None = None
    """``lmscale=``, or 1."""
    pronunciation: float | None = None
    """``prscale=``, or 1."""
    word_penalty: float | None = None
    """In nats, with its sign: added once a word. ``wdpenalty=`` in the file's base, or 0."""


def read_lists(
    source: Source,
    *,
    depth: int = DEFAULT_DEPTH,
    max_paths: int = MAX_PATHS,
    scales: Scales = Scales(),
) -> Iterator[NBestList | InputError]:
    """Yields the list of each lattice: its best distinct word sequences, best first, with unweighted streams.

    The streams are ``acoustic``, ``lm`` and ``pronunciation``, those of them that any link has; a link
    without one counts 0. The file's name is the list's id. Words whose nodes have times keep them in the
    field ``words``, as those of a ctm do.

    Args:
        max_paths: bound on the partial paths of one search; a lattice that needs more is a fault.

    Raises:
        FormatError: the source cannot be opened, or has no name.
    """
    return read_list_files(
        source, lambda list_id, path: iter([_read_file(list_id, path, depth, max_paths, scales)]), SUFFIXES
    )


def _read_file(
    list_id: str, path: FilePath, depth: int, max_paths: int, scales: Scales
) -> NBestList | InputError:
    lattice, header = read_lattice(path)
    try:
        best = find_best_paths(lattice, resolve_scales(header, scales, str(path)), depth, max_paths)
    except (ValueError, LimitExceeded) as fault:
        return InvalidList(str(fault), list_id=list_id, file=str(path))
    rows = [_row(lattice, path_taken) for path_taken in best]
    name = {NAME_FIELD: header["UTTERANCE"]} if "UTTERANCE" in header else {}
    return build_list(list_id, rows, {}, str(path), fields=name)


def _row(lattice: Lattice, path: Path) -> Row:
    """A path's hypothesis, with the times of its words where all of them have one."""
    scores = dict(zip(lattice.streams, path.scores, strict=True))
    timed = len(path.spans) == len(path.words) > 0
    times = {WORDS_FIELD: build_word_times(path.words, path.spans)} if timed else {}
    return Row(" ".join(path.words), scores, times)


def read_with_options(source: Source, **options: Any) -> Iterator[NBestList | InputError]:
    """``read_lists`` with the scales by the names that HTK gives them."""
    named = _named(options)
    return read_lists(source, scales=named, **{k: v for k, v in options.items() if k not in OPTIONS})


def _named(options: Mapping[str, Any]) -> Scales:
    return Scales(**{name: options[key] for key, name in OPTIONS.items() if key in options})


@contextmanager
def writer(target: str | FilePath, **options: float) -> Iterator[Write]:
    """Writes a lattice a list into a folder, in nats, with the streams ``acoustic``, ``lm`` and
    ``pronunciation``; words have the times of the field ``words``.

    More than ``DEFAULT_DEPTH`` hypotheses are read back where ``depth`` says so.

    Args:
        options: scales for the header, by HTK's names; they say in which order the list is read back.
    """
    folder = make_folder(target)
    header = [f"{name}={options[name]!r}" for name in OPTIONS if name in options]

    def write(nbest: NBestList) -> None:
        lines = list(_lines(nbest, header))
        with create_file(folder, nbest.id, SUFFIXES[0]) as stream:
            stream.writelines(f"{line}\n" for line in lines)

    yield write


def _lines(nbest: NBestList, header: list[str]) -> Iterator[str]:
    name = nbest.fields.get(NAME_FIELD)
    if not isinstance(name, str | None):
        raise InvalidList("expected a string", list_id=nbest.id, field=NAME_FIELD)
    tree = prefix_tree(nbest, SILENT, timed=True)
    yield "VERSION=1.0"
    yield from () if name is None else (f"UTTERANCE={escape_value(name)}",)
    yield " ".join([f"base={math.e!r}", *header])
    yield f"start=0 end={tree.end}"
    yield f"N={tree.end + 1} L={len(tree.arcs)}"
    for node, time in enumerate(tree.times_s):
        yield f"I={node}" if time is None else f"I={node} t={time!r}"
    streams = {letter: nbest.streams[name] for letter, name in STREAMS.items() if name in nbest.streams}
    for number, arc in enumerate(tree.arcs):
        link = f"J={number} S={arc.source} E={arc.target} W={escape_value(arc.word or NO_WORD)}"
        of = arc.hypothesis
        scores = () if of is None else (f"{letter}={values[of]!r}" for letter, values in streams.items())
        yield " ".join([link, *scores])


def find_losses(nbest: NBestList, **options: float) -> set[str]:
    """What a list written with these options does not keep of its hypotheses."""
    scales = resolve_scales({}, _named(options), "")
    of_stream = {name: getattr(scales, name) for name in STREAMS.values()}
    return find_lattice_losses(nbest, of_stream, scales.word_penalty or 0.0)


def resolve_scales(header: Mapping[str, str], scales: Scales, file: str) -> Scales:
    """``scales`` with what they leave open taken from the header.

    Raises:
        FormatError: the header's own are no numbers.
    """
    nats = parse_log_base(header["base"], file, None) if "base" in header else 1.0

    def of(told: float | None, name: str, default: float, unit: float = 1.0) -> float:
        if told is not None:
            return told
        return parse_score(header[name], unit, file, None, name) if name in header else default

    return Scales(
        acoustic=of(scales.acoustic, "acscale", 1.0),
        lm=of(scales.lm, "lmscale", 1.0),
        pronunciation=of(scales.pronunciation, "prscale", 1.0),
        word_penalty=of(scales.word_penalty, "wdpenalty", 0.0, 1.0 if nats is None else nats),
    )


def find_best_paths(lattice: Lattice, scales: Scales, depth: int, max_paths: int = MAX_PATHS) -> list[Path]:
    """The ``depth`` best distinct word sequences of a lattice under ``scales`` that leave nothing open.

    Raises:
        ValueError: the lattice has circles, or no way from its start to its end.
        LimitExceeded: the search needs more than ``max_paths`` partial paths.
    """
    of_stream = {name: getattr(scales, name) for name in lattice.streams}
    return lattice_paths(lattice, of_stream, scales.word_penalty or 0.0, depth, max_paths)


def looks_like(sample: Sample) -> str:
    """What says that a file or folder is of this format; empty where nothing does."""
    head = [line for line in sample.lines if not line.startswith("#")]
    if head and re.match(r"(VERSION|V)=\S", head[0]):
        return "a first line with VERSION="
    suffixed = any(name.endswith(SUFFIXES) for name in sample.names)
    return f"file names that end in {' or '.join(SUFFIXES)}" if suffixed else ""

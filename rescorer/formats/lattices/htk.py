"""Read HTK lattices (SLF) as lists of their best word sequences, and write lists as HTK lattices.

The source is a single file or a folder of files. Each file holds one lattice, and its name is the utterance
id. A list is written as the prefix tree of its words. The syntax is parsed in ``slf``; see that module for
references to the HTK Book.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path as FilePath
from typing import Any

from rescorer.errors import InputError, InvalidList, LimitExceeded
from rescorer.formats.common import Row, Write, build_list
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.targets import make_folder
from rescorer.formats.io.text_io import Source
from rescorer.formats.io.utterance_folder import create_file, read_list_files
from rescorer.formats.lattices import lattice as search
from rescorer.formats.lattices.lattice import DEFAULT_DEPTH, MAX_PATHS, Lattice, Path
from rescorer.formats.lattices.prefix_tree import build_prefix_tree, find_lattice_losses
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
"""Fields of ``Scales`` by HTK's names, which are also the names of the options."""
NAME_FIELD = "utterance"
"""Field of a list with the utterance name from the header of its lattice."""
NO_WORD = "!NULL"
ENTRY = re.compile(r"(I|J|S)=")
"""Start of the line of a node or link, which ends the header."""
HEADER_LINE = re.compile(r"\w+=\S.*")
HEADER_FIELD = re.compile(r"(?:^|\s)(\w+)=\S")


@dataclass(frozen=True, slots=True)
class Scales:
    """Weights in the total score of a path: Σ scale · score + ``word_penalty`` · number of words.

    None stands for the value in the header of the lattice.
    """

    acoustic: float | None = None
    """Default: ``acscale=`` in the header, or 1."""
    lm: float | None = None
    """Default: ``lmscale=`` in the header, or 1."""
    pronunciation: float | None = None
    """Default: ``prscale=`` in the header, or 1."""
    word_penalty: float | None = None
    """Word insertion penalty in nats, added per word, so usually negative. Default: ``wdpenalty=`` in the
    header, or 0."""


def read_lists(
    source: Source,
    *,
    depth: int = DEFAULT_DEPTH,
    max_paths: int = MAX_PATHS,
    scales: Scales = Scales(),
) -> Iterator[NBestList | InputError]:
    """Yield the list of each lattice: its best distinct word sequences, best first.

    The streams are ``acoustic``, ``lm`` and ``pronunciation``, without weights; a stream is omitted if no
    link has a score for it, and a missing score counts as 0. If the nodes have times, the field ``words``
    contains the times of the words, as for a ctm.

    Args:
        depth: Maximum number of hypotheses per list.
        max_paths: Maximum number of partial paths in a search; a lattice that needs more is rejected.
        scales: Weights of the streams in the search.

    Raises:
        FormatError: If the source cannot be opened, or has no name.
    """
    return read_list_files(
        source, lambda list_id, path: iter([_read_file(list_id, path, depth, max_paths, scales)]), SUFFIXES
    )


def _read_file(
    list_id: str, path: FilePath, depth: int, max_paths: int, scales: Scales
) -> NBestList | InputError:
    lattice, header = read_lattice(path)
    try:
        paths = find_best_paths(lattice, resolve_scales(header, scales, str(path)), depth, max_paths)
    except (ValueError, LimitExceeded) as error:
        return InvalidList(str(error), list_id=list_id, file=str(path))
    rows = [_build_row(lattice, best_path) for best_path in paths]
    name = {NAME_FIELD: header["UTTERANCE"]} if "UTTERANCE" in header else {}
    return build_list(list_id, rows, {}, str(path), fields=name)


def _build_row(lattice: Lattice, path: Path) -> Row:
    """Build the hypothesis of a path, with word times if all words have one."""
    scores = dict(zip(lattice.streams, path.scores, strict=True))
    timed = len(path.spans) == len(path.words) > 0
    times = {WORDS_FIELD: build_word_times(path.words, path.spans)} if timed else {}
    return Row(" ".join(path.words), scores, times)


def read_with_options(source: Source, **options: Any) -> Iterator[NBestList | InputError]:
    """Read lists with scales under HTK's names; the other options are those of ``read_lists``."""
    other_options = {name: value for name, value in options.items() if name not in OPTIONS}
    return read_lists(source, scales=_build_scales(options), **other_options)


def _build_scales(options: Mapping[str, Any]) -> Scales:
    return Scales(**{name: options[htk_name] for htk_name, name in OPTIONS.items() if htk_name in options})


@contextmanager
def writer(target: str | FilePath, **options: float) -> Iterator[Write]:
    """Write one lattice per list into a folder, with the scores of all streams in nats and the word times.

    The streams are ``acoustic``, ``lm`` and ``pronunciation``. To read back more than ``DEFAULT_DEPTH``
    hypotheses, set ``depth``.

    Args:
        options: Scales for the header, by HTK's names; they determine the order in which hypotheses are read
            back.
    """
    folder = make_folder(target)
    header = [f"{name}={options[name]!r}" for name in OPTIONS if name in options]

    def write(nbest: NBestList) -> None:
        lines = list(_format_lines(nbest, header))
        with create_file(folder, nbest.id, SUFFIXES[0]) as stream:
            stream.writelines(f"{line}\n" for line in lines)

    yield write


def _format_lines(nbest: NBestList, header: list[str]) -> Iterator[str]:
    name = nbest.fields.get(NAME_FIELD)
    if not isinstance(name, str | None):
        raise InvalidList("expected a string", list_id=nbest.id, field=NAME_FIELD)
    tree = build_prefix_tree(nbest, SILENT, timed=True)
    yield "VERSION=1.0"
    yield from () if name is None else (f"UTTERANCE={escape_value(name)}",)
    yield " ".join([f"base={math.e!r}", *header])
    yield f"start=0 end={tree.end}"
    yield f"N={tree.end + 1} L={len(tree.arcs)}"
    for node, time in enumerate(tree.times_s):
        yield f"I={node}" if time is None else f"I={node} t={time!r}"
    streams = {name: nbest.streams[stream] for name, stream in STREAMS.items() if stream in nbest.streams}
    for number, arc in enumerate(tree.arcs):
        link = f"J={number} S={arc.source} E={arc.target} W={escape_value(arc.word or NO_WORD)}"
        index = arc.hypothesis
        scores = () if index is None else (f"{name}={values[index]!r}" for name, values in streams.items())
        yield " ".join([link, *scores])


def find_losses(nbest: NBestList, **options: float) -> set[str]:
    """Return descriptions of what a list loses when it is written with these options and read back."""
    scales = resolve_scales({}, _build_scales(options), "")
    stream_scales = {stream: getattr(scales, stream) for stream in STREAMS.values()}
    return find_lattice_losses(nbest, stream_scales, scales.word_penalty or 0.0)


def resolve_scales(header: Mapping[str, str], scales: Scales, file: str) -> Scales:
    """Fill in missing scales (None) from the header of a lattice, or else with their defaults.

    Raises:
        FormatError: If a value in the header is not a number.
    """
    nats = parse_log_base(header["base"], file, None) if "base" in header else 1.0

    def resolve(scale: float | None, name: str, default: float, nats_per_unit: float = 1.0) -> float:
        if scale is not None:
            return scale
        return parse_score(header[name], nats_per_unit, file, None, name) if name in header else default

    return Scales(
        acoustic=resolve(scales.acoustic, "acscale", 1.0),
        lm=resolve(scales.lm, "lmscale", 1.0),
        pronunciation=resolve(scales.pronunciation, "prscale", 1.0),
        word_penalty=resolve(scales.word_penalty, "wdpenalty", 0.0, 1.0 if nats is None else nats),
    )


def find_best_paths(lattice: Lattice, scales: Scales, depth: int, max_paths: int = MAX_PATHS) -> list[Path]:
    """Find the ``depth`` best distinct word sequences of a lattice; none of the scales may be None.

    Raises:
        ValueError: If the lattice has a cycle, or no path leads from its start to its end.
        LimitExceeded: If the search needs more than ``max_paths`` partial paths.
    """
    stream_scales = {stream: getattr(scales, stream) for stream in lattice.streams}
    return search.find_best_paths(lattice, stream_scales, scales.word_penalty or 0.0, depth, max_paths)


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file or folder is in this format, or an empty string."""
    content = (line.strip() for line in sample.lines if not line.startswith("#"))
    header = list(takewhile(lambda line: not ENTRY.match(line), content))
    if all(map(HEADER_LINE.fullmatch, header)):
        names = {match[1] for line in header for match in HEADER_FIELD.finditer(line)}
        if names & {"VERSION", "V"}:
            return "a header with VERSION="
        if names & {"N", "NODES"} and names & {"L", "LINKS"}:
            return "a header with N= and L="
    has_suffix = any(name.endswith(SUFFIXES) for name in sample.names)
    return f"file names that end with {' or '.join(SUFFIXES)}" if has_suffix else ""

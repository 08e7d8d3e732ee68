"""Owns the lists of HTK lattices (SLF): each lattice expanded to its exact best word sequences.

One lattice a file, its name the id, alone or in a folder; ``slf.py`` reads the syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList, LimitExceeded
from rescorer.formats.folders import utterance_files
from rescorer.formats.lattice import MAX_PATHS, Lattice, Path
from rescorer.formats.lattice import best_paths as lattice_paths
from rescorer.formats.rows import Row, list_of
from rescorer.formats.sample import Sample
from rescorer.formats.slf import log_of_base, nats_of, read_lattice
from rescorer.formats.source import Source
from rescorer.types import NBestList

SUFFIXES = (".slf", ".lat")
OPTIONS = {"acscale": "acoustic", "lmscale": "lm", "prscale": "pronunciation", "wdpenalty": "word_penalty"}
DEFAULT_DEPTH = 100


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
    without one counts 0. The file's name is the list's id.

    Args:
        max_paths: bound on the partial paths of one search; a lattice that needs more is a fault.

    Raises:
        FormatError: the source cannot be opened, or has no name.
    """
    for list_id, path in utterance_files(source, SUFFIXES):
        try:
            lattice, header = read_lattice(path)
            best = best_paths(lattice, header_scales(header, scales, str(path)), depth, max_paths)
        except FormatError as fault:
            yield fault
        except (ValueError, LimitExceeded) as fault:
            yield InvalidList(str(fault), list_id=list_id, file=str(path))
        else:
            rows = [Row(" ".join(p.words), dict(zip(lattice.streams, p.scores, strict=True))) for p in best]
            name = {"utterance": header["UTTERANCE"]} if "UTTERANCE" in header else {}
            yield list_of(list_id, rows, {}, str(path), fields=name)


def read_with(source: Source, **options: Any) -> Iterator[NBestList | InputError]:
    """``read_lists`` with the scales by the names that HTK gives them."""
    named = {name: options.pop(key) for key, name in OPTIONS.items() if key in options}
    return read_lists(source, scales=Scales(**named), **options)


def header_scales(header: Mapping[str, str], scales: Scales, file: str) -> Scales:
    """``scales`` with what they leave open taken from the header.

    Raises:
        FormatError: the header's own are no numbers.
    """
    nats = log_of_base(header["base"], file, None) if "base" in header else 1.0

    def of(told: float | None, name: str, default: float, unit: float = 1.0) -> float:
        if told is not None:
            return told
        return nats_of(header[name], unit, file, None, name) if name in header else default

    return Scales(
        acoustic=of(scales.acoustic, "acscale", 1.0),
        lm=of(scales.lm, "lmscale", 1.0),
        pronunciation=of(scales.pronunciation, "prscale", 1.0),
        word_penalty=of(scales.word_penalty, "wdpenalty", 0.0, 1.0 if nats is None else nats),
    )


def best_paths(lattice: Lattice, scales: Scales, depth: int, max_paths: int = MAX_PATHS) -> list[Path]:
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

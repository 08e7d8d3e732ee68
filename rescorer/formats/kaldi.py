"""Read and write Kaldi's n-best archives and compact lattices in text form.

N-best archives are a folder with ``words_text``, ``acwt`` and ``lmwt*``:

    words_text: utt1-1 LAST MONTH OVERALL GOODS      acwt: utt1-1 -5402.7      lmwt.lmonly: utt1-1 12.31

A key consists of the utterance id and the number of the hypothesis. Scores are costs: negative natural
logarithms. ``lmwt`` is the graph cost: the cost of the language model plus those of pronunciations and
transitions. Other archives of costs, such as ``lmwt.rnn``, become streams with the archive's name.

Compact lattices are read as lists of their best word sequences:

    utt1                                    a lattice begins with its id and ends with an empty line
    0 1 yeah 3.25,1432.27,2_2_4             from, to, word, weight: graph cost,acoustic cost,transition-ids
    1 0.5,12.1,                             a final state with its weight, which is omitted if it is 0

The format is described in https://kaldi-asr.org/doc/lattices.html; ``lattice-copy`` writes it with
``ark,t:``. Costs are negative natural logarithms. The state in the first line is the start. Words are written
as their numbers in a symbol table (``words.txt``, with lines like ``yeah 7``), unless ``int2sym.pl -f 3`` has
replaced the numbers by words. A list is written as the prefix tree of its words.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList, LimitExceeded, quote
from rescorer.formats.common import (
    MAX_SHOWN_CHARACTERS,
    FoundLists,
    KeyedLine,
    ListSize,
    ListWriter,
    Row,
    Units,
    add_location,
    archive_writer,
    build_list,
    collect,
    format_key,
    format_texts,
    line_writer,
    parse_number,
    read_keyed_lines,
    reject_duplicates,
    split_words,
    stream_from_nats,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.text_io import Source, read_lines, read_lines_strict, source_name
from rescorer.formats.lattices import (
    DEFAULT_DEPTH,
    LATTICE_LINE_COST,
    MAX_PATHS,
    Arc,
    Lattice,
    build_prefix_tree,
    build_row,
    find_best_paths,
    find_lattice_losses,
    resolve_scales,
)
from rescorer.types import NBestList

COST = Units("e", "cost")
TEXT_ARCHIVE = "words_text"
NBEST_STREAMS = {
    "acwt": "acoustic",
    "lmwt": "graph",
    "lmwt.withlm": "graph_with_lm",
    "lmwt.nolm": "graph_without_lm",
    "lmwt.lmonly": "lm",
}
"""The archives that Kaldi's scripts write, and the stream that each becomes."""
EXTRA_ARCHIVE_PREFIX = "lmwt."
"""Prefix of the names of further archives that are read as costs, such as ``lmwt.rnn``."""
EXPECTED_FOLDER = (
    f"expected a folder with {TEXT_ARCHIVE}, acwt and lmwt; {TEXT_ARCHIVE} has words, not ids, as "
    "utils/int2sym.pl -f 2- words.txt writes them"
)
ARCHIVE_NAME = re.compile(r"[^\s/\0]{1,100}")
KEY = re.compile(r"(.+)-([0-9]+)")


def read_kaldi(source: Source) -> Lists:
    """Yield the lists of a folder, reading its archives in parallel.

    All archives need the same keys in the same order. Reading stops with an error at the first difference.
    An unreadable line in one archive, or a duplicate id, yields an error in place of the list. Hypotheses are
    sorted by the numbers in their keys, because archives may have another order, such as 1, 10, 2.

    Raises:
        FormatError: the source is not a folder with ``words_text``, or an archive cannot be opened.
    """
    folder = Path(source) if isinstance(source, (str, Path)) else None
    if folder is None or not (paths := find_archives(folder)):
        raise FormatError(EXPECTED_FOLDER, file=source_name(source))
    yield from reject_duplicates(_join_archives(paths), str(paths[TEXT_ARCHIVE]))


def _join_archives(paths: dict[str, Path]) -> FoundLists:
    """Yield the id, the line and the list of each utterance, or an error in place of the list."""
    file, units = str(paths[TEXT_ARCHIVE]), dict.fromkeys(_stream_names(paths), COST)
    for list_id, group in groupby(_zip_archives(paths), lambda entries: _split_key(entries)[0]):
        collected, problem = collect(group, lambda entries: sum(len(entry.value) for entry in entries))
        hypotheses = sorted(collected, key=lambda entries: _split_key(entries)[1])
        line = hypotheses[0][0].line
        error = next((entry.error for entries in hypotheses for entry in entries if entry.error), None)
        if problem:
            error = FormatError(f"list {quote(list_id)} {problem}", file=file, line=line)
        if error is None and not list_id:
            message = f"expected a key like UTTERANCE-N, got {_common_key(hypotheses[0])!r}"
            error = FormatError(message, file=file, line=line)
        if error is not None:
            yield list_id, line, error
            continue
        nbest = build_list(list_id, [_build_row(entries, paths) for entries in hypotheses], units, file)
        if isinstance(nbest, InvalidList):
            nbest = _locate_score(nbest, hypotheses, paths)
        yield list_id, line, nbest


def looks_like_kaldi(sample: Sample) -> str:
    """Return the evidence that a folder has this format, or an empty string."""
    # with acwt alone, the reader says which archive is missing
    return next((f"a folder with {name}" for name in (TEXT_ARCHIVE, "acwt") if name in sample.names), "")


def find_archives(folder: Path) -> dict[str, Path]:
    """Return the archives of a folder by name, ``words_text`` first. Without ``words_text``, return none."""
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    found = {path.name.removesuffix(".gz"): path for path in files}
    known = (TEXT_ARCHIVE, *NBEST_STREAMS)
    extra = (name for name in found if name.startswith(EXTRA_ARCHIVE_PREFIX) and name not in known)
    return {name: found[name] for name in (*known, *extra) if name in found} if TEXT_ARCHIVE in found else {}


def _stream_names(paths: dict[str, Path]) -> list[str]:
    return [NBEST_STREAMS.get(name, name) for name in paths if name != TEXT_ARCHIVE]


def _locate_score(
    error: InvalidList, hypotheses: list[tuple[KeyedLine, ...]], paths: dict[str, Path]
) -> InvalidList:
    """Add to an error the file and the line of the invalid score that it is about."""
    if error.hypothesis is None or error.field not in _stream_names(paths):
        return error
    column = 1 + _stream_names(paths).index(error.field)
    return add_location(error, str([*paths.values()][column]), hypotheses[error.hypothesis][column].line)


def _zip_archives(paths: dict[str, Path]) -> Iterator[tuple[KeyedLine, ...]]:
    """Yield for each key its lines in all archives. End with an error where the keys of archives differ."""
    for entries in zip_longest(*(read_keyed_lines(path) for path in paths.values())):
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
                yield (KeyedLine(present[0].line, key, "", error),)
                return
        yield present


def _common_key(entries: tuple[KeyedLine, ...]) -> str:
    """Return the key of lines that belong together, from the first of them that could be read."""
    return next((entry.key for entry in entries if not entry.error), entries[0].key)


def _split_key(entries: tuple[KeyedLine, ...]) -> tuple[str, tuple[int, str]]:
    """Return the list id in the key of a hypothesis, and a value by which to sort the list's hypotheses.

    The id is empty if the key is not ``UTTERANCE-N``. Sorting is needed because archives that are sorted by
    name have ``u1-10`` before ``u1-2``.
    """
    match = KEY.fullmatch(_common_key(entries))
    number = match[2].lstrip("0") if match else ""
    return match[1] if match else "", (len(number), number)


def _build_row(entries: tuple[KeyedLine, ...], paths: dict[str, Path]) -> Row:
    text, *scores = entries
    numbers = {
        name: parse_number(entry.value) for name, entry in zip(_stream_names(paths), scores, strict=True)
    }
    return Row(text.value, numbers, {}, text.line)


def kaldi_writer(target: str | Path) -> ListWriter:
    """Write the archives of a folder, with one archive of scores per stream of the first list.

    The writer raises InvalidList for a list that has white space in its id, lacks one of these streams, or
    has another stream that archives could hold. It also does so for a stream whose name no archive can have.
    """
    streams: dict[str, str] | None = None

    def format_archives(nbest: NBestList) -> dict[str, list[str]]:
        nonlocal streams
        key, texts = format_key(nbest), format_texts(nbest)
        own_streams = _streams_by_archive(nbest)
        streams = own_streams if streams is None else streams
        for archive in streams.keys() - own_streams.keys():
            message = "missing stream; earlier lists have it"
            raise InvalidList(message, list_id=nbest.id, field=streams[archive])
        for archive in own_streams.keys() - streams.keys():
            message = "earlier lists do not have this stream; all lists need the same streams"
            raise InvalidList(message, list_id=nbest.id, field=own_streams[archive])
        archives = {name: [repr(-score) for score in nbest.streams[streams[name]]] for name in streams}
        return {
            name: [f"{key}-{rank} {value}" for rank, value in enumerate(values, start=1)]
            for name, values in {TEXT_ARCHIVE: texts, **archives}.items()
        }

    return archive_writer(target, format_archives)


def _streams_by_archive(nbest: NBestList) -> dict[str, str]:
    """Return the names of the list's streams that can be written, by the names of their archives."""
    extra = [name for name in nbest.streams if name.startswith(EXTRA_ARCHIVE_PREFIX)]
    for name in extra:
        if name in NBEST_STREAMS or name.endswith(".gz") or not ARCHIVE_NAME.fullmatch(name):
            message = "cannot name an archive: it is the name of another stream, or not a valid file name"
            raise InvalidList(message, list_id=nbest.id, field=name)
    known = {name: stream for name, stream in NBEST_STREAMS.items() if stream in nbest.streams}
    return known | {name: name for name in extra}


LATTICE_STREAMS = ("graph", "acoustic")
"""The streams of a lattice, in the order in which a weight has their costs."""
SILENT = frozenset({"<eps>", "<s>", "</s>"})
"""Epsilon and sentence marks, which are not words."""
EPSILON_NUMBER = "0"
STATE = re.compile("[0-9]{1,9}")
WORD_NUMBER = re.compile("[0-9]+")
ARC = re.compile(r"[0-9]+\s+[0-9]+\s+\S+\s+[^\s,]+,[^\s,]+,[0-9_]*\s*")
ZERO_SCORES = (0.0, 0.0)


@dataclass(slots=True)
class _ParsedLattice:
    """The lines of one lattice."""

    list_id: str
    line: int
    arcs: list[tuple[str, str, str, tuple[float, float]]] = field(default_factory=list)
    """Source, target, word and log-probabilities of each arc."""
    finals: list[tuple[str, tuple[float, float]]] = field(default_factory=list)
    """Final states with their log-probabilities."""
    error: FormatError | None = None
    """The first error in the lattice, after which its other lines are skipped."""
    start: str = ""


def read_kaldi_lattice(
    source: Source,
    *,
    words: str = "",
    depth: int = DEFAULT_DEPTH,
    max_paths: int = MAX_PATHS,
    **scales: float,
) -> Lists:
    """Yield the list of each lattice: its best distinct word sequences, best first.

    The scores in the streams ``graph`` and ``acoustic`` are unweighted.

    Args:
        words: file name of the symbol table; if empty, the lattices must contain words, not numbers.
        depth: maximum number of hypotheses per list.
        max_paths: maximum number of partial paths in a search; a lattice that needs more is rejected.
        scales: weights of the streams in the search, by the names in ``lattices.OPTIONS``. ``lmscale``
            weights the whole graph cost, because the part of the language model in it is not known.

    Raises:
        FormatError: the source or the symbol table cannot be read.
    """
    file = source_name(source)
    table = read_symbols(words) if words else None
    weights, word_penalty = resolve_scales({}, scales, file)
    weights["graph"] = weights["lm"]

    def expand(parsed: _ParsedLattice) -> NBestList | InputError:
        if parsed.error is not None:
            return parsed.error
        try:
            lattice = _build_lattice(parsed, table)
            paths = find_best_paths(lattice, weights, word_penalty, depth, max_paths)
        except (ValueError, LimitExceeded) as error:
            return InvalidList(str(error), list_id=parsed.list_id, file=file, line=parsed.line)
        return build_list(parsed.list_id, [build_row(lattice, path) for path in paths], {}, file)

    lattices = _parse_lattices(source, file)
    yield from reject_duplicates(((one.list_id, one.line, expand(one)) for one in lattices), file)


def kaldi_lattice_writer(target: str | Path, *, words: str = "", missing: float | None = None) -> ListWriter:
    """Write one lattice per list from the streams ``graph`` and ``acoustic``, without transition-ids.

    A list is rejected if its id is a duplicate or contains white space, or if one of its words is silent
    (epsilon or a sentence mark) or not in the symbol table. To read back more than ``DEFAULT_DEPTH``
    hypotheses, set ``depth`` when reading.

    Args:
        words: file name of the symbol table, to write numbers; if empty, words are written.
        missing: the cost to write if a list lacks a stream; None if every list must have both streams.
    """
    numbers = {word: key for key, word in read_symbols(words).items()} if words else None
    return line_writer(target, lambda nbest: _format_lines(nbest, numbers, missing))


def _format_lines(
    nbest: NBestList, numbers: Mapping[str, str] | None, missing: float | None
) -> Iterator[str]:
    tree = build_prefix_tree(nbest, SILENT)
    columns = (stream_from_nats(nbest, name, COST, missing) for name in LATTICE_STREAMS)
    costs = list(zip(*columns, strict=True))
    yield format_key(nbest)
    for source, target, word, hypothesis in tree.arcs:
        symbol = word or "<eps>"
        if numbers is not None:
            symbol = numbers.get(word, "") if word else EPSILON_NUMBER
            if not symbol:
                raise InvalidList(f"{word!r} is not in the symbol table", list_id=nbest.id, field="text")
        graph, acoustic = (0.0, 0.0) if hypothesis is None else costs[hypothesis]
        yield f"{source} {target} {symbol} {graph + 0.0!r},{acoustic + 0.0!r},"  # + 0.0 avoids -0.0
    yield f"{tree.end}"
    yield ""


def find_losses(nbest: NBestList, **options: Any) -> set[str]:
    """Describe what a list loses if it is written and read back. This is the same with all write options."""
    return find_lattice_losses(nbest, dict.fromkeys(LATTICE_STREAMS, 1.0), 0.0)


def read_symbols(path: str) -> Mapping[str, str]:
    """Read a symbol table of lines ``WORD NUMBER``; return the words by their numbers, as text.

    Raises:
        FormatError: the file cannot be read, a line is malformed, or a number occurs twice.
    """
    table: dict[str, str] = {}
    for line, text in read_lines_strict(path):
        columns = split_words(text)
        if not columns:
            continue
        if len(columns) != 2 or not WORD_NUMBER.fullmatch(columns[1]):
            raise FormatError(f"expected WORD NUMBER, got {_abbreviate(text)}", file=path, line=line)
        if columns[1] in table:
            raise FormatError(f"duplicate number {columns[1]}", file=path, line=line)
        table[columns[1]] = columns[0]
    return table


def looks_like_kaldi_lattice(sample: Sample) -> str:
    """Return the evidence that a file is in this format, or an empty string."""
    if len(sample.lines) < 2 or len(split_words(sample.first)) != 1:
        return ""
    return "an id, then an arc with graph,acoustic,transition-ids" if ARC.fullmatch(sample.lines[1]) else ""


def _parse_lattices(source: Source, file: str) -> Iterator[_ParsedLattice]:
    """Yield one lattice after the other; an error in one lattice does not affect the next."""
    parsed: _ParsedLattice | None = None
    size = ListSize()
    for line, text in read_lines(source):
        columns = split_words(text) if isinstance(text, str) else []
        if isinstance(text, str) and not columns:
            if parsed is not None:
                yield parsed
            parsed = None
            continue
        is_first = parsed is None
        size = ListSize() if is_first else size
        parsed = parsed or _ParsedLattice(columns[0] if columns else "", line)
        if isinstance(text, FormatError):
            parsed.error = parsed.error or text
        elif is_first and len(columns) > 1:
            message = f"expected the id of a lattice, without white space, got {_abbreviate(text)}"
            parsed.error = FormatError(message, file=file, line=line)
        elif not is_first and parsed.error is None:
            try:
                size.add(len(text) + LATTICE_LINE_COST)
                _parse_line(parsed, columns)
            except ValueError as error:
                parsed.error = FormatError(str(error), file=file, line=line)
    if parsed is not None:
        message = "no empty line after the last lattice; is the file truncated?"
        parsed.error = parsed.error or FormatError(message, file=file, line=parsed.line)
        yield parsed


def _parse_line(parsed: _ParsedLattice, columns: list[str]) -> None:
    for state in columns[: 1 if len(columns) < 3 else 2]:
        if not STATE.fullmatch(state):
            raise ValueError(f"expected the number of a state, got {_abbreviate(state)}")
    parsed.start = parsed.start or columns[0]
    if len(columns) < 3:
        parsed.finals.append((columns[0], _parse_weight(columns[1:])))
    elif len(columns) < 5:
        parsed.arcs.append((columns[0], columns[1], columns[2], _parse_weight(columns[3:])))
    else:
        expected = "FROM TO WORD GRAPH,ACOUSTIC,TRANSITION-IDS (a compact lattice)"
        raise ValueError(f"expected {expected}, got {len(columns)} columns")


def _parse_weight(columns: list[str]) -> tuple[float, float]:
    """Return the log-probabilities in the column with the weight. If there is no such column, they are 0."""
    if not columns:
        return ZERO_SCORES
    costs = columns[0].split(",")
    if len(costs) != 3:
        raise ValueError(f"expected GRAPH,ACOUSTIC,TRANSITION-IDS, got {_abbreviate(columns[0])}")
    graph, acoustic = (parse_number(cost) for cost in costs[:2])
    if isinstance(graph, str) or isinstance(acoustic, str) or not abs(graph) + abs(acoustic) < math.inf:
        raise ValueError(f"expected two finite costs, got {_abbreviate(columns[0])}")
    return 0.0 - graph, 0.0 - acoustic  # not -0.0


def _build_lattice(parsed: _ParsedLattice, table: Mapping[str, str] | None) -> Lattice:
    """Build a lattice. Its nodes are numbered from 0; arcs lead from all final states to an added end node.

    Raises:
        ValueError: the lattice is empty, or its words are numbers that the symbol table does not have.
    """
    if not parsed.arcs and not parsed.finals:
        raise ValueError("no states; expected at least one")
    if table is None and parsed.arcs and all(WORD_NUMBER.fullmatch(word) for _, _, word, _ in parsed.arcs):
        raise ValueError("the words are numbers; give their symbol table with words=FILE")
    states = dict.fromkeys([parsed.start])
    states |= dict.fromkeys(state for source, target, *_ in parsed.arcs for state in (source, target))
    states |= dict.fromkeys(state for state, _ in parsed.finals)
    nodes = {state: node for node, state in enumerate(states)}
    end = len(nodes)
    arcs: defaultdict[int, list[Arc]] = defaultdict(list)
    for source, target, symbol, scores in parsed.arcs:
        arcs[nodes[source]].append(Arc(nodes[target], _look_up_word(symbol, table), scores))
    for state, scores in parsed.finals:
        arcs[nodes[state]].append(Arc(end, "", scores))
    return Lattice(
        tuple(tuple(arcs[node]) for node in range(end + 1)), nodes[parsed.start], end, LATTICE_STREAMS
    )


def _look_up_word(symbol: str, table: Mapping[str, str] | None) -> str:
    """Return the word of a symbol, or an empty string if it is silent.

    Raises:
        ValueError: the symbol table does not have the symbol.
    """
    if table is not None:
        if symbol not in table and symbol != EPSILON_NUMBER:
            raise ValueError(f"word {_abbreviate(symbol)} is not in the symbol table")
        symbol = table.get(symbol, "")
    return "" if symbol in SILENT else symbol


def _abbreviate(text: str) -> str:
    return repr(text[:MAX_SHOWN_CHARACTERS])

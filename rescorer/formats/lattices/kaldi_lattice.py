"""Read Kaldi's compact lattices in text form as lists of their best word sequences, and write them.

    utt1                                    a lattice begins with its id and ends with an empty line
    0 1 yeah 3.25,1432.27,2_2_4             from, to, word, weight: graph cost,acoustic cost,transition-ids
    1 0.5,12.1,                             a final state with its weight, which is omitted if it is 0

The format is described in https://kaldi-asr.org/doc/lattices.html; this is the output of ``lattice-copy``
with ``ark,t:``. Costs are negative natural logarithms; the state in the first line is the start. Words are
numbers of a symbol table (``words.txt``, with lines like ``yeah 7``) unless ``int2sym.pl -f 3`` has replaced
them. A list is written as the prefix tree of its words.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList, LimitExceeded
from rescorer.formats.common import (
    DUPLICATE_ID,
    Row,
    Write,
    build_list,
    format_key,
    parse_number,
    split_words,
    stream_from_nats,
)
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, read_lines_strict, source_name
from rescorer.formats.lattices.lattice import DEFAULT_DEPTH, MAX_PATHS, Arc, Lattice, find_best_paths
from rescorer.formats.lattices.prefix_tree import build_prefix_tree, find_lattice_losses
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

STREAMS = ("graph", "acoustic")
"""Streams, in the order of their costs in a weight."""
COST = Units("e", "cost")
SILENT = frozenset({"<eps>", "<s>", "</s>"})
"""Epsilon and sentence marks, which are not words."""
EPSILON_NUMBER = "0"
STATE = re.compile("[0-9]{1,9}")
WORD_NUMBER = re.compile("[0-9]+")
ARC = re.compile(r"[0-9]+\s+[0-9]+\s+\S+\s+[^\s,]+,[^\s,]+,[0-9_]*\s*")
ZERO_SCORES = (0.0, 0.0)
MAX_SHOWN_CHARACTERS = 40


@dataclass(slots=True)
class _ParsedLattice:
    """One lattice, parsed line by line."""

    list_id: str
    line: int
    arcs: list[tuple[str, str, str, tuple[float, float]]] = field(default_factory=list)
    """Source, target, word and log-probabilities of each arc."""
    finals: list[tuple[str, tuple[float, float]]] = field(default_factory=list)
    """Final states with their log-probabilities."""
    error: FormatError | None = None
    """The first error; later lines of the lattice are skipped."""
    start: str = ""


def read_lists(
    source: Source,
    *,
    words: str = "",
    depth: int = DEFAULT_DEPTH,
    max_paths: int = MAX_PATHS,
    acscale: float = 1.0,
    lmscale: float = 1.0,
    wdpenalty: float = 0.0,
) -> Iterator[NBestList | InputError]:
    """Yield the list of each lattice: its best distinct word sequences, best first.

    The streams ``graph`` and ``acoustic`` are unweighted.

    Args:
        words: File name of the symbol table; if empty, the lattices must contain words, not numbers.
        depth: Maximum number of hypotheses per list.
        max_paths: Maximum number of partial paths in a search; a lattice that needs more is rejected.
        acscale: Weight of ``acoustic`` in the search.
        lmscale: Weight of ``graph`` in the search: of all graph costs, because the LM's share is not known.
        wdpenalty: Word insertion penalty in nats, added per word, so usually negative.

    Raises:
        FormatError: If the source or the symbol table cannot be read.
    """
    file = source_name(source)
    table = read_symbols(words) if words else None
    scales = {"graph": lmscale, "acoustic": acscale}
    seen: set[str] = set()
    for parsed in _parse_lattices(source, file):
        try:
            if parsed.error is not None:
                raise parsed.error
            if parsed.list_id in seen:
                raise ValueError(DUPLICATE_ID)
            paths = find_best_paths(_build_lattice(parsed, table), scales, wdpenalty, depth, max_paths)
        except FormatError as error:
            yield error
        except (ValueError, LimitExceeded) as error:
            yield InvalidList(str(error), list_id=parsed.list_id, file=file, line=parsed.line)
        else:
            rows = [Row(" ".join(path.words), dict(zip(STREAMS, path.scores, strict=True))) for path in paths]
            yield build_list(parsed.list_id, rows, {}, file)
        seen.add(parsed.list_id)


@contextmanager
def writer(target: str | Path, *, words: str = "", missing: float | None = None) -> Iterator[Write]:
    """Write one lattice per list from the streams ``graph`` and ``acoustic``, without transition-ids.

    A list is rejected if its id is a duplicate or contains white space, or if one of its words is silent
    (epsilon or a sentence mark) or not in the symbol table. To read back more than ``DEFAULT_DEPTH``
    hypotheses, set ``depth``.

    Args:
        words: File name of the symbol table, to write numbers; if empty, words are written.
        missing: Cost to write for lists that lack a stream; None if the streams are required.
    """
    numbers = {word: key for key, word in read_symbols(words).items()} if words else None
    written: set[str] = set()
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            lines = list(_format_lines(nbest, numbers, missing))
            if nbest.id in written:
                raise InvalidList("already written; expected each id once", list_id=nbest.id, field="id")
            written.add(nbest.id)
            stream.writelines(f"{line}\n" for line in lines)

        yield write


def _format_lines(
    nbest: NBestList, numbers: Mapping[str, str] | None, missing: float | None
) -> Iterator[str]:
    tree = build_prefix_tree(nbest, SILENT)
    costs = list(zip(*(stream_from_nats(nbest, name, COST, missing) for name in STREAMS), strict=True))
    yield format_key(nbest)
    for source, target, word, hypothesis in tree.arcs:
        symbol = word or "<eps>"
        if numbers is not None:
            symbol = numbers.get(word, "") if word else EPSILON_NUMBER
            if not symbol:
                message = f"{word!r} is not in the symbol table"
                raise InvalidList(message, list_id=nbest.id, field="text")
        graph, acoustic = (0.0, 0.0) if hypothesis is None else costs[hypothesis]
        yield f"{source} {target} {symbol} {graph + 0.0!r},{acoustic + 0.0!r},"  # + 0.0 avoids -0.0
    yield f"{tree.end}"
    yield ""


def find_losses(nbest: NBestList, **options: Any) -> set[str]:
    """Return descriptions of what a list loses when it is written and read back, whatever the options."""
    return find_lattice_losses(nbest, dict.fromkeys(STREAMS, 1.0), 0.0)


def read_symbols(path: str) -> Mapping[str, str]:
    """Read a symbol table of lines ``WORD NUMBER``; return the words by their numbers, as text.

    Raises:
        FormatError: If the file cannot be read, a line is malformed, or a number occurs twice.
    """
    table: dict[str, str] = {}
    for line, text in read_lines_strict(path):
        columns = split_words(text)
        if not columns:
            continue
        if len(columns) != 2 or not WORD_NUMBER.fullmatch(columns[1]):
            message = f"expected WORD NUMBER, got {_abbreviate(text)}"
            raise FormatError(message, file=path, line=line)
        if columns[1] in table:
            raise FormatError(f"duplicate number {columns[1]}", file=path, line=line)
        table[columns[1]] = columns[0]
    return table


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file is in this format, or an empty string."""
    if sample.is_folder or len(sample.lines) < 2 or len(split_words(sample.first)) != 1:
        return ""
    return "an id, then an arc with graph,acoustic,transition-ids" if ARC.fullmatch(sample.lines[1]) else ""


def _parse_lattices(source: Source, file: str) -> Iterator[_ParsedLattice]:
    """Yield one lattice after the other; an error in one does not affect the next."""
    parsed: _ParsedLattice | None = None
    for line, text in read_lines(source):
        columns = split_words(text) if isinstance(text, str) else []
        if isinstance(text, str) and not columns:
            if parsed is not None:
                yield parsed
            parsed = None
        elif parsed is None:
            parsed = _ParsedLattice(columns[0] if columns else "", line)
            if isinstance(text, FormatError):
                parsed.error = text
            elif len(columns) > 1:
                message = f"expected the id of a lattice, without white space, got {_abbreviate(text)}"
                parsed.error = FormatError(message, file=file, line=line)
        elif parsed.error is None:
            parsed.error = text if isinstance(text, FormatError) else _add_line(parsed, columns, file, line)
    if parsed is not None:
        message = "no empty line after the last lattice; is the file truncated?"
        parsed.error = parsed.error or FormatError(message, file=file, line=parsed.line)
        yield parsed


def _add_line(parsed: _ParsedLattice, columns: list[str], file: str, line: int) -> FormatError | None:
    """Add a line to a lattice; return the error if the line is invalid."""
    try:
        _parse_line(parsed, columns)
    except ValueError as error:
        return FormatError(str(error), file=file, line=line)
    return None


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
    """Return the log-probabilities of a weight, which is omitted if it is 0."""
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
    """Build a lattice with consecutive nodes; arcs lead from the final states to an added end node.

    Raises:
        ValueError: If the lattice is empty, or its words are numbers that the symbol table does not have.
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
    return Lattice(tuple(tuple(arcs[node]) for node in range(end + 1)), nodes[parsed.start], end, STREAMS)


def _look_up_word(symbol: str, table: Mapping[str, str] | None) -> str:
    """Return the word of a symbol, or an empty string if it is silent.

    Raises:
        ValueError: If the symbol table does not have the symbol.
    """
    if table is not None:
        if symbol not in table and symbol != EPSILON_NUMBER:
            raise ValueError(f"word {_abbreviate(symbol)} is not in the symbol table")
        symbol = table.get(symbol, "")
    return "" if symbol in SILENT else symbol


def _abbreviate(text: str) -> str:
    return repr(text[:MAX_SHOWN_CHARACTERS])

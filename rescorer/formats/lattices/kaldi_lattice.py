"""Owns Kaldi's compact lattices in text form: each lattice expanded to its exact best word sequences.

    utt1                                    a lattice begins with its id, and ends with an empty line
    0 1 yeah 3.25,1432.27,2_2_4             from, to, word, costs: graph,acoustic,transition-ids
    1 0.5,12.1,                             a final state with its costs, or without where they are 0

Costs are natural-log, lower is better; the first line's state is the start. The words are numbers of a
symbol table (``words.txt``: ``yeah 7`` a line) unless ``int2sym.pl -f 3`` has replaced them. A list is
written as the prefix tree of its words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList, LimitExceeded
from rescorer.formats.common import (
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
from rescorer.formats.lattices.lattice import MAX_PATHS, Lattice, Link, find_best_paths
from rescorer.formats.lattices.prefix_tree import find_lattice_losses, prefix_tree
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

STREAMS = ("graph", "acoustic")
"""In the order of a weight."""
COST = Units("e", "cost")
SILENT = frozenset({"<eps>", "<s>", "</s>"})
EPSILON = "0"
DEFAULT_DEPTH = 100
STATE = re.compile("[0-9]{1,9}")
WORD_NUMBER = re.compile("[0-9]+")
ARC = re.compile(r"[0-9]+\s+[0-9]+\s+\S+\s+[^\s,]+,[^\s,]+,[0-9_]*\s*")
NO_COST = (0.0, 0.0)


@dataclass(slots=True)
class _Parsed:
    """One lattice's lines, taken apart."""

    list_id: str
    line: int
    arcs: list[tuple[str, str, str, tuple[float, float]]] = field(default_factory=list)
    """From, to, word, log-probabilities."""
    finals: list[tuple[str, tuple[float, float]]] = field(default_factory=list)
    fault: FormatError | None = None
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
    """Yields the list of each lattice: its best distinct word sequences, best first, with the unweighted
    streams ``graph`` and ``acoustic``.

    Args:
        words: the symbol table; none: the lattices hold words, and one of numbers alone is a fault.
        max_paths: bound on the partial paths of one search; a lattice that needs more is a fault.
        acscale: weight of ``acoustic`` in a path's total.
        lmscale: weight of ``graph``, the LM's share of which cannot be told apart.
        wdpenalty: in nats, with its sign: added once a word.

    Raises:
        FormatError: the source or the symbol table cannot be read.
    """
    file = source_name(source)
    table = read_symbols(words) if words else None
    scales = {"graph": lmscale, "acoustic": acscale}
    seen: set[str] = set()
    for parsed in _lattices(source, file):
        try:
            if parsed.fault is not None:
                raise parsed.fault
            if parsed.list_id in seen:
                raise ValueError("is here a second time")
            best = find_best_paths(_lattice(parsed, table), scales, wdpenalty, depth, max_paths)
        except FormatError as fault:
            yield fault
        except (ValueError, LimitExceeded) as fault:
            yield InvalidList(str(fault), list_id=parsed.list_id, file=file, line=parsed.line)
        else:
            rows = [Row(" ".join(p.words), dict(zip(STREAMS, p.scores, strict=True))) for p in best]
            yield build_list(parsed.list_id, rows, {}, file)
        seen.add(parsed.list_id)


@contextmanager
def writer(target: str | Path, *, words: str = "", missing: float | None = None) -> Iterator[Write]:
    """Writes a lattice a list from the streams ``graph`` and ``acoustic``, without transition ids.

    A list is refused whose id holds white space or was there before, or with a word that is no word here.
    More than ``DEFAULT_DEPTH`` hypotheses are read back where ``depth`` says so.

    Args:
        words: the symbol table whose numbers are written; none: words.
        missing: cost where a list has no such stream; None: it is refused.
    """
    numbers = {word: key for key, word in read_symbols(words).items()} if words else None
    written: set[str] = set()
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            lines = list(_lines(nbest, numbers, missing))
            if nbest.id in written:
                raise InvalidList(
                    "is there a second time; expected each id once", list_id=nbest.id, field="id"
                )
            written.add(nbest.id)
            stream.writelines(f"{line}\n" for line in lines)

        yield write


def _lines(nbest: NBestList, numbers: Mapping[str, str] | None, missing: float | None) -> Iterator[str]:
    tree = prefix_tree(nbest, SILENT)
    costs = list(zip(*(stream_from_nats(nbest, name, COST, missing) for name in STREAMS), strict=True))
    yield format_key(nbest)
    for source, target, word, of in tree.arcs:
        said = word or "<eps>"
        if numbers is not None:
            said = numbers.get(word, "") if word else EPSILON
            if not said:
                message = f"{word!r} is not in the symbol table"
                raise InvalidList(message, list_id=nbest.id, field="text")
        graph, acoustic = (0.0, 0.0) if of is None else costs[of]
        yield f"{source} {target} {said} {graph + 0.0!r},{acoustic + 0.0!r},"
    yield f"{tree.end}"
    yield ""


def find_losses(nbest: NBestList, **options: Any) -> set[str]:
    """What a list does not keep of its hypotheses, whatever the options."""
    return find_lattice_losses(nbest, dict.fromkeys(STREAMS, 1.0), 0.0)


def read_symbols(path: str) -> Mapping[str, str]:
    """Words by their numbers, both as text, from lines ``WORD NUMBER``.

    Raises:
        FormatError: the file cannot be read, a line is none, or a number is there twice.
    """
    table: dict[str, str] = {}
    for line, text in read_lines_strict(path):
        columns = split_words(text)
        if not columns:
            continue
        if len(columns) != 2 or not WORD_NUMBER.fullmatch(columns[1]):
            raise FormatError(f"{text[:40]!r}: expected WORD NUMBER", file=path, line=line)
        if columns[1] in table:
            raise FormatError(f"the number {columns[1]} is here a second time", file=path, line=line)
        table[columns[1]] = columns[0]
    return table


def looks_like(sample: Sample) -> str:
    """What says that a file is of this format; empty where nothing does."""
    if sample.is_folder or len(sample.lines) < 2 or len(split_words(sample.first)) != 1:
        return ""
    return "an id, then an arc with graph,acoustic,transition-ids" if ARC.fullmatch(sample.lines[1]) else ""


def _lattices(source: Source, file: str) -> Iterator[_Parsed]:
    """Lattice by lattice; the first fault of each stays in it, and the next one is read."""
    parsed: _Parsed | None = None
    for line, text in read_lines(source):
        columns = split_words(text) if isinstance(text, str) else []
        if isinstance(text, str) and not columns:
            if parsed is not None:
                yield parsed
            parsed = None
        elif parsed is None:
            parsed = _Parsed(columns[0] if columns else "", line)
            if isinstance(text, FormatError):
                parsed.fault = text
            elif len(columns) > 1:
                parsed.fault = FormatError(
                    f"{text[:40]!r}: expected a lattice's id alone", file=file, line=line
                )
        elif parsed.fault is None:
            parsed.fault = text if isinstance(text, FormatError) else _fault(parsed, columns, file, line)
    if parsed is not None:
        missing = "the last lattice has no empty line after it; expected one: is the file cut off?"
        parsed.fault = parsed.fault or FormatError(missing, file=file, line=parsed.line)
        yield parsed


def _fault(parsed: _Parsed, columns: list[str], file: str, line: int) -> FormatError | None:
    """Adds a line to its lattice, or says why it cannot be added."""
    try:
        _add(parsed, columns)
    except ValueError as fault:
        return FormatError(str(fault), file=file, line=line)
    return None


def _add(parsed: _Parsed, columns: list[str]) -> None:
    for state in columns[: 1 if len(columns) < 3 else 2]:
        if not STATE.fullmatch(state):
            raise ValueError(f"{state[:40]!r} is no state's number")
    parsed.start = parsed.start or columns[0]
    if len(columns) < 3:
        parsed.finals.append((columns[0], _log_probs(columns[1:])))
    elif len(columns) < 5:
        parsed.arcs.append((columns[0], columns[1], columns[2], _log_probs(columns[3:])))
    else:
        raise ValueError(
            f"{len(columns)} columns; expected FROM TO WORD GRAPH,ACOUSTIC,TRANSITION-IDS (a compact lattice)"
        )


def _log_probs(weight: list[str]) -> tuple[float, float]:
    """Of a weight, which is left out where it is 0."""
    if not weight:
        return NO_COST
    costs = weight[0].split(",")
    if len(costs) != 3:
        raise ValueError(f"{weight[0][:40]!r}: expected GRAPH,ACOUSTIC,TRANSITION-IDS")
    graph, acoustic = (parse_number(cost) for cost in costs[:2])
    if isinstance(graph, str) or isinstance(acoustic, str) or not abs(graph) + abs(acoustic) < float("inf"):
        raise ValueError(f"{weight[0][:40]!r}: expected two finite costs")
    return 0.0 - graph, 0.0 - acoustic  # not -0.0


def _lattice(parsed: _Parsed, table: Mapping[str, str] | None) -> Lattice:
    """The states get new numbers, as few as there are; finals lead to an end of their own."""
    if not parsed.arcs and not parsed.finals:
        raise ValueError("no states; expected one at least")
    if table is None and parsed.arcs and all(WORD_NUMBER.fullmatch(word) for _, _, word, _ in parsed.arcs):
        raise ValueError("its words are numbers: give the symbol table, words=FILE")
    names = dict.fromkeys([parsed.start])
    names |= dict.fromkeys(state for source, target, *_ in parsed.arcs for state in (source, target))
    names |= dict.fromkeys(state for state, _ in parsed.finals)
    places = {state: place for place, state in enumerate(names)}
    end = len(places)
    links: defaultdict[int, list[Link]] = defaultdict(list)
    for source, target, word, scores in parsed.arcs:
        links[places[source]].append(Link(places[target], _spoken(word, table), scores))
    for state, scores in parsed.finals:
        links[places[state]].append(Link(end, "", scores))
    return Lattice(tuple(tuple(links[place]) for place in range(end + 1)), places[parsed.start], end, STREAMS)


def _spoken(word: str, table: Mapping[str, str] | None) -> str:
    """The word itself; empty where nothing is said."""
    if table is not None:
        if word not in table and word != EPSILON:
            raise ValueError(f"the word {word[:40]!r} is no number of the symbol table")
        word = table.get(word, "")
    return "" if word in SILENT else word

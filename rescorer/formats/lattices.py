"""Lattices: the search for their best word sequences, writing lists as prefix trees, and HTK's format (SLF).

A lattice is read as the list of its best distinct word sequences. The search is A* (Hart, Nilsson and
Raphael, 1968) with the exact score of the best completion as its heuristic.

A list is written as the prefix tree of its words and times: hypotheses share their first words as long as
words and times are equal. After its last word, each hypothesis has a separate arc to the end node. That arc
carries all scores of the hypothesis, so that sums along a path are exact. A reader of the lattice recovers
the hypotheses in the order of their total scores. If several have the same words, it recovers one of them.

A file in HTK's standard lattice format has one lattice. The name of the file is the utterance id.

    VERSION=1.0 lmscale=12.3 wdpenalty=-0.7 base=2.71828        header, on any number of lines
    N=24 L=39                                                   numbers of nodes and links (arcs)
    I=0 t=0.00 W=!NULL                                          a node, with its word if words are on nodes
    J=0 S=0 E=1 W=yeah v=0 a=-1432.27 l=-3.1                    a link, with its word if words are on links

The syntax is that of the HTK Book, chapter "HTK Standard Lattice Format (SLF)". Pronunciation variants
(``v=``) are one word; ``!NULL`` and sentence marks are not words. The time of a node (``t=``) is the end of
its word; in files of PocketSphinx, which are recognised by a comment, it is the start.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path as FilePath
from typing import NamedTuple

from rescorer.errors import FormatError, InvalidList, LimitExceeded
from rescorer.formats.common import (
    ListSize,
    ListWriter,
    Row,
    build_list,
    folder_writer,
    format_texts,
    split_words,
)
from rescorer.formats.fields import TIME_DECIMALS, WORDS_FIELD, build_word_times, get_word_times
from rescorer.formats.io.folders import Lists, Sample, read_list_files
from rescorer.formats.io.text_io import Source, read_lines_strict, source_name
from rescorer.types import NBestList

LATTICE_LINE_COST = 256
"""Further bytes by which a line of a lattice counts: a link and its scores are several objects."""
DEFAULT_DEPTH = 100
"""Number of word sequences to extract from a lattice by default."""
MAX_PATHS = 2_000_000
"""Maximum number of partial paths in a search. With twenty words each, so many take about 1 GB."""
Span = tuple[float, float]
"""Start and end of a word in seconds."""
ESTIMATE_DECIMALS = 9
"""Number of decimals to which estimated totals are rounded: other digits vary with the order of additions."""


class Arc(NamedTuple):
    """A transition from one node of a lattice to another."""

    target: int
    word: str
    """The word of the arc; empty for fillers and sentence marks."""
    scores: tuple[float, ...]
    """One score in nats per stream of the lattice."""
    span: Span | None = None
    """Start and end of the word, if known."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """A word lattice with words on its arcs, one start node and one end node."""

    arcs: tuple[tuple[Arc, ...], ...]
    """Outgoing arcs of each node."""
    start: int
    end: int
    streams: tuple[str, ...] = ("acoustic",)

    def topological_order(self) -> list[int]:
        """Return the nodes that are reachable from the start, each before all of its successors.

        Raises:
            ValueError: the lattice has a cycle.
        """
        order: list[int] = []
        seen = {self.start}
        stack = [(self.start, iter(self.arcs[self.start]))]
        while stack:
            node, arcs = stack[-1]
            target = next((arc.target for arc in arcs if arc.target not in seen), None)
            if target is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(target)
                stack.append((target, iter(self.arcs[target])))
        order.reverse()
        positions = {node: position for position, node in enumerate(order)}
        for node in order:
            if any(positions[arc.target] <= positions[node] for arc in self.arcs[node]):
                raise ValueError(f"node {node} is on a cycle; expected a lattice without cycles")
        return order


class Path(NamedTuple):
    """A word sequence, and the scores of the best path through a lattice with these words."""

    words: tuple[str, ...]
    total: float
    scores: tuple[float, ...]
    spans: tuple[Span, ...] = ()
    """Start and end of the words that have times. Words without times have no entry."""


def find_best_paths(
    lattice: Lattice, scales: Mapping[str, float], word_penalty: float, depth: int, max_paths: int = MAX_PATHS
) -> list[Path]:
    """Find the ``depth`` best distinct word sequences of a lattice, best first.

    The total of a path is Σ scale · score + ``word_penalty`` · number of words. Of the paths with the same
    words, only the best one counts. Paths leave the queue best first, because the estimate of a path's total
    is exact. If a node is reached again with the same words, that path can therefore be skipped.

    Args:
        scales: weight of each stream, by its name.
        word_penalty: word insertion penalty in nats; it is added per word, so it is usually negative.
        max_paths: maximum number of partial paths in memory.

    Raises:
        ValueError: the lattice has a cycle, or no path leads from its start to its end.
        LimitExceeded: the search needs more than ``max_paths`` partial paths.
    """
    weights = [scales[name] for name in lattice.streams]

    def weigh(arc: Arc) -> float:
        weighted = sum(weight * score for weight, score in zip(weights, arc.scores, strict=True))
        return weighted + word_penalty * bool(arc.word)

    order = lattice.topological_order()
    steps = {node: [(arc, weigh(arc)) for arc in lattice.arcs[node]] for node in order}
    best_completion: dict[int, float] = {}  # total of the best path from a node to the end
    for node in reversed(order):
        totals = (total + best_completion[arc.target] for arc, total in steps[node])
        best_completion[node] = 0.0 if node == lattice.end else max(totals, default=-math.inf)

    path = Path((), 0.0, (0.0,) * len(lattice.streams))
    queue: list[tuple[float, int, Path, int]] = [(-best_completion[lattice.start], 0, path, lattice.start)]
    visited: set[tuple[int, tuple[str, ...]]] = set()
    found: list[Path] = []
    pushed = 0  # breaks ties, newest first, so that one of several equal paths is followed to the end
    while queue and len(found) < depth:
        _, _, path, node = heapq.heappop(queue)
        if (node, path.words) in visited:
            continue
        visited.add((node, path.words))
        if node == lattice.end:
            found.append(path)
            continue
        for arc, total in steps[node]:
            if best_completion[arc.target] == -math.inf:
                continue
            pushed += 1
            if pushed > max_paths:
                message = f"more than {max_paths} partial paths for {len(found)} of {depth} word sequences"
                raise LimitExceeded(f"{message}; reduce depth or raise max_paths")
            longer = _extend_path(path, arc, total)
            estimate = round(longer.total + best_completion[arc.target], ESTIMATE_DECIMALS)
            heapq.heappush(queue, (-estimate, -pushed, longer, arc.target))
    if not found:
        raise ValueError("no path leads from the start to the end")
    return sorted(found, key=lambda path: -path.total)


def _extend_path(path: Path, arc: Arc, total: float) -> Path:
    words = (*path.words, arc.word) if arc.word else path.words
    scores = tuple(a + b for a, b in zip(path.scores, arc.scores, strict=True))
    spans = (*path.spans, arc.span) if arc.word and arc.span else path.spans
    return Path(words, path.total + total, scores, spans)


SMALLEST_DIFFERENCE = 2 * 10.0**-ESTIMATE_DECIMALS
"""Hypotheses whose totals differ by no more than this may be read back in another order, due to rounding."""


class TreeArc(NamedTuple):
    """An arc of a prefix tree; node 0 is the start."""

    source: int
    target: int
    word: str
    """The word of the arc; empty if the arc has none."""
    hypothesis: int | None = None
    """Index of the hypothesis that ends with this arc; None if none does."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """Nodes and arcs of a prefix tree; the last node is the end.

    The arc that leads to a node comes before the arcs that leave the node.
    """

    times_s: tuple[float | None, ...]
    """Time of each node, if known."""
    arcs: tuple[TreeArc, ...]

    @property
    def end(self) -> int:
        """Index of the end node."""
        return len(self.times_s) - 1


def build_prefix_tree(nbest: NBestList, silent: Container[str], timed: bool = False) -> PrefixTree:
    """Build the prefix tree of a list.

    Args:
        silent: words that a reader of the format would drop.
        timed: whether to keep the times in the hypothesis field ``words``.

    Raises:
        InvalidList: a text contains a line break or a silent word, or the field ``words`` does not match
            the text.
    """
    texts = [split_words(text) for text in format_texts(nbest)]
    spans = [_get_spans(nbest, index, words) if timed else [] for index, words in enumerate(texts)]
    times: list[float | None] = [0.0 if any(spans) else None]
    arcs: list[TreeArc] = []
    children: dict[tuple[int, str, float | None], int] = {}

    def follow(node: int, word: str, time: float | None) -> int:
        if (node, word, time) not in children:
            children[node, word, time] = len(times)
            arcs.append(TreeArc(node, len(times), word))
            times.append(time)
        return children[node, word, time]

    leaves = []
    for index, words in enumerate(texts):
        node = 0
        for position, word in enumerate(words):
            if word in silent:
                message = f"{word!r} is not a word in this format"
                raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="text")
            start, end = spans[index][position] if spans[index] else (times[node], None)
            node = node if start == times[node] else follow(node, "", start)
            node = follow(node, word, end)
        leaves.append(node)
    last = max((time for time in times if time is not None), default=None)
    final_arcs = [TreeArc(node, len(times), "", index) for index, node in enumerate(leaves)]
    return PrefixTree((*times, last), (*arcs, *final_arcs))


def _get_spans(nbest: NBestList, index: int, words: Sequence[str]) -> list[Span]:
    """Return the start and end of each word, or an empty list if the hypothesis has no times."""
    if WORDS_FIELD not in nbest.hypotheses[index].fields:
        return []
    times = get_word_times(nbest, index, words)
    starts = [round(float(entry["start_s"]), TIME_DECIMALS) for entry in times]
    ends = [round(entry["start_s"] + entry["duration_s"], TIME_DECIMALS) for entry in times]
    return list(zip(starts, ends, strict=True))


def find_lattice_losses(nbest: NBestList, scales: Mapping[str, float], word_penalty: float) -> set[str]:
    """Describe what is lost of a list that is written as a lattice, if a reader uses the given scales."""
    words = [tuple(split_words(hypothesis.text)) for hypothesis in nbest.hypotheses]
    totals = [word_penalty * len(sequence) for sequence in words]
    for name, scale in scales.items():
        for index, value in enumerate(nbest.streams.get(name, ())):
            totals[index] += scale * value
    losses = set()
    if not all(total - following > SMALLEST_DIFFERENCE for total, following in pairwise(totals)):
        losses.add("order of hypotheses, which readers sort by total score")
    if len(set(words)) < len(words):
        losses.add("hypotheses with the same words as another")
    return losses


SILENT = frozenset({"!NULL", "!ENTER", "!EXIT", "!SENT_START", "!SENT_END", "<s>", "</s>"})
"""Fillers and sentence marks, which are not words."""
SHORT_NAMES = {
    "NODES": "N", "LINKS": "L", "START": "S", "END": "E", "WORD": "W", "var": "v", "time": "t",
    "acoustic": "a", "language": "l", "SUBLAT": "sublattice", "U": "UTTERANCE",
}  # fmt: skip
"""Names of fields, and the shorter or more usual names that this module uses instead."""
STREAMS = {"a": "acoustic", "l": "lm", "r": "pronunciation"}
"""The fields of a link that have scores, and the streams that these become."""
FIELD = re.compile(r"""\s*([^\s=]+)=("(?:[^"\\]|\\.){0,1000}"(?!\S)|'(?:[^'\\]|\\.){0,1000}'(?!\S)|\S*)\s*""")
ESCAPE = re.compile(r"\\([0-7]{3}|.)")
UNESCAPED_VALUE = re.compile(r"""[^\s"'\\\x00-\x1f][^\s\\\x00-\x1f]*""")
"""A value that can be written without escapes."""
NUMBER = re.compile("[0-9]{1,9}")
POCKETSPHINX_COMMENT = "# Lattice generated by PocketSphinx"
"""A comment in PocketSphinx's files. In these, the time of a node is the start of its word, and the scores of
a link are those of the word at its source node."""


class _ParsedLink(NamedTuple):
    """The fields of a link."""

    source: int
    target: int
    word: str
    scores: dict[str, float]
    """Scores in nats by field name."""
    line: int


@dataclass(slots=True)
class _ParsedFile:
    """The fields of a file."""

    header: dict[str, str] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)
    """Word of each node; empty if the node has no word."""
    links: list[_ParsedLink] = field(default_factory=list)
    nats_per_unit: float | None = 1.0
    """Nats per unit of the scores; None if they are probabilities instead of logarithms."""
    times_s: dict[int, float] = field(default_factory=dict)
    """Times of the nodes that have one."""
    words_start_at_nodes: bool = False
    """Whether the time of a node is the start of its word; otherwise it is the end."""


def read_lattice(source: Source) -> tuple[Lattice, Mapping[str, str]]:
    """Read one lattice, with scores in nats, and its header.

    The header may name the start and end nodes (``start=`` and ``end=``). Otherwise these are the nodes
    without incoming or without outgoing links. Because there may be several, one node is added before all
    start nodes, and one after all end nodes.

    Raises:
        FormatError: the file cannot be read, is incomplete or is not a lattice; the error names line and
            field.
    """
    file = source_name(source)
    parsed, size = _ParsedFile(), ListSize()
    for line, text in read_lines_strict(source):
        try:
            size.add(len(text) + LATTICE_LINE_COST)
        except ValueError as error:
            raise FormatError(f"the lattice {error}", file=file, line=line) from None
        if not text.startswith("#"):
            _parse_line(parsed, text, file, line)
        parsed.words_start_at_nodes |= text.startswith(POCKETSPHINX_COMMENT)
    for name, found in (("N", len(parsed.words)), ("L", len(parsed.links))):
        if parsed.header.get(name) != str(found):
            declared = parsed.header.get(name, "nothing")
            message = f"the header declares {declared}, but the file has {found}; is it truncated?"
            raise FormatError(message, file=file, field=name)
    if parsed.words.keys() != set(range(len(parsed.words))):
        raise FormatError(f"expected the nodes 0 to {len(parsed.words) - 1}", file=file, field="I")
    for link in parsed.links:
        for name, node in (("S", link.source), ("E", link.target)):
            if node not in parsed.words:
                raise FormatError(f"node {node} does not exist", file=file, line=link.line, field=name)
    return _build_lattice(parsed, file), parsed.header


def _parse_line(parsed: _ParsedFile, text: str, file: str, line: int) -> None:
    values = _parse_fields(text, file, line)
    word = "" if values.get("W", "") in SILENT else values.get("W", "")

    def parse_node(name: str) -> int:
        if not NUMBER.fullmatch(values.get(name, "")):
            message = f"expected the number of a node, got {values.get(name, 'nothing')!r}"
            raise FormatError(message, file=file, line=line, field=name)
        return int(values[name])

    if "I" in values:
        if "sublattice" in values or "L" in values:
            raise FormatError("sub-lattices are not supported; expand them first", file=file, line=line)
        node = parse_node("I")
        if node in parsed.words:
            raise FormatError(f"duplicate node {node}", file=file, line=line, field="I")
        parsed.words[node] = word
        if "t" in values:
            parsed.times_s[node] = parse_score(values["t"], 1.0, file, line, "t")
    elif "J" in values:
        scores = {
            name: parse_score(values[name], parsed.nats_per_unit, file, line, name)
            for name in STREAMS
            if name in values
        }
        parsed.links.append(_ParsedLink(parse_node("S"), parse_node("E"), word, scores, line))
    else:
        parsed.header |= values
        if "base" in values and parsed.links:
            message = "comes after scores; expected it in the header"
            raise FormatError(message, file=file, line=line, field="base")
        if "base" in values:
            parsed.nats_per_unit = parse_log_base(values["base"], file, line)


def _parse_fields(text: str, file: str, line: int) -> dict[str, str]:
    """Parse a line into the values of its fields, by their names after ``SHORT_NAMES``."""
    values: dict[str, str] = {}
    end, size = 0, len(text.rstrip())
    while end < size:
        match = FIELD.match(text, end)
        if not match:
            raise FormatError(f"expected NAME=VALUE, got {text[end : end + 40]!r}", file=file, line=line)
        values[SHORT_NAMES.get(match[1], match[1])] = _unescape(match[2])
        end = match.end()
    return values


def _unescape(value: str) -> str:
    """Decode an HTK string, which may have quotes, backslashes before characters, and bytes in octal."""
    if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]:
        value = value[1:-1]
    if "\\" not in value:
        return value
    raw = ESCAPE.sub(lambda m: chr(int(m[1], 8) % 256) if len(m[1]) == 3 else m[1], value)
    try:  # bytes in octal are UTF-8
        return raw.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return raw


def escape_value(text: str) -> str:
    """Encode a string as HTK does: bytes with a special meaning become octal numbers."""
    if UNESCAPED_VALUE.fullmatch(text):
        return text
    escaped = (chr(b) if 32 < b < 127 and b not in b"\"'\\" else f"\\{b:03o}" for b in text.encode())
    return "".join(escaped)


def parse_log_base(text: str, file: str, line: int | None) -> float | None:
    """Parse a log base; return its natural logarithm, or None if it is 0, which means probabilities.

    Raises:
        FormatError: the base is negative, 1 or not a number.
    """
    try:
        base = float(text)
    except ValueError:
        base = math.nan
    if base == 0:
        return None
    if not math.isfinite(base) or base <= 0 or base == 1:
        message = f"expected a log base above 0 and not 1, or 0 for probabilities, got {text!r}"
        raise FormatError(message, file=file, line=line, field="base")
    return math.log(base)


def parse_score(text: str, nats_per_unit: float | None, file: str, line: int | None, field: str) -> float:
    """Parse a score and convert it to nats; if ``nats_per_unit`` is None, the score is a probability.

    Raises:
        FormatError: the result is not a finite number.
    """
    try:
        value = float(text)
        value = value * nats_per_unit if nats_per_unit is not None else math.log(value)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        expected = "a finite number" if nats_per_unit is not None else "a probability above 0 (base=0)"
        raise FormatError(f"expected {expected}, got {text!r}", file=file, line=line, field=field)
    return value


def _build_lattice(parsed: _ParsedFile, file: str) -> Lattice:
    """Build a lattice with all words on arcs.

    The word of a node moves to the arcs that enter the node or, if words start at nodes, to those that leave.
    """
    names = [name for name in STREAMS if any(name in link.scores for link in parsed.links)]
    arcs: defaultdict[int, list[Arc]] = defaultdict(list)
    for link in parsed.links:
        node_word = parsed.words[link.source if parsed.words_start_at_nodes else link.target]
        words = [word for word in (link.word, node_word) if word]
        span = _find_span(parsed, link.source, link.target) if len(words) == 1 else None
        scores = tuple(link.scores.get(name, 0.0) for name in names)
        arcs[link.source].append(Arc(link.target, " ".join(words), scores, span))
    zeros = (0.0,) * len(names)
    start, end = len(parsed.words), len(parsed.words) + 1
    with_incoming = {link.target for link in parsed.links}
    with_outgoing = {link.source for link in parsed.links}
    starts = _find_terminals(parsed, "start", with_incoming, file)
    ends = _find_terminals(parsed, "end", with_outgoing, file)
    word_first = parsed.words_start_at_nodes
    arcs[start] = [Arc(node, "" if word_first else parsed.words[node], zeros) for node in starts]
    for node in ends:
        arcs[node].append(Arc(end, parsed.words[node] if word_first else "", zeros))
    streams = tuple(STREAMS[name] for name in names)
    return Lattice(tuple(tuple(arcs[node]) for node in range(end + 1)), start, end, streams)


def _find_span(parsed: _ParsedFile, source: int, target: int) -> Span | None:
    """Return the times of two nodes as a span, or None if the times cannot be the start and end of a word."""
    start, end = parsed.times_s.get(source), parsed.times_s.get(target)
    return (start, end) if start is not None and end is not None and 0 <= start <= end else None


def _find_terminals(parsed: _ParsedFile, name: str, connected: set[int], file: str) -> list[int]:
    """Return the node that the header names, or else all nodes that are not in ``connected``.

    Args:
        name: field of the header: ``start`` or ``end``.
        connected: for the start, the nodes that links enter; for the end, the nodes that links leave.
    """
    if name in parsed.header:
        value = parsed.header[name]
        if not NUMBER.fullmatch(value) or int(value) not in parsed.words:
            raise FormatError(f"node {value!r} does not exist", file=file, field=name)
        return [int(value)]
    found = sorted(parsed.words.keys() - connected)
    if not found:
        kind = "incoming" if name == "start" else "outgoing"
        raise FormatError(f"no {name} node; expected a node without {kind} links", file=file)
    return found


SUFFIXES = (".slf", ".lat")
SCALES = {"acscale": "acoustic", "lmscale": "lm", "prscale": "pronunciation"}
"""The names of weights in headers and options, and the streams that they weight."""
OPTIONS = (*SCALES, "wdpenalty")
"""Names of the weights in the total score of a path: Σ scale · score + ``wdpenalty`` · number of words.

The penalty is in nats and added per word, so it is usually negative. A weight that is not given is taken from
the header of the lattice, or else is 1; the penalty is 0 by default.
"""
NAME_FIELD = "utterance"
"""Name of the list field that gets the utterance name in the header of a lattice."""
NO_WORD = "!NULL"
ENTRY = re.compile(r"(I|J|S)=")
"""Matches the start of a line that describes a node or link. The first such line ends the header."""
HEADER_LINE = re.compile(r"\w+=\S.*")
HEADER_FIELD = re.compile(r"(?:^|\s)(\w+)=\S")


def read_lists(
    source: Source, *, depth: int = DEFAULT_DEPTH, max_paths: int = MAX_PATHS, **scales: float
) -> Lists:
    """Yield the list of each lattice: its best distinct word sequences, best first.

    The streams ``acoustic``, ``lm`` and ``pronunciation`` have unweighted scores. A stream is omitted if no
    link has a score for it, and a missing score counts as 0. If the nodes have times, the field ``words``
    contains the times of the words, as for a ctm.

    Args:
        depth: maximum number of hypotheses per list.
        max_paths: maximum number of partial paths in a search; a lattice that needs more is rejected.
        scales: weights of the streams in the search, by the names in ``OPTIONS``.

    Raises:
        FormatError: the source cannot be opened, or has no name.
    """
    return read_list_files(
        source, lambda list_id, path: _read_file(list_id, path, depth, max_paths, scales), SUFFIXES
    )


def _read_file(
    list_id: str, path: FilePath, depth: int, max_paths: int, scales: Mapping[str, float]
) -> Lists:
    lattice, header = read_lattice(path)
    try:
        paths = find_best_paths(lattice, *resolve_scales(header, scales, str(path)), depth, max_paths)
    except (ValueError, LimitExceeded) as error:
        yield InvalidList(str(error), list_id=list_id, file=str(path))
        return
    rows = [build_row(lattice, best_path) for best_path in paths]
    name = {NAME_FIELD: header["UTTERANCE"]} if "UTTERANCE" in header else {}
    yield build_list(list_id, rows, {}, str(path), fields=name)


def build_row(lattice: Lattice, path: Path) -> Row:
    """Build the hypothesis of a path. It gets word times if all of its words have times."""
    scores = dict(zip(lattice.streams, path.scores, strict=True))
    timed = len(path.spans) == len(path.words) > 0
    times = {WORDS_FIELD: build_word_times(path.words, path.spans)} if timed else {}
    return Row(" ".join(path.words), scores, times)


def writer(target: str | FilePath, **options: float) -> ListWriter:
    """Write one lattice per list into a folder, with the scores of all streams in nats and the word times.

    The streams are ``acoustic``, ``lm`` and ``pronunciation``. To read back more than ``DEFAULT_DEPTH``
    hypotheses, set ``depth`` when reading.

    Args:
        options: weights for the header, by the names in ``OPTIONS``; they determine the order in which
            hypotheses are read back.
    """
    header = [f"{name}={options[name]!r}" for name in OPTIONS if name in options]
    return folder_writer(target, lambda nbest: _format_lines(nbest, header), SUFFIXES[0])


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
    """Describe what a list loses if it is written with these options and read back."""
    return find_lattice_losses(nbest, *resolve_scales({}, options, ""))


def resolve_scales(
    header: Mapping[str, str], scales: Mapping[str, float], file: str
) -> tuple[dict[str, float], float]:
    """Return the weight of each stream and the word penalty in nats; see ``OPTIONS``.

    Raises:
        FormatError: a value in the header is not a number.
    """
    nats = parse_log_base(header["base"], file, None) if "base" in header else 1.0

    def resolve(name: str, default: float, nats_per_unit: float = 1.0) -> float:
        if name in scales:
            return scales[name]
        return parse_score(header[name], nats_per_unit, file, None, name) if name in header else default

    by_stream = {stream: resolve(name, 1.0) for name, stream in SCALES.items()}
    return by_stream, resolve("wdpenalty", 0.0, 1.0 if nats is None else nats)


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

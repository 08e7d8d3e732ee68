"""Owns the syntax of HTK's standard lattice format (SLF): a file becomes a lattice in memory.

    VERSION=1.0 lmscale=12.3 wdpenalty=-0.7 base=2.71828        a header, on any number of lines
    N=24 L=39                                                   numbers of nodes and links
    I=0 t=0.00 W=!NULL                                          a node, with its word where words are there
    J=0 S=0 E=1 W=yeah v=0 a=-1432.27 l=-3.1                    a link, with its word where words are here

The HTK Book, chapter "Lattice Files". Pronunciation variants (``v=``) are one word; ``!NULL`` and sentence
marks are none.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rescorer.errors import FormatError
from rescorer.formats.lattice import Lattice, Link
from rescorer.formats.source import Source, read_lines, source_name

SILENT = frozenset({"!NULL", "!ENTER", "!EXIT", "!SENT_START", "!SENT_END", "<s>", "</s>"})
"""What lattices call their fillers and sentence marks."""
LONG_NAMES = {
    "NODES": "N", "LINKS": "L", "START": "S", "END": "E", "WORD": "W", "var": "v", "time": "t",
    "acoustic": "a", "language": "l", "SUBLAT": "sublattice", "U": "UTTERANCE",
}  # fmt: skip
STREAMS = {"a": "acoustic", "l": "lm", "r": "pronunciation"}
FIELD = re.compile(r"""\s*([^\s=]+)=("(?:[^"\\]|\\.){0,1000}"(?!\S)|'(?:[^'\\]|\\.){0,1000}'(?!\S)|\S*)\s*""")
ESCAPE = re.compile(r"\\([0-7]{3}|.)")


@dataclass(slots=True)
class _Parsed:
    """A file's lines, taken apart."""

    header: dict[str, str] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)
    """Of nodes; empty where they have none."""
    links: list[tuple[int, int, str, dict[str, float]]] = field(default_factory=list)
    """From, to, word, scores by letter."""
    nats: float | None = 1.0
    """Of one unit of score; None: probabilities that are not logarithms."""


def read_lattice(source: Source) -> tuple[Lattice, Mapping[str, str]]:
    """One lattice, with scores in nats, and its header.

    Several start or end nodes get one node before or after them; the header's ``start=`` and ``end=`` name
    them, or else they are those that nothing leads to or from.

    Raises:
        FormatError: the file cannot be read, is incomplete, or is no lattice; names line and field.
    """
    file = source_name(source)
    parsed = _Parsed()
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            raise text
        if not text.startswith("#"):
            _read_line(parsed, text, file, line)
    for name, found in (("N", len(parsed.words)), ("L", len(parsed.links))):
        if parsed.header.get(name) != str(found):
            said = parsed.header.get(name, "nothing")
            raise FormatError(
                f"the header says {said}, the file has {found}: incomplete?", file=file, field=name
            )
    if parsed.words.keys() != set(range(len(parsed.words))):
        raise FormatError(f"expected the nodes 0 to {len(parsed.words) - 1}", file=file, field="I")
    for number, (start, end, _, _) in enumerate(parsed.links):
        if not {start, end} <= parsed.words.keys():
            raise FormatError(f"link {number}: from {start} to {end}; no such node", file=file)
    return _lattice(parsed, file), parsed.header


def _read_line(parsed: _Parsed, text: str, file: str, line: int) -> None:
    values = _fields(text, file, line)

    def node(name: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", values.get(name, "")):
            raise FormatError(
                f"{values.get(name, 'nothing')!r} is no node's number", file=file, line=line, field=name
            )
        return int(values[name])

    if "I" in values:
        if "sublattice" in values or "L" in values:
            raise FormatError("sub-lattices are not read; expand them first", file=file, line=line)
        if node("I") in parsed.words:
            raise FormatError("this node is here a second time", file=file, line=line, field="I")
        parsed.words[node("I")] = _spoken(values.get("W", ""))
    elif "J" in values:
        scores = {
            letter: nats_of(values[letter], parsed.nats, file, line, letter)
            for letter in STREAMS
            if letter in values
        }
        parsed.links.append((node("S"), node("E"), _spoken(values.get("W", "")), scores))
    else:
        parsed.header |= values
        if "base" in values and parsed.links:
            raise FormatError(
                "comes after scores; expected it in the header", file=file, line=line, field="base"
            )
        if "base" in values:
            parsed.nats = log_of_base(values["base"], file, line)


def _fields(text: str, file: str, line: int) -> dict[str, str]:
    """A line's values by their short names."""
    values: dict[str, str] = {}
    end, size = 0, len(text.rstrip())
    while end < size:
        match = FIELD.match(text, end)
        if not match:
            raise FormatError(f"{text[end : end + 40]!r}: expected NAME=VALUE", file=file, line=line)
        values[LONG_NAMES.get(match[1], match[1])] = _unquoted(match[2])
        end = match.end()
    return values


def _unquoted(value: str) -> str:
    """HTK's strings: in quotes or not, with backslashes before characters and octal bytes."""
    if len(value) > 1 and value[0] in "\"'" and value[-1] == value[0]:
        value = value[1:-1]
    if "\\" not in value:
        return value
    raw = ESCAPE.sub(lambda m: chr(int(m[1], 8) % 256) if len(m[1]) == 3 else m[1], value)
    try:  # octal bytes are those of UTF-8
        return raw.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return raw


def _spoken(word: str) -> str:
    return "" if word in SILENT else word


def log_of_base(text: str, file: str, line: int | None) -> float | None:
    try:
        base = float(text)
    except ValueError:
        base = math.nan
    if base == 0:
        return None
    if not math.isfinite(base) or base <= 0 or base == 1:
        raise FormatError(
            f"{text!r} is no base; expected a number above 0, not 1, or 0", file=file, line=line, field="base"
        )
    return math.log(base)


def nats_of(text: str, nats: float | None, file: str, line: int | None, letter: str) -> float:
    """One score as a natural-log log-probability."""
    try:
        value = float(text)
        value = value * nats if nats is not None else math.log(value)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        expected = "a finite number" if nats is not None else "a probability above 0 (base=0)"
        raise FormatError(f"{text!r}; expected {expected}", file=file, line=line, field=letter)
    return value


def _lattice(parsed: _Parsed, file: str) -> Lattice:
    """Words go to the links that lead to their nodes."""
    letters = [letter for letter in STREAMS if any(letter in scores for *_, scores in parsed.links)]
    links: defaultdict[int, list[Link]] = defaultdict(list)
    for source, target, word, scores in parsed.links:
        said = " ".join(filter(None, (word, parsed.words[target])))
        links[source].append(Link(target, said, tuple(scores.get(letter, 0.0) for letter in letters)))
    zeros = (0.0,) * len(letters)
    nodes = len(parsed.words)
    starts = _terminals(parsed, "start", {target for _, target, *_ in parsed.links}, file)
    ends = _terminals(parsed, "end", {source for source, *_ in parsed.links}, file)
    links[nodes] = [Link(node, parsed.words[node], zeros) for node in starts]
    for node in ends:
        links[node].append(Link(nodes + 1, "", zeros))
    names = tuple(STREAMS[letter] for letter in letters)
    return Lattice(tuple(tuple(links[node]) for node in range(nodes + 2)), nodes, nodes + 1, names)


def _terminals(parsed: _Parsed, name: str, led: set[int], file: str) -> list[int]:
    """The nodes that the header names, or those that nothing leads to (or from)."""
    if name in parsed.header:
        value = parsed.header[name]
        if not re.fullmatch("[0-9]{1,9}", value) or int(value) not in parsed.words:
            raise FormatError(f"{value!r}: no such node", file=file, field=name)
        return [int(value)]
    found = sorted(parsed.words.keys() - led)
    if not found:
        raise FormatError(
            f"no {name} node; expected one that nothing leads {'to' if name == 'start' else 'from'}",
            file=file,
        )
    return found

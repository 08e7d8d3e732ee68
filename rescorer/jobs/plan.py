"""Plan the shards of an archive: which parts of which input files each shard reads, and how they are read.

Files, folders and objects come in; a plan with the hash of every part goes out. Planning reads the input
once, in memory that does not grow with the files. The scores of networks depend on the batch in the last
digits of float32 (see the decision on batch invariance). With networks, shards therefore end only where
batches end, so that the output of all shards is exactly that of the undivided file. This module also draws
random parts of an archive, to forecast the cost of a run.
"""

from __future__ import annotations

import glob
import hashlib
import io
import json
import os
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.formats.inputs import Parts
from rescorer.formats.io.text_io import GZIP_MAGIC, max_line_bytes, open_named
from rescorer.formats.parquet import find_tables
from rescorer.jobs.files import cut_batches
from rescorer.jobs.store import PLAN, Store, is_count, is_sha256, read_file
from rescorer.storage import find_objects, is_url, measure_objects
from rescorer.types import NBestList

FORMAT, VERSION = "rescorer-shards", 1
MAX_SHARDS = 100_000
"""Largest number of shards, because each process reads the whole plan."""
MAX_PLAN_BYTES = 1 << 30
MAX_DIFFERENCES = 5
"""Largest number of differences that an error names."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """An input file, or a folder, if in the lists' format a folder is one file of lists."""

    name: str
    """The path or URL: as the user gave it, or below a folder that the user gave."""
    n_bytes: int
    is_lines: bool
    """Whether the file has one list per line, so that it can be divided."""
    header: str = ""
    """The first line of JSON lines, if it is a header, that is, declares the units of scores."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive bytes of an input file, or the whole file if it cannot be divided."""

    file: int
    """Index of the file in the plan."""
    start: int
    end: int
    first_line: int
    """Number of the first line, counted from 1."""
    lists: int | None
    """Number of lists, including those that cannot be read; None if it is not known without reading them."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A division of input files into shards, which one after another make up the whole input."""

    answers: Mapping[str, Any]
    """Everything on which the answers depend, apart from the lists: bundle, weights and options."""
    files: tuple[InputFile, ...]
    shards: tuple[tuple[Part, ...], ...]
    """The parts of each shard; a shard may be empty."""
    fingerprint: str = field(default="", compare=False)
    """SHA-256 of the file from which the plan was read. The record of each shard has the same value."""

    def count_lists(self, index: int) -> int | None:
        """Number of lists of a shard; None if it is unknown."""
        counts = [part.lists for part in self.shards[index]]
        return None if None in counts else sum(filter(None, counts))

    def encode(self) -> bytes:
        """The plan as JSON, with one shard per line."""
        head = {"format": FORMAT, "version": VERSION, "answers": self.answers}
        lines = [json.dumps(head, ensure_ascii=False)[:-1] + ', "files": [']
        lines.append(",\n".join(json.dumps(asdict(file), ensure_ascii=False) for file in self.files))
        lines.append('], "shards": [')
        lines.append(",\n".join(json.dumps([asdict(part) for part in shard]) for shard in self.shards))
        return ("\n".join(lines) + "\n]}\n").encode("utf-8", "surrogateescape")


def parse_plan(content: bytes, place: str) -> Plan:
    """Read a plan; raise FormatError if it is damaged or of another version."""
    try:
        data = json.loads(content.decode("utf-8", "surrogateescape"))
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise ValueError(f"expected format {FORMAT!r}, version {VERSION}")
        plan = Plan(
            data["answers"],
            tuple(InputFile(**file) for file in data["files"]),
            tuple(tuple(Part(**part) for part in shard) for shard in data["shards"]),
            hashlib.sha256(content).hexdigest(),
        )
        _check_plan(plan)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"is no plan that this version can read: {error}; make another plan in an empty folder"
        raise FormatError(message, file=place) from None
    return plan


def _check_plan(plan: Plan) -> None:
    """Raise ValueError if a value has the wrong type, or a part does not lie within its file."""
    if not isinstance(plan.answers, dict) or len(plan.shards) > MAX_SHARDS:
        raise ValueError(f"expected answers, and at most {MAX_SHARDS:,} shards")
    for file in plan.files:
        if not (isinstance(file.name, str) and isinstance(file.header, str) and is_count(file.n_bytes)):
            raise ValueError(f"{file.name!r} is not described as an input file is")
        if b"\0" in os.fsencode(file.name):  # which raises ValueError for halves of surrogate pairs
            raise ValueError(f"{file.name!r} is not the name of a file")
    for number, shard in enumerate(plan.shards):
        for part in shard:
            numbers = part.file, part.start, part.end, part.first_line, part.lists or 0
            if not (all(map(is_count, numbers)) and part.file < len(plan.files)):
                raise ValueError(f"shard {number} has a part of no input file")
            if not (part.start <= part.end <= plan.files[part.file].n_bytes and is_sha256(part.sha256)):
                raise ValueError(f"shard {number} has a part that ends after its file")


def read_plan(store: Store) -> Plan:
    """Read the plan of a store.

    Raises:
        ConfigError: there is no plan.
        FormatError: the plan cannot be read.
    """
    try:
        content = read_file(store, PLAN, MAX_PLAN_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        message = f"there is no {PLAN}; `rescorer rescore IN… -o FOLDER --shards N` makes one"
        raise ConfigError(f"{store.place}: {message}") from None
    return parse_plan(content, f"{store.place}/{PLAN}")


def check_answers(plan: Plan, answers: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError, naming the differences, if the models, weights or options differ from the plan's."""
    differences = sorted(_find_differences(plan.answers, json.loads(json.dumps(answers))))
    if not differences:
        return
    shown = [f"{name} was {before}, is {now}" for name, before, now in differences[:MAX_DIFFERENCES]]
    more = f"; {len(differences) - MAX_DIFFERENCES} more" if len(differences) > MAX_DIFFERENCES else ""
    raise ConfigError(
        f"{place} was planned otherwise: {'; '.join(shown)}{more}. Answers of one folder must not be mixed: "
        "restore what has changed, or plan into another folder"
    )


def check_files(plan: Plan, files: tuple[tuple[str, int], ...]) -> None:
    """Raise InputError if the names or sizes of the input files differ from those in the plan.

    Args:
        files: name and number of bytes of each file.
    """
    planned = {file.name: file.n_bytes for file in plan.files}
    for name, n_bytes in files:
        if name not in planned:
            raise InputError(f"{name}: this file is not in the plan, which has {len(planned):,} others")
        if n_bytes != planned[name]:
            raise InputError(
                f"{name}: changed since the plan: it had {planned[name]:,} bytes, and has {n_bytes:,}; "
                "restore it, or plan into another folder"
            )
    given = {name for name, _ in files}
    for name in planned:
        if name not in given:
            raise InputError(f"{name}: this file of the plan is missing; give all inputs that were planned")


def _find_differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the differences between nested objects: the name, such as ``options.merge``, and both values.

    An object that only one side has counts as one difference. A missing value is equal to null.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in before.keys() | now.keys():
            inner = f"{name}.{key}" if name else key
            yield from _find_differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield name, _show(before), _show(now)


def _show(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(value)
    return text[:12] + "…" if len(text) > 60 else text


LINE_FORMAT = "jsonl"
"""The format with one list per line: its files can be divided at any line."""
TABLE_FORMAT = "parquet"
"""The format of tables of lists; a folder may have several files, with one table each."""
BLOCK_BYTES = 1 << 20
MAX_NAMES = 1_000_000
"""Largest number of input files."""

Lists = Iterator[NBestList | InputError]


@dataclass(frozen=True, slots=True)
class ListSource:
    """Functions that read the lists of whole files or of parts. They can be pickled, for other processes.

    Args:
        find_parts: finds the files and folders of which an input consists, and their format.
        find_header: reads the header line of a file of JSON lines; an empty string if it has none.
        read_file: reads all lists of a file or folder.
        read_lines: reads some lines of a file. It gets a stream of these lines, the number of the first one
            in the file, and the header of the file.
    """

    find_parts: Callable[[str], Parts]
    find_header: Callable[[str], str]
    read_file: Callable[[str], Lists]
    read_lines: Callable[[BinaryIO, int, str], Lists]
    may_divide: bool = True
    """Whether files may be divided at all; False if lists depend on earlier lists."""

    def find_format(self, name: str) -> str:
        """The name of the format of a file or folder."""
        return self.find_parts(name).choice


def find_files(sources: Iterable[str], source: ListSource) -> list[str]:
    """Replace patterns and folders by the names of their files, in order.

    A folder that is one file of lists (see ``InputFile``) stays.

    Raises:
        ConfigError: an input is a pipe, an input occurs twice, or there are too many inputs.
        InputError: nothing matches an input.
    """
    names: list[str] = []
    for given in sources:
        if given == "-":
            raise ConfigError("a pipe cannot be divided into shards; write it to a file first")
        names += _expand(given, source)
        if len(names) > MAX_NAMES:
            raise ConfigError(f"more than {MAX_NAMES:,} input files; join them, or give fewer at a time")
    if twice := next((name for name, n in Counter(names).items() if n > 1), None):
        raise ConfigError(f"{twice}: this input is given twice")
    return names


def _expand(given: str, source: ListSource) -> list[str]:
    if is_url(given):
        try:
            return find_objects(given)
        except FileNotFoundError as error:
            raise FormatError(f"cannot be read: {error.strerror}", file=given) from None
    path = Path(given)
    if not path.exists():
        found = sorted(glob.glob(given, recursive=True)) if glob.has_magic(given) else []
        if not found:
            raise FormatError("cannot be read: No such file or directory", file=given)
        return [name for match in found for name in _expand(match, source)]
    if not path.is_dir():
        if not path.is_file():
            raise ConfigError(f"{given}: cannot be divided into shards, because it is no regular file")
        return [given]
    parts = source.find_parts(given)
    return find_tables(given) if parts.choice == TABLE_FORMAT else list(parts.paths)


def _measure_local(name: str) -> int:
    try:
        paths = _list_folder(name) if Path(name).is_dir() else [Path(name)]
        return sum(map(os.path.getsize, paths))
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=name) from None


def measure_all(names: Sequence[str]) -> list[int]:
    """The number of bytes of each file, object, or folder with all files below; raise FormatError."""
    urls = [name for name in names if is_url(name)]
    sizes = dict(zip(urls, measure_objects(urls), strict=True))
    return [sizes[name] if name in sizes else _measure_local(name) for name in names]


def _list_folder(name: str) -> list[Path]:
    return sorted(path for path in Path(name).rglob("*") if path.is_file())


def is_compressed(name: str) -> bool:
    """Whether a file is gzip data, which can be read only from the beginning."""
    with open_binary(name) as stream:
        return stream.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def hash_all(name: str) -> str:
    """SHA-256 of a file or object, or of the names and content of all files below a folder."""
    digest = hashlib.sha256()
    paths = _list_folder(name) if not is_url(name) and Path(name).is_dir() else [name]
    for path in paths:
        if len(paths) > 1:
            place = f"{Path(path).relative_to(name)}\0{os.path.getsize(path)}\0"
            digest.update(place.encode("utf-8", "surrogateescape"))
        with open_binary(str(path)) as stream:
            hashlib.file_digest(stream, lambda: digest)  # type: ignore[arg-type]
    return digest.hexdigest()


def hash_stream(stream: BinaryIO) -> str:
    """SHA-256 of a stream from its present position on."""
    return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


class RawLine(NamedTuple):
    """A line of a file, or a piece of a line that is longer than readers accept."""

    content: bytes
    ends: bool
    """Whether the line ends with this piece."""
    is_blank: bool
    """Whether the whole line is blank; known only with its last piece."""


def scan_lines(name: str, n_bytes: int) -> Iterator[RawLine]:
    """Yield the lines of the first ``n_bytes`` bytes of a file, in pieces if they are very long."""
    limit, number, is_continued = max_line_bytes(), 0, False
    with open_binary(name) as stream:
        while n_bytes and (raw := stream.readline(min(limit + 1, n_bytes))):
            n_bytes -= len(raw)
            number += not is_continued
            ends = raw.endswith(b"\n") or not n_bytes
            yield RawLine(raw, ends, ends and not is_continued and _is_blank(raw, number))
            is_continued = not ends


def _is_blank(raw: bytes, number: int) -> bool:
    """Whether a line is blank, so that readers skip it. They reject a line that is not valid UTF-8."""
    if len(raw) > 100 and raw[:100].strip():
        return False
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not (text.removeprefix("\ufeff") if number == 1 else text).strip()


class RangeReader(io.RawIOBase):
    """A part of a file as a stream, which hashes the bytes that are read from it."""

    def __init__(self, stream: BinaryIO, name: str, n_bytes: int) -> None:
        self.name = name  # for messages of readers
        self.digest = hashlib.sha256()
        self._stream, self._left = stream, n_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(block)
        self.digest.update(block)
        return block

    def hash_all(self) -> str:
        """Read what is left; return the SHA-256 of the whole part."""
        while self.read(BLOCK_BYTES):
            pass
        return self.digest.hexdigest()


@contextmanager
def open_part(file: InputFile, part: Part, source: ListSource) -> Iterator[Lists]:
    """Read the lists of a part.

    Raises:
        InputError: the part has changed since the plan. This is known only after all lists are read.
    """
    if not file.is_lines:
        yield source.read_file(file.name)
        found = hash_all(file.name)
    else:
        with open_binary(file.name) as stream:
            stream.seek(part.start)
            lines = RangeReader(stream, file.name, part.end - part.start)
            yield source.read_lines(lines, part.first_line, file.header)  # type: ignore[arg-type]
            found = lines.hash_all()
    if found != part.sha256:
        raise InputError(
            f"{file.name}: bytes {part.start:,} to {part.end:,} have changed since the plan, so nothing is "
            "committed; restore the file, or plan into another folder"
        )


def hash_part(file: InputFile, part: Part) -> str:
    """SHA-256 of the present content of a part."""
    if not file.is_lines:
        return hash_all(file.name)
    with open_binary(file.name) as stream:
        stream.seek(part.start)
        return RangeReader(stream, file.name, part.end - part.start).hash_all()


def open_binary(name: str) -> BinaryIO:
    """Open a file or object for reading; raise FormatError if this fails.

    A plan that others wrote may name anything: a device has no end, and opening a pipe waits for its writer.
    """
    if not is_url(name) and os.path.exists(name) and not os.path.isfile(name):
        raise FormatError("is no regular file", file=name)
    try:
        return open_named(name)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", file=name) from None


MIN_PARTS = 2
"""Smallest number of parts to draw, because a single part would give an estimate without an interval."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive bytes of a file of uncompressed JSON lines."""

    name: str
    start: int
    end: int


def draw_extract(
    names: Sequence[str], source: ListSource, max_bytes: int, seed: int
) -> tuple[int, Iterator[tuple[int, Lists]]]:
    """Draw parts of an archive, of about ``max_bytes`` bytes together, each with the same probability.

    Files of plain JSON lines are drawn in blocks, other files as a whole. Everything is read if the archive
    is not larger than ``max_bytes``, and also if it has files of both kinds, because the bytes of one kind
    say nothing about the other.

    Args:
        names: input files, from ``find_files``.

    Returns:
        The number of bytes of the whole archive; and, for each part in order, its bytes and its lists.
    """
    sizes = measure_all(names)
    n_bytes, generator = sum(sizes), random.Random(seed)
    kinds = {_find_kind(name, source) for name in names} if n_bytes > max_bytes else set()
    if len(kinds) != 1:
        chosen = list(range(len(names)))
    elif kinds == {LINE_FORMAT}:
        blocks = _draw_blocks(names, sizes, max_bytes, generator)
        find_header = lru_cache(1)(source.find_header)
        return n_bytes, (
            (block.end - block.start, read_block(block, source, find_header(block.name))) for block in blocks
        )
    else:
        n_files = max(MIN_PARTS, max_bytes * len(names) // n_bytes)
        chosen = sorted(generator.sample(range(len(names)), min(len(names), n_files)))
    return n_bytes, ((sizes[index], source.read_file(names[index])) for index in chosen)


def _find_kind(name: str, source: ListSource) -> str:
    kind = source.find_format(name)
    is_file = is_url(name) or os.path.isfile(name)
    return f"compressed {kind}" if is_file and is_compressed(name) else kind


def _draw_blocks(
    names: Sequence[str], sizes: Sequence[int], max_bytes: int, generator: random.Random
) -> Iterator[Block]:
    """Draw blocks of all files, in the order of the archive."""
    firsts = [0, *accumulate(-(-size // BLOCK_BYTES) for size in sizes)]  # numbers of the files' first blocks
    n_blocks = firsts[-1]
    n_chosen = min(n_blocks, max(MIN_PARTS, max_bytes // BLOCK_BYTES))
    for number in sorted(generator.sample(range(n_blocks), n_chosen)):
        index = bisect_right(firsts, number) - 1
        start = (number - firsts[index]) * BLOCK_BYTES
        yield Block(names[index], start, min(start + BLOCK_BYTES, sizes[index]))


def read_block(block: Block, source: ListSource, header: str) -> Lists:
    """Read the lists whose lines begin in a block. Each list thus belongs to exactly one block."""
    with open_binary(block.name) as stream:
        begin, end = (_find_line(stream, place) for place in (block.start, block.end))
        stream.seek(begin)
        label = f"{block.name}, lines counted from 0 at byte {begin}" if begin else block.name
        lines = RangeReader(stream, label, end - begin)
        yield from source.read_lines(lines, 0 if begin else 1, header)  # type: ignore[arg-type]


def _find_line(stream: BinaryIO, place: int) -> int:
    """Find where the first line begins at or after a byte. A line that is too long is cut at the limit."""
    if place:
        stream.seek(place - 1)
        stream.readline(max_line_bytes() + 1)
    return stream.tell() if place else 0


Unit = Literal["shards", "lists"]


@dataclass(frozen=True, slots=True)
class Division:
    """The rule by which the input is divided into shards.

    Args:
        n: number of shards, which then have about equally many bytes; or number of lists in each shard.
        unit: which of the two numbers ``n`` is.
        batch_words: size of a batch, if shards may end only where batches end; None if shards may end at any
            line.
    """

    n: int
    unit: Unit
    batch_words: int | None


@dataclass(slots=True)
class _Shards:
    """The finished shards, and the parts of the next shard."""

    division: Division
    total_bytes: int
    closed: list[tuple[Part, ...]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    n_bytes: int = 0
    """Number of bytes of all parts of all shards."""
    n_lists: int = 0
    """Number of lists in the next shard."""

    def is_full(self, n_bytes: int, n_lists: int | None) -> bool:
        """Whether the next shard is full after so many further bytes and lists are added."""
        if self.division.unit == "lists":
            return n_lists is None or self.n_lists + n_lists >= self.division.n
        goal = (len(self.closed) + 1) * self.total_bytes
        return (self.n_bytes + n_bytes) * self.division.n >= goal and len(self.closed) + 1 < self.division.n

    def add(self, part: Part) -> None:
        """Add a part, and close the shard if it is full."""
        full = self.is_full(part.end - part.start, part.lists)
        self.parts.append(part)
        self.n_bytes += part.end - part.start
        self.n_lists += part.lists or 0
        if full:
            self.close()
        if len(self.closed) > MAX_SHARDS:
            raise ConfigError(f"more than {MAX_SHARDS:,} shards; make them larger")

    def close(self) -> None:
        self.closed.append(tuple(self.parts))
        self.parts, self.n_lists = [], 0


def make_plan(
    names: list[str],
    source: ListSource,
    answers: Mapping[str, Any],
    division: Division,
    on_bytes: Callable[[int], object] = lambda n: None,
) -> Plan:
    """Read all input once, and divide it into shards.

    Args:
        names: input files, from ``find_files``.
        answers: everything on which the answers depend, apart from the lists.
        on_bytes: called with the number of bytes that were read since the last call.

    Raises:
        InputError: a file cannot be read, or changed while it was read.
        ConfigError: there are too many shards.
    """
    if division.unit == "shards" and division.n > MAX_SHARDS:
        raise ConfigError(f"--shards {division.n}: at most {MAX_SHARDS:,}")
    sizes = measure_all(names)
    shards = _Shards(division, sum(sizes))
    files = []
    for index, (name, n_bytes) in enumerate(zip(names, sizes, strict=True)):
        divisible = source.may_divide and source.find_format(name) == LINE_FORMAT and not is_compressed(name)
        if divisible:
            header = source.find_header(name)
            for part in _divide_lines(index, name, n_bytes, source, shards, header, on_bytes):
                shards.add(part)
            files.append(InputFile(name, n_bytes, True, header))
        else:
            files.append(InputFile(name, n_bytes, False))
            shards.add(Part(index, 0, n_bytes, 1, None, hash_all(name)))
            on_bytes(n_bytes)
        if measure_all([name]) != [n_bytes]:
            raise InputError(f"{name}: changed while it was read; plan when it is complete")
    if shards.parts or not shards.closed:
        shards.close()
    while division.unit == "shards" and len(shards.closed) < division.n:
        shards.close()
    return Plan(answers, tuple(files), tuple(shards.closed))


def _divide_lines(
    index: int,
    name: str,
    n_bytes: int,
    source: ListSource,
    shards: _Shards,
    header: str,
    on_bytes: Callable[[int], object],
) -> Iterator[Part]:
    """Yield the parts of a file, each of which ends where its shard is full, or at the end of the file."""
    words = shards.division.batch_words
    groups = repeat(1) if words is None else map(len, cut_batches(source.read_file(name), words))
    digest, start, end, first_line, line = hashlib.sha256(), 0, 0, 1, 1
    lists, until, is_header, is_full = 0, next(groups, 0), bool(header), False
    for raw in scan_lines(name, n_bytes):
        if is_full and not raw.is_blank:
            yield Part(index, start, end, first_line, lists, digest.hexdigest())
            digest, start, first_line, lists, is_full = hashlib.sha256(), end, line, 0, False
        digest.update(raw.content)
        end += len(raw.content)
        on_bytes(len(raw.content))
        line += raw.ends
        if not raw.ends or raw.is_blank:
            continue
        if is_header:
            is_header = False
            continue
        lists += 1
        until -= 1
        if until == 0:
            until = next(groups, 0)
            is_full = shards.is_full(end - start, lists)
    if end > start:
        yield Part(index, start, end, first_line, lists, digest.hexdigest())

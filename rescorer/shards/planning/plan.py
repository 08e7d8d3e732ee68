"""Describe a plan: the parts of the input that each shard reads, and all that its answers depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.shards.store import PLAN, Store, is_count, is_sha256, read_file

FORMAT, VERSION = "rescorer-shards", 1
MAX_SHARDS = 100_000
"""Largest number of shards; the plan is read as a whole by each process."""
MAX_PLAN_BYTES = 1 << 30
MAX_DIFFERENCES = 5
"""Largest number of differences that an error names."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file, or a folder that is one list file of its format."""

    name: str
    """The name that the user gave, or one below a folder that the user gave."""
    n_bytes: int
    is_lines: bool
    """Whether it has one list per line, so that it can be divided."""
    header: str = ""
    """Header line of JSON lines, which declares units, if there is one."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive bytes of an input file; all of it if it cannot be divided."""

    file: int
    """Index of the file in the plan."""
    start: int
    end: int
    first_line: int
    """1-based number of the first line."""
    lists: int | None
    """Number of lists, also of those that cannot be read; None if only reading it tells."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A division of input files into shards. Their order, one after another, is the order of the input."""

    answers: Mapping[str, Any]
    """All besides the lists that answers depend on: bundle, weights and options."""
    files: tuple[InputFile, ...]
    shards: tuple[tuple[Part, ...], ...]
    """The parts of each shard; a shard may be empty."""

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
    """Read a plan; raises FormatError if it is incomplete or of another version."""
    try:
        data = json.loads(content.decode("utf-8", "surrogateescape"))
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise ValueError(f"expected format {FORMAT!r}, version {VERSION}")
        plan = Plan(
            data["answers"],
            tuple(InputFile(**file) for file in data["files"]),
            tuple(tuple(Part(**part) for part in shard) for shard in data["shards"]),
        )
        _check_plan(plan)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        message = f"is no plan that this version can read: {error}; make another plan in an empty folder"
        raise FormatError(message, file=place) from None
    return plan


def _check_plan(plan: Plan) -> None:
    """Raise ValueError if a value has the wrong type, or lies outside of what it describes."""
    if not isinstance(plan.answers, dict) or len(plan.shards) > MAX_SHARDS:
        raise ValueError(f"expected answers, and at most {MAX_SHARDS:,} shards")
    for file in plan.files:
        if not (isinstance(file.name, str) and isinstance(file.header, str) and is_count(file.n_bytes)):
            raise ValueError(f"{file.name!r} is not described as an input file is")
    for number, shard in enumerate(plan.shards):
        for part in shard:
            numbers = part.file, part.start, part.end, part.first_line, part.lists or 0
            if not (all(map(is_count, numbers)) and part.file < len(plan.files)):
                raise ValueError(f"shard {number} has a part of no input file")
            if not (part.start <= part.end <= plan.files[part.file].n_bytes and is_sha256(part.sha256)):
                raise ValueError(f"shard {number} has a part that ends after its file")


def read_plan(store: Store) -> tuple[Plan, str]:
    """Read the plan of a store; return it and its fingerprint, which records repeat.

    Raises:
        ConfigError: there is none.
        FormatError: it cannot be read.
    """
    try:
        content = read_file(store, PLAN, MAX_PLAN_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        message = f"there is no {PLAN}; `rescorer rescore IN… -o FOLDER --shards N` makes one"
        raise ConfigError(f"{store.place}: {message}") from None
    return parse_plan(content, f"{store.place}/{PLAN}"), hashlib.sha256(content).hexdigest()


def check_answers(plan: Plan, answers: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError, naming the differences, if answers now depend on something else than planned."""
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
    """Raise InputError, naming the file, if the names or sizes of the input files are not those planned."""
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
    """Yield what differs in nested objects: its dotted name, and both values as they are shown.

    What one side lacks is one difference, however much it holds; null is as good as nothing.
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

"""Compare rescored lists with the archive, list by list and in order, without the code of shards."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

ID = re.compile(rb'\{"id": ?("(?:[^"\\]|\\.)*")')
IN_HYPOTHESIS, OUT_HYPOTHESIS = re.compile(rb'\{"text":'), re.compile(rb'"original_rank":')
"""What each hypothesis has once; inside of a text, its quotes would be escaped."""
MAX_FAULTS = 5


@dataclass(slots=True)
class Checked:
    """What was found in the output."""

    lists: int = 0
    hypotheses: int = 0
    sha256: str = ""
    faults: list[str] = field(default_factory=list)


def read_lines(paths: Sequence[Path]) -> Iterator[bytes]:
    """Yield the lines of files, one file after another."""
    for path in paths:
        with open(path, "rb") as stream:
            yield from stream


def check_output(output: Iterable[bytes], archive: Sequence[Path]) -> Checked:
    """Check that the lines of the output are the lists of the archive, each once, complete and in order."""
    checked, digest, seen = Checked(), hashlib.sha256(), set[bytes]()
    for number, (found, given) in enumerate(zip_longest(output, read_lines(archive)), start=1):
        if found is not None:
            digest.update(found)
            checked.lists += 1
            checked.hypotheses += len(OUT_HYPOTHESIS.findall(found))
        fault = _compare(found, given)
        if given is not None:
            if (list_id := _find_id(given)) in seen:
                fault = fault or f"the archive has {list_id!r} twice"
            seen.add(list_id)
        if fault and len(checked.faults) < MAX_FAULTS:
            checked.faults.append(f"list {number:,}: {fault}")
    checked.sha256 = digest.hexdigest()
    return checked


def _compare(found: bytes | None, given: bytes | None) -> str:
    """What differs between a list of the output and one of the archive; empty if nothing does."""
    if found is None or given is None:
        return "missing in the output" if found is None else "not in the archive"
    if _find_id(found) != _find_id(given):
        return f"expected {_find_id(given)!r}, found {_find_id(found)!r}"
    n_found, n_given = len(OUT_HYPOTHESIS.findall(found)), len(IN_HYPOTHESIS.findall(given))
    return "" if n_found == n_given else f"expected {n_given} hypotheses, found {n_found}"


def _find_id(line: bytes) -> bytes:
    match = ID.match(line)
    return match[1] if match else b""

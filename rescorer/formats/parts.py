"""Find the files and folders that one input consists of: the jobs of an experiment, or a folder of files.

    decode/logdir:  output.1/1best_recog/text  output.2/1best_recog/text  …  keys.1.scp  asr.1.log
    exp/nbest:      nbest.1/words_text  nbest.2/words_text  …
    lists:          a.jsonl  b.jsonl.gz

Recognisers run in jobs, each of which leaves a folder of lists with its number in the name. A folder of
these, or of files in one format, is read as one input, in the order of the numbers. The ids of all its lists
differ: the second list with an id is an error that names both places.
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList, pluralise
from rescorer.formats.catalogue import FORMATS
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.utterance_folder import name_entries, natural_key
from rescorer.formats.registry import detect, find_matches, match_path
from rescorer.storage.objects import find_objects, is_object
from rescorer.storage.urls import is_url
from rescorer.types import NBestList

NUMBER = re.compile(r"[0-9]{1,9}")
"""A number in the name of a job's folder."""
MAX_GAP = 10
"""Largest ratio of the range of the numbers of jobs to the number of jobs, if they count the jobs."""
MAX_DEPTH = 3
"""Levels of folders below an input in which lists are looked for."""
MAX_LOOKED_INTO = 100
"""Number of folders in which an error message looks for lists to suggest."""
MAX_SUGGESTED = 4

Lists = Iterator[NBestList | InputError]


@dataclass(frozen=True, slots=True)
class Parts:
    """What an input consists of."""

    choice: str
    """The format of all parts, with its options: the one that was given, or the one that was found."""
    evidence: str
    """Why the format was chosen; empty if it was given."""
    paths: tuple[str, ...]
    """The files, or the folders that are one list file of their format, in the order of their numbers."""
    missing: tuple[str, ...] = ()
    """Names of jobs that the numbers of the others lead to expect, but that are not there."""

    def describe(self) -> str:
        """The format, why it was chosen, and the number of parts if there are several."""
        several = f", in {len(self.paths):,} parts" if len(self.paths) > 1 else ""
        return f"{self.choice} ({self.evidence}){several}"


def find_parts(source: str, choice: str = "") -> Parts:
    """Find the parts of an input; a file, a pipe, or a folder that is one list file, is its only part.

    Args:
        source: A file, a folder, ``-``, or the URL of an object or prefix.
        choice: The format of the lists, ``NAME[:OPTION=VALUE,…]``; if empty, it is detected.

    Raises:
        FormatError: If the format cannot be detected, or a folder has lists of several kinds or none; the
            error says what is in it.
    """
    if is_url(source):
        return _find_objects(source, choice)
    if not Path(source).is_dir():
        return Parts(choice, "", (source,)) if choice else Parts(*detect(source), (source,))
    return _look_into(Path(source), choice, MAX_DEPTH)


def read_parts(inputs: Sequence[Parts], read: Callable[[str, str], Lists]) -> Lists:
    """Yield the lists of all parts of one or several inputs.

    If there are several parts, a part that cannot be read is an error in place of its lists, and so is each
    list whose id has occurred in an earlier part.

    Args:
        read: Reads a part in a format, given both.
    """
    parts = [(path, parts.choice) for parts in inputs for path in parts.paths]
    if len(parts) == 1:
        return read(*parts[0])
    return _read_several(parts, read)


def _read_several(parts: Sequence[tuple[str, str]], read: Callable[[str, str], Lists]) -> Lists:
    places: dict[str, int] = {}
    for number, (path, choice) in enumerate(parts):
        try:
            for item in read(path, choice):
                first = places.setdefault(item.id, number) if isinstance(item, NBestList) else number
                if first == number:
                    yield item
                    continue
                message = f"duplicate id; the list with this id in {parts[first][0]} is kept"
                if FORMATS[choice.partition(":")[0]].is_numbered:
                    message += ". The format has no ids, so each file counts from 1: join the files first"
                yield InvalidList(message, list_id=item.id, file=path)  # type: ignore[union-attr]
        except FormatError as error:
            yield error


def expand_globs(sources: Iterable[str]) -> list[str]:
    """Replace the names of inputs that do not exist by those that they match as patterns, in natural order.

    Raises:
        ConfigError: If an input is given twice.
    """
    names: list[str] = []
    for given in sources:
        is_pattern = given != "-" and not is_url(given) and not Path(given).exists() and glob.has_magic(given)
        found = sorted(glob.glob(given, recursive=True), key=natural_key) if is_pattern else []
        names += found or [given]
    if twice := next((name for name in names if names.count(name) > 1), None) if len(names) > 1 else None:
        raise ConfigError(f"{twice}: this input is given twice")
    return names


def _find_objects(url: str, choice: str) -> Parts:
    name, evidence = (choice, "") if choice else detect(url)
    if FORMATS[name.partition(":")[0]].takes_folders or is_object(url):
        return Parts(name, evidence, (url,))
    try:
        return Parts(name, evidence, tuple(sorted(find_objects(url), key=natural_key)))
    except FileNotFoundError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=url) from None


def _look_into(folder: Path, choice: str, depth: int) -> Parts:
    """Find the parts of a folder: itself, the folders of jobs in it, or its files."""
    name = choice.partition(":")[0]
    names, own = _match_folder(folder, name)
    if len(own) > 1:
        detect(folder)  # raises the error that names the candidates
    itself = [Parts(choice or name_, evidence, (str(folder),)) for name_, evidence in own.items()]
    if names:
        return itself[0]
    jobs = _find_jobs(folder, choice, depth) if depth else []
    if len(jobs) + len(itself) > 1:
        kinds = [_name_parts(part.paths) for part in jobs] + ["files of its own"] * len(itself)
        message = f"has lists in {' and in '.join(kinds)}: which are meant? {_advise(jobs)}"
        raise FormatError(message, file=str(folder))
    if itself or jobs:
        return (itself or jobs)[0]
    if name and FORMATS[name].takes_folders:
        return Parts(choice, "", (str(folder),))  # its reader says what it expects
    return _find_files(folder, choice, depth)


def _match_folder(folder: Path, name: str) -> tuple[bool, dict[str, str]]:
    """Find the formats of which a folder is one list file.

    Returns:
        Whether the names in the folder tell, rather than the beginning of a file; and evidence by format.
    """
    formats = {
        other: format_ for other, format_ in FORMATS.items() if format_.takes_folders and name in ("", other)
    }
    sample, matches = match_path(folder, formats)
    by_names = find_matches(Sample(sample.path, sample.names, ()), formats)
    return bool(by_names), by_names or matches


def _find_jobs(folder: Path, choice: str, depth: int) -> list[Parts]:
    """Find the groups of folders that differ in a number, and have lists."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for entry in _list_entries(folder):
        if NUMBER.search(entry.name) and entry.is_dir():
            groups[NUMBER.sub("0", entry.name)].append(entry)
    found = (_join_jobs(jobs, choice, depth) for jobs in groups.values())
    return [parts for parts in found if parts is not None]


def _join_jobs(jobs: Sequence[Path], choice: str, depth: int) -> Parts | None:
    """Join the parts of all jobs; None if none of them has lists.

    A job without lists among others becomes an error when it is read.
    """
    found = {job: _try_to_find(job, choice, depth - 1) for job in jobs}
    kinds = {parts.choice: job.name for job, parts in found.items() if parts is not None}
    if not kinds:
        return None
    if len(kinds) > 1:
        shown = ", ".join(f"{name} has {kind}" for kind, name in kinds.items())
        message = f"its folders have lists in different formats: {shown}"
        raise FormatError(message, file=str(jobs[0].parent))
    paths: list[str] = []
    for job, parts in found.items():
        paths += parts.paths if parts else [str(job)]
    evidence = next(parts.evidence for parts in found.values() if parts is not None)
    return Parts(next(iter(kinds)), evidence, tuple(paths), _find_missing([job.name for job in jobs]))


def _find_missing(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are missing in a sequence of names that differ in one number."""
    numbers = [[int(number) for number in NUMBER.findall(name)] for name in names]
    varying = [place for place, found in enumerate(zip(*numbers, strict=True)) if len(set(found)) > 1]
    if len(varying) != 1:
        return ()
    present = {row[varying[0]] for row in numbers}
    first, last = min(present), max(present)
    if last - first > MAX_GAP * len(names):
        return ()  # dates, for instance
    match = list(NUMBER.finditer(names[0]))[varying[0]]
    width = len(match[0]) if match[0].startswith("0") else 0
    before, after = names[0][: match.start()], names[0][match.end() :]
    expected = range(1 if first == 2 else first, last)
    return tuple(f"{before}{number:0{width}}{after}" for number in expected if number not in present)


def _try_to_find(folder: Path, choice: str, depth: int) -> Parts | None:
    """Find the parts of a folder; None if it has no lists in the format."""
    try:
        parts = _look_into(folder, choice, depth)
    except FormatError:
        return None
    name = choice.partition(":")[0]
    is_itself = name and parts.paths == (str(folder),)
    if is_itself and not match_path(folder, {name: FORMATS[name]})[1]:
        return None
    return parts


def _find_files(folder: Path, choice: str, depth: int) -> Parts:
    """Take the files of a folder, which must all be of one format."""
    kinds: dict[str, list[Path]] = defaultdict(list)
    evidence: dict[str, str] = {}
    others, empty = [], []
    for entry in _list_entries(folder):
        if not entry.is_file():
            others.append(entry)
        elif choice:
            kinds[choice].append(entry)
        elif not entry.stat().st_size:
            empty.append(entry)
        else:
            try:
                kind, found = detect(entry)
            except FormatError:
                others.append(entry)
            else:
                kinds[kind].append(entry)
                evidence.setdefault(kind, found)
    if len(kinds) != 1 or others:
        raise FormatError(_explain(folder, kinds, depth), file=str(folder))
    ((kind, files),) = kinds.items()
    paths = sorted([*files, *empty], key=lambda path: natural_key(path.name))
    return Parts(kind, evidence.get(kind, ""), tuple(map(str, paths)))


def _explain(folder: Path, kinds: dict[str, list[Path]], depth: int) -> str:
    """Say what is in a folder that cannot be read as one input, and what to give instead."""
    content = name_entries(folder)
    if not content:
        return "is an empty folder"
    inner = list(islice(_find_inner(folder, depth), MAX_SUGGESTED + 1))
    shown = ", ".join(map(str, inner[:MAX_SUGGESTED])) + ", …" * (len(inner) > MAX_SUGGESTED)
    advice = f"there are lists in {shown}: give {'that' if len(inner) == 1 else 'one of these'}"
    if kinds:
        lists = "; ".join(
            f"{pluralise(len(files), 'file')} of the format {kind} ({_name_parts(files)})"
            for kind, files in kinds.items()
        )
        advice = advice if inner else "give the files that belong together"
        return f"is no folder of files in one format: it has {content}, of which lists are: {lists}; {advice}"
    advice = advice if inner else "give the folder or file that has lists, or choose a format with --format"
    return f"no known format matches: the folder has {content}; {advice}"


def _find_inner(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the outermost folders of lists below a folder."""
    folders = [entry for entry in _list_entries(folder) if entry.is_dir()] if depth else []
    for entry in folders[:MAX_LOOKED_INTO]:
        if _try_to_find(entry, "", depth - 1):
            yield entry
        else:
            yield from _find_inner(entry, depth - 1)


def _advise(jobs: list[Parts]) -> str:
    return f"Give those folders, such as {jobs[0].paths[0]}" if jobs else ""


def _name_parts(paths: Sequence[str | Path]) -> str:
    """Name the first and the last of some paths."""
    names = [Path(path).name for path in paths]
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


def _list_entries(folder: Path) -> list[Path]:
    """The entries of a folder that are not hidden, in natural order of their names."""
    entries = (entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return sorted(entries, key=lambda entry: natural_key(entry.name))

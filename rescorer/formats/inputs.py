"""Find the files that one input consists of, and give its lists their references.

    decode/logdir:  output.1/1best_recog/text  output.2/1best_recog/text  …  keys.1.scp  asr.1.log
    exp/nbest:      nbest.1/words_text  nbest.2/words_text  …
    lists:          a.jsonl  b.jsonl.gz

Recognisers run in several jobs. Each job leaves a folder of lists, with the number of the job in its name. A
folder of such folders, or of files in one format, is read as one input, in the order of the numbers. Its
files and folders are its *parts*. All lists of an input must have different ids: the second list with an id
is an error that names both places.

References belong to lists by id, or are the lines of a NeMo manifest, which have no ids:

    {"audio_filepath": "calls/u1.wav", "duration": 2.5, "text": "the sea was calm"}

If the ids of the lists are the numbers 1, 2, …, as in formats without ids, line N of a manifest belongs to
list N. Otherwise a line belongs to the list whose id is the name of its audio file, with or without folder
and suffix. A note says which rule was applied. If neither fits, that is an error.
"""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList, pluralise
from rescorer.formats.delimited import read_lists as read_table
from rescorer.formats.io.folders import (
    Lists,
    Sample,
    list_entries,
    list_objects,
    name_entries,
    natural_key,
    read_sample,
)
from rescorer.formats.io.json_io import describe_type, parse_object
from rescorer.formats.io.text_io import read_lines_strict, source_name
from rescorer.formats.nemo import AUDIO_KEY, ID_KEY, REFERENCE_KEY, find_id
from rescorer.formats.nist import read_references
from rescorer.formats.plain_text import Reading, classify
from rescorer.formats.registry import FORMATS, detect, find_matches, is_pipe, is_plain_text, match_path
from rescorer.formats.table_layout import TableOptions, find_layout, has_header
from rescorer.storage import is_object, is_url
from rescorer.types import NBestList

NUMBER = re.compile(r"[0-9]{1,9}")
"""Matches a number in the name of a job's folder."""
MAX_GAP = 10
"""If the numbers of jobs span more than this many times their count, they may be dates instead, and no job is
reported as missing."""
MAX_DEPTH = 3
"""Number of levels of folders, below an input, that are searched for lists."""
MAX_LOOKED_INTO = 100
"""In how many folders lists are looked for, so that an error can suggest these."""
MAX_SUGGESTED = 4


@dataclass(frozen=True, slots=True)
class Parts:
    """The files or folders that an input consists of."""

    choice: str
    """The format of all parts, as the user gave it, with its options, or as it was detected."""
    evidence: str
    """The evidence for the detected format; empty if the user gave the format."""
    paths: tuple[str, ...]
    """The parts, in the order of the numbers in their names: files, or folders if the format is a folder."""
    missing: tuple[str, ...] = ()
    """Names of missing jobs, whose numbers lie between those of the jobs that exist."""

    def describe(self) -> str:
        """Describe the format, the evidence for it, and the number of parts if there are several."""
        several = f", in {len(self.paths):,} parts" if len(self.paths) > 1 else ""
        return f"{self.choice} ({self.evidence}){several}"


def find_parts(source: str, choice: str = "") -> Parts:
    """Find the parts of an input. A file, a pipe, or a folder in a folder format is a single part.

    Args:
        source: a file, a folder, ``-``, or the URL of an object or prefix.
        choice: the format of the lists, ``NAME[:OPTION=VALUE,…]``; if empty, it is detected.

    Raises:
        FormatError: the format cannot be detected, or a folder has lists of several kinds or none; the
            error says what is in the folder.
    """
    if is_url(source):
        return _find_objects(source, choice)
    if not Path(source).is_dir():
        return Parts(choice, "", (source,)) if choice else Parts(*detect(source), (source,))
    return _look_into(Path(source), choice, MAX_DEPTH)


def read_parts(inputs: Sequence[Parts], read: Callable[[str, str], Lists]) -> Lists:
    """Yield the lists of all parts of one or several inputs.

    If there are several parts, a part that cannot be read yields an error, and so does each list whose id has
    occurred in an earlier part.

    Args:
        read: reads a part, given its path and its format.
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
    """Replace each input that does not exist, such as ``nbest.*``, by the names that match it as a pattern.

    Raises:
        ConfigError: an input is given twice.
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
    return Parts(name, evidence, tuple(sorted(list_objects(url), key=natural_key)))


def _look_into(folder: Path, choice: str, depth: int) -> Parts:
    """Find the parts of a folder: the folder itself, the folders of jobs in it, or the files in it."""
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
        advice = f"Give those folders, such as {jobs[0].paths[0]}" if jobs else ""
        message = f"has lists in {' and in '.join(kinds)}: which are meant? {advice}"
        raise FormatError(message, file=str(folder))
    if itself or jobs:
        return (itself or jobs)[0]
    if name and FORMATS[name].takes_folders:
        return Parts(choice, "", (str(folder),))  # its reader says what it expects
    return _find_files(folder, choice, depth)


def _match_folder(folder: Path, name: str) -> tuple[bool, dict[str, str]]:
    """Find the folder formats that a folder matches.

    Args:
        name: the only format to try; empty for all.

    Returns:
        Whether the names in the folder are evidence without the content of a file, and the evidence for each
        format.
    """
    formats = {
        other: format_ for other, format_ in FORMATS.items() if format_.takes_folders and name in ("", other)
    }
    sample, matches = match_path(folder, formats)
    by_names = find_matches(Sample(sample.path, sample.names, ()), formats)
    return bool(by_names), by_names or matches


def _find_jobs(folder: Path, choice: str, depth: int) -> list[Parts]:
    """Find the folders of jobs: groups of folders whose names differ only in numbers, and that have lists."""
    groups: dict[str, list[Path]] = defaultdict(list)
    for entry in list_entries(folder, natural_key):
        if NUMBER.search(entry.name) and entry.is_dir():
            groups[NUMBER.sub("0", entry.name)].append(entry)
    found = (_join_jobs(jobs, choice, depth) for jobs in groups.values())
    return [parts for parts in found if parts is not None]


def _join_jobs(jobs: Sequence[Path], choice: str, depth: int) -> Parts | None:
    """Join the parts of all jobs to one input; return None if no job has lists.

    If only some of the jobs have no lists, each of these causes an error when it is read.
    """
    found = {job: _try_to_find(job, choice, depth - 1) for job in jobs}
    kinds = {parts.choice: job.name for job, parts in found.items() if parts is not None}
    if not kinds:
        return None
    if len(kinds) > 1:
        shown = ", ".join(f"{name} has {kind}" for kind, name in kinds.items())
        raise FormatError(f"its folders have lists in different formats: {shown}", file=str(jobs[0].parent))
    paths: list[str] = []
    for job, parts in found.items():
        paths += parts.paths if parts else [str(job)]
    evidence = next(parts.evidence for parts in found.values() if parts is not None)
    return Parts(next(iter(kinds)), evidence, tuple(paths), _find_missing([job.name for job in jobs]))


def _find_missing(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are missing in a series of names, which differ in one number."""
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
    """Find the parts of a folder. Return None if the folder has no lists in the chosen format."""
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
    """Return the files of a folder as parts; all must have the same format."""
    kinds: dict[str, list[Path]] = defaultdict(list)
    evidence: dict[str, str] = {}
    others, empty = [], []
    for entry in list_entries(folder, natural_key):
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
    """Say what is in a folder that cannot be read as one input, and which path to give instead."""
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
    folders = [entry for entry in list_entries(folder, natural_key) if entry.is_dir()] if depth else []
    for entry in folders[:MAX_LOOKED_INTO]:
        if _try_to_find(entry, "", depth - 1):
            yield entry
        else:
            yield from _find_inner(entry, depth - 1)


def _name_parts(paths: Sequence[str | Path]) -> str:
    """Name the first and the last of some paths."""
    names = [Path(path).name for path in paths]
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"


N_PEEKED = 100
"""Number of lists whose ids decide how the lines of a manifest are matched to lists."""
MAX_EXAMPLES = 3
MAX_UNMATCHED = 1000
"""Number of lists without a reference whose ids are compared with those of unused references."""
PLACE = re.compile(r"(^|\.)\w+\[[0-9]+\]")
"""Matches an id that is the path of a list in a JSON document, such as ``results[0].alternatives``."""


class Line(NamedTuple):
    """A line of a manifest."""

    number: int
    """1-based number of the line; blank lines do not count."""
    text: str
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class References:
    """The references in a file: either texts by id, or the lines of a manifest."""

    file: str
    by_id: Mapping[str, str]
    manifest: Sequence[Line] = ()
    edit: Callable[[str], str] = str
    """The change that has been applied to all texts, such as joining pieces of words."""

    def texts(self) -> Iterator[str]:
        """Yield the texts of all references."""
        yield from self.by_id.values()
        yield from (line.text for line in self.manifest)

    def edited(self, edit: Callable[[str], str]) -> References:
        """Return the references with a change applied to all texts."""
        by_id = {key: edit(text) for key, text in self.by_id.items()}
        manifest = [line._replace(text=edit(line.text)) for line in self.manifest]
        return replace(self, by_id=by_id, manifest=manifest, edit=edit)

    def match(
        self, lists: Lists, file: str, note: Callable[[str], object], *, numbered: bool = False
    ) -> Lists:
        """Yield the lists with their references. A list that has none here keeps the reference that it has.

        Args:
            file: name of the file with the lists, for messages.
            note: called with a line that says how a manifest is matched, and with a line about references
                that match no list.
            numbered: whether the ids of the lists are positions in the file, because their format has no ids.

        Raises:
            FormatError: the lines of a manifest fit the lists neither by order nor by name; or they are
                matched by order, and there are more or fewer lines than lists.
        """
        if not self.manifest:
            return _match_by_id(lists, self.by_id, file, note)
        if not numbered and not self.manifest[0].record:  # sentences, that are ids and words for these lists
            by_id = {key: self.edit(text) for key, text in read_references(self.file).items()}
            return _match_by_id(lists, by_id, file, note)
        return self._match_manifest(lists, file, note, numbered)

    def _match_manifest(
        self, lists: Lists, file: str, note: Callable[[str], object], numbered: bool
    ) -> Lists:
        first = list(islice(lists, N_PEEKED))
        ids = [item.id for item in first if isinstance(item, NBestList)]
        if not ids:
            yield from first
            return
        by_order = {str(line.number): line.text for line in self.manifest}
        in_order = numbered or (_are_numbers(ids) and int(ids[-1]) <= len(self.manifest))
        name, by_name = self._choose_names(ids)
        differ = any(by_name[key] != by_order.get(key) for key in ids if key in by_name)
        if in_order and differ and not numbered:
            message = (
                f"the lists of {file} have numbers as ids, which may be lines here or names of audio files, "
                "with other texts: give references by id, as lines `id<TAB>text`"
            )
            raise FormatError(message, file=self.file)
        if not in_order and not name:
            raise FormatError(self._explain(ids, file), file=self.file)
        lists = chain(first, lists)
        if in_order and (numbered or not name):
            note(f"{self.file}: references by order: line N belongs to list N of {file}")
            yield from self._match_by_order(lists, by_order, file)
        else:
            note(f"{self.file}: references by {name}, such as {ids[0]!r}")
            yield from _match_by_id(lists, by_name, file, note)

    def _match_by_order(self, lists: Lists, by_order: Mapping[str, str], file: str) -> Lists:
        """Yield the lists with the references of the lines whose numbers are their ids.

        Raises:
            FormatError: there are more or fewer lines than lists.
        """
        count, n_blank = 0, 0
        for item in lists:
            count += 1  # of lists and errors, which are positions too
            if isinstance(item, NBestList):
                item = replace(item, reference=by_order.get(item.id, item.reference))
            is_empty = isinstance(item, NBestList) and [text.text for text in item.hypotheses] == [""]
            if count > len(self.manifest) and is_empty:
                n_blank += 1  # at the end of a file of sentences
            else:
                yield item
        lines = list(self.manifest)
        while len(lines) > count and not lines[-1].text and not lines[-1].record:
            lines.pop()
        if count - n_blank != len(lines):
            found = f"{pluralise(len(self.manifest), 'line')}, but {file} has {pluralise(count, 'list')}"
            message = f"{found}, and they are matched by order: one of the two is incomplete or of other data"
            raise FormatError(f"has {message}, or the beam size is wrong", file=self.file)

    def _choose_names(self, ids: Sequence[str]) -> tuple[str, Mapping[str, str]]:
        """Choose the kind of ``NAMES`` that most ids of lists match; return it, and the texts by name."""
        best, best_texts = "", dict[str, str]()
        most = 0
        for name, find in NAMES.items():
            keys = [find(line) for line in self.manifest]
            texts = {key: line.text for key, line in zip(keys, self.manifest, strict=True) if key}
            found = [key for key in ids if key in texts]
            if len(found) > most:
                self._check_unique(name, keys)
                best, best_texts, most = name, texts, len(found)
        return best, best_texts

    def _check_unique(self, name: str, keys: Sequence[str]) -> None:
        by_key: dict[str, Line] = {}
        for key, line in zip(keys, self.manifest, strict=True):
            other = by_key.setdefault(key, line)
            if key and other.text != line.text:
                lines = f"lines {other.number} and {line.number}"
                message = f"{lines} have different texts and one name, {key!r} ({name})"
                raise FormatError(f"{message}: give the lists the whole {AUDIO_KEY} as id", file=self.file)

    def _explain(self, ids: Sequence[str], file: str) -> str:
        names = {find(self.manifest[0]): None for find in NAMES.values()}
        shown = " or ".join(repr(name) for name in names if name) or "none"
        return (
            f"its lines fit the lists of {file} neither by order nor by name: the first line has the names "
            f"{shown}, the first list the id {ids[0]!r}; expected ids that are names of audio files, or 1, 2"
        )


NAMES: Mapping[str, Callable[[Line], str]] = {
    "id": lambda line: str(line.record.get(ID_KEY) or ""),
    "names of audio files": lambda line: find_id(line.record, 0) if _audio(line) else "",
    "names of audio files with suffix": lambda line: PurePosixPath(_audio(line)).name,
    AUDIO_KEY: lambda line: str(line.record.get(AUDIO_KEY) or ""),
    "names of audio files without offset": lambda line: PurePosixPath(_audio(line)).stem,
}
"""Functions that find a name in a manifest's line which may be the id of its list, by the kind of name. They
return "" if the line has no such name."""


def _audio(line: Line) -> str:
    return str(line.record.get(AUDIO_KEY) or "").replace("\\", "/")


def open_references(source: str) -> References:
    """Read references: a table, a manifest, plain sentences, or a format of ``nist.read_references``.

    Raises:
        FormatError: as for ``read_references``; or a line of a manifest has no text.
    """
    if is_pipe(source):  # can be read only once
        return References(source_name(source), read_references(source))
    if (table := _read_table(source)) is not None:
        return References(source_name(source), table)
    manifest = _read_manifest(source) or _read_sentences(source)
    return References(source_name(source), {} if manifest else read_references(source), manifest)


def _read_table(source: str) -> dict[str, str] | None:
    """Read the references in a table, by id; return None if the file is not a table.

    A file counts as a table if it has a header, or a name that ends in .csv. The references are in the column
    of references, or else in the column of texts.
    """
    if not Path(source).is_file():
        return None
    lines = read_sample(source).lines
    if not has_header(lines) and not source.removesuffix(".gz").lower().endswith(".csv"):
        return None
    file, texts = source_name(source), dict[str, str]()
    try:
        layout = find_layout(list(enumerate(lines, start=1)), TableOptions(), file)
        rows = list(read_table(source))
    except FormatError as error:
        message = f"{error.message.partition('; say which')[0]}; call the column of references 'reference'"
        raise FormatError(message, file=file) from None
    has_references = layout is not None and "reference" in layout.columns
    for item in rows:
        if isinstance(item, InputError):
            raise item
        found = {item.reference} if has_references else {text.text for text in item.hypotheses}
        if len(found) > 1:
            raise FormatError(f"several texts with the id {item.id!r}, and no column 'reference'", file=file)
        if (text := found.pop()) is not None:
            texts[item.id] = text
    return texts


def _read_sentences(source: str) -> list[Line]:
    """Read the lines of plain text; return an empty list if they begin with ids, or it is not plain text."""
    if not is_plain_text(source):
        return []
    texts = [text.strip() for _, text in read_lines_strict(source)]
    if classify(texts) is Reading.IDS:
        return []
    return [Line(number, text, {}) for number, text in enumerate(texts, start=1)]


def _read_manifest(source: str) -> list[Line]:
    """Read the lines of a manifest; return an empty list if the file is not a manifest."""
    file = source_name(source)
    lines = ((line, text) for line, text in read_lines_strict(source) if text.strip())
    found: list[Line] = []
    for line, text in lines:
        if not found and not (text.lstrip().startswith("{") and f'"{AUDIO_KEY}"' in text):
            return []
        record = parse_object(text, file, line)
        if not found and (AUDIO_KEY not in record or "reference" in record):
            return []
        value = record.get(REFERENCE_KEY)
        if not isinstance(value, str):
            message = f"expected a string, got {describe_type(value)}"
            raise FormatError(message, file=file, line=line, field=REFERENCE_KEY)
        kept = {key: record[key] for key in (ID_KEY, AUDIO_KEY, "offset") if key in record}
        found.append(Line(len(found) + 1, value, kept))
    return found


def _are_numbers(ids: Sequence[str]) -> bool:
    """Whether ids are positions in a file: rising numbers, of which some may be missing (rejected lists)."""
    numbers = [int(key) for key in ids if re.fullmatch("[1-9][0-9]{0,8}", key)]
    return len(numbers) == len(ids) and numbers == sorted(set(numbers))


def _match_by_id(
    lists: Lists, references: Mapping[str, str], file: str, note: Callable[[str], object]
) -> Lists:
    """Yield the lists with the references of their ids.

    If some references match no list, a note says so. If there are also lists without a reference, the note
    shows an id of both kinds, because the ids may only be written differently.
    """
    unused = dict.fromkeys(references)
    unmatched: list[str] = []
    for item in lists:
        if isinstance(item, NBestList) and item.id in references:
            item = replace(item, reference=references[item.id])
        elif isinstance(item, NBestList) and item.reference is None and len(unmatched) < MAX_UNMATCHED:
            unmatched.append(item.id)
        unused.pop(item.id if isinstance(item, NBestList) else getattr(item, "list_id", ""), None)
        yield item
    if unused:
        examples = ", ".join(map(repr, islice(unused, MAX_EXAMPLES)))
        more = ", …" if len(unused) > MAX_EXAMPLES else ""
        message = f"{file}: no lists for {len(unused):,} of {len(references):,} references: {examples}{more}"
        if unmatched:
            message += f"; there is a list {unmatched[0]!r} without a reference: are ids written alike?"
            message += explain_difference(unmatched, list(unused))
        note(message)


def explain_difference(lists: Sequence[str], references: Sequence[str]) -> str:
    """Say how ids of lists differ from ids of references, and what to do about it; "" if this is unclear."""
    for difference, change in CHANGES.items():
        known = {change(key): key for key in reversed(references)}
        match = next((key for key in lists if change(key) and change(key) in known), None)
        if match is not None:
            return f" {match!r} and {known[change(match)]!r} {difference}: write the same ids in both files"
    if PLACE.search(lists[0]):
        return (
            " These ids are places in the file: name each document after its utterance and give the folder, "
            "or write the ids that `rescorer convert` shows in the references"
        )
    if _are_numbers(lists):
        return (
            " These ids count the lists, because the file has none: if the references are in the same order, "
            "number them from 1 as well"
        )
    return ""


CHANGES: Mapping[str, Callable[[str], str]] = {
    "differ in case": str.casefold,
    "differ in folder or suffix": lambda key: PurePosixPath(key.replace("\\", "/")).stem.casefold(),
    "differ in punctuation": lambda key: re.sub(r"[\W_]+", "", key.casefold()),
    "differ after the first dot": lambda key: key.partition(".")[0],
}
"""Changes that may make the ids of lists and references equal, by the difference that each change removes."""

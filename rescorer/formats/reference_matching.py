"""Give lists their references: by id, or by the lines of a NeMo manifest.

    {"audio_filepath": "calls/u1.wav", "duration": 2.5, "text": "the sea was calm"}

Lines of a manifest have no ids. They belong to the lists in their order if the ids of the lists are their
numbers, 1, 2, …, as in formats without ids; otherwise to those that have the name of the audio file as their
id, with or without folder and suffix. A note says which, and what fits neither is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from rescorer.errors import FormatError, InputError, pluralise
from rescorer.formats.io.json_records import describe_type, parse_object
from rescorer.formats.io.sniff import read_sample
from rescorer.formats.io.text_io import read_lines_strict, source_name
from rescorer.formats.nbest.manifest import AUDIO_KEY, ID_KEY, REFERENCE_KEY, find_id
from rescorer.formats.nbest.plain_text import Reading, classify
from rescorer.formats.nist.references import read_references
from rescorer.formats.registry import is_pipe, is_plain_text
from rescorer.formats.tables.delimited import read_lists as read_table
from rescorer.formats.tables.layout import TableOptions, find_layout, has_header
from rescorer.types import NBestList

N_PEEKED = 100
"""Number of lists whose ids decide how the lines of a manifest are matched."""
MAX_EXAMPLES = 3
MAX_UNMATCHED = 1000
"""Number of ids without a reference among which one like the id of a reference is looked for."""
PLACE = re.compile(r"(^|\.)\w+\[[0-9]+\]")
"""An id that is the place of a list in a JSON document: ``results[0].alternatives``."""

Lists = Iterator[NBestList | InputError]


class Line(NamedTuple):
    """A line of a manifest."""

    number: int
    """1-based, without blank lines."""
    text: str
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class References:
    """References of a file, by id, or as the lines of a manifest."""

    file: str
    by_id: Mapping[str, str]
    manifest: Sequence[Line] = ()
    edit: Callable[[str], str] = str
    """Changes a text, such as joining its pieces; those above are changed already."""

    def texts(self) -> Iterator[str]:
        """All references."""
        yield from self.by_id.values()
        yield from (line.text for line in self.manifest)

    def edited(self, edit: Callable[[str], str]) -> References:
        """The references with changed texts."""
        by_id = {key: edit(text) for key, text in self.by_id.items()}
        manifest = [line._replace(text=edit(line.text)) for line in self.manifest]
        return replace(self, by_id=by_id, manifest=manifest, edit=edit)

    def match(
        self, lists: Lists, file: str, note: Callable[[str], object], *, numbered: bool = False
    ) -> Lists:
        """Yield the lists with their references; one without keeps its own, if it has one.

        Args:
            file: Name of the lists, for messages.
            note: Called with a line about how a manifest is matched, and with one about references that no
                list has.
            numbered: The format of the lists has no ids: they are positions in the file.

        Raises:
            FormatError: A manifest fits neither by order nor by name, or its lines are not as many as lists
                that are matched by order.
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
        """Yield the lists with the references of their numbers; raise FormatError if lines are left."""
        count, n_blank = 0, 0
        for item in lists:
            count += 1  # of lists and errors, which are positions too
            if isinstance(item, NBestList):
                item = replace(item, reference=by_order.get(item.id, item.reference))
            if count > len(self.manifest) and _is_empty(item):
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
        """Choose what of the lines are ids of the lists; return its name and the texts by id."""
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


def _is_empty(item: NBestList | InputError) -> bool:
    return isinstance(item, NBestList) and [hypothesis.text for hypothesis in item.hypotheses] == [""]


NAMES: Mapping[str, Callable[[Line], str]] = {
    "id": lambda line: str(line.record.get(ID_KEY) or ""),
    "names of audio files": lambda line: find_id(line.record, 0) if _audio(line) else "",
    "names of audio files with suffix": lambda line: PurePosixPath(_audio(line)).name,
    AUDIO_KEY: lambda line: str(line.record.get(AUDIO_KEY) or ""),
    "names of audio files without offset": lambda line: PurePosixPath(_audio(line)).stem,
}
"""What may be the id of a list, of a line; an empty string if the line has no such name."""


def _audio(line: Line) -> str:
    return str(line.record.get(AUDIO_KEY) or "").replace("\\", "/")


def open_references(source: str) -> References:
    """Read references: a table, a manifest, plain sentences, or one of the formats of ``nist.references``.

    Raises:
        FormatError: As for ``read_references``; or a line of a manifest has no text.
    """
    if is_pipe(source):  # can be read only once
        return References(source_name(source), read_references(source))
    if (table := _read_table(source)) is not None:
        return References(source_name(source), table)
    manifest = _read_manifest(source) or _read_sentences(source)
    return References(source_name(source), {} if manifest else read_references(source), manifest)


def _read_table(source: str) -> dict[str, str] | None:
    """Read a table with a header, or with a name that ends in .csv; None if the file is something else.

    The texts are those of the column of references, or of the column of texts if there is none.
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
            message = f"several texts with the id {item.id!r}, and no column 'reference'"
            raise FormatError(message, file=file)
        if (text := found.pop()) is not None:
            texts[item.id] = text
    return texts


def _read_sentences(source: str) -> list[Line]:
    """Read the lines of plain text; none if they begin with ids, or the file is something else."""
    if not is_plain_text(source):
        return []
    texts = [text.strip() for _, text in read_lines_strict(source)]
    if classify(texts) is Reading.IDS:
        return []
    return [Line(number, text, {}) for number, text in enumerate(texts, start=1)]


def _read_manifest(source: str) -> list[Line]:
    """Read the lines of a manifest; none if the file is something else."""
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
    """Whether ids are positions in a file, of which some may be missing since lists were rejected."""
    numbers = [int(key) for key in ids if re.fullmatch("[1-9][0-9]{0,8}", key)]
    return len(numbers) == len(ids) and numbers == sorted(set(numbers))


def _match_by_id(
    lists: Lists, references: Mapping[str, str], file: str, note: Callable[[str], object]
) -> Lists:
    """Yield the lists with the references of their ids.

    Where lists and references are left over, the ids may be written differently: one of each side is shown.
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
    """Say how the ids of lists differ from those of references, and what to do; empty if it is not known."""
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
"""Changes that may make ids of two files equal, by what the ids then differ in."""

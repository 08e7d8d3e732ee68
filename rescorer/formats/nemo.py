"""Read and write NeMo's beams and manifests, and write the chosen texts into existing manifests.

A file of beams has lines ``text<TAB>score`` without ids, and as many lines per utterance as the beam size
says. The scores are natural log-probabilities. The id of a list is its position in the file, counted from 1.
If no beam size is given, it is found from the order of the scores and from the words that hypotheses share.

A manifest is a list of recordings in JSON lines. It may also contain the beams, or the text, that a model has
recognised:

    {"audio_filepath": "calls/u1.wav", "duration": 2.5, "text": "the sea was calm",
     "pred_text": "the see was calm", "beams": [["the see was calm", -3.1], ["the sea was calm", -3.4]]}

``examples/asr/transcribe_speech.py`` and ``speech_to_text_eval.py`` write one line per recording, or per part
of one: ``text`` is its reference, ``pred_text`` the best hypothesis, and ``beams`` has all hypotheses with
their natural log-probabilities if the decoder returns them. A line without beams has ``pred_text`` as its
only hypothesis.

Lines have no ids. The id of a list is the name of its audio file without folder and suffix, such as ``u1``.
If the recording begins later in the audio file, its ``offset`` follows: ``u1-12.5``.

NeMo's tools compare ``pred_text`` with ``text``. Therefore ``--to manifest:manifest=test.json`` copies the
lines of the manifest that was recognised, and adds to each line the first hypothesis of its list as
``pred_text``. The id of a list is the name of the line's audio file or, in formats without ids, the number of
the line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice, pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from rescorer.errors import ConfigError, FormatError, InvalidList, pluralise
from rescorer.formats.common import (
    DUPLICATE_ID,
    NATURAL,
    STREAM,
    ListWriter,
    Row,
    build_list,
    check_reserved,
    check_text,
    check_type,
    collect,
    format_texts,
    line_writer,
    parse_number,
    stream_from_nats,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.json_io import describe_type, is_number, parse_object, without
from rescorer.formats.io.text_io import Source, read_lines, read_lines_strict, source_name
from rescorer.formats.json_documents import read_records
from rescorer.types import NBestList


def read_nemo(source: Source, *, beam: int = 0) -> Lists:
    """Yield one list per ``beam`` lines, with the stream ``first_pass``. Blank lines count.

    If the last list has too few lines, an error is yielded, because the beam size is wrong or the file is
    truncated.

    Raises:
        ConfigError: no beam size is given, and ``find_beam`` finds none.
        FormatError: the source cannot be opened.
    """
    beam = beam or find_beam(source)
    if beam < 1:
        raise ConfigError(
            "NeMo files do not state the beam size, and the order of the scores does not tell it; give "
            "beam=N, as in --format nemo:beam=10"
        )
    return _read_lists(source, beam)


MAX_SAMPLED_LINES = 100_000
"""Number of lines from which the beam size is found."""
MIN_RISES = 10
"""Number of lists that must begin with a higher score than the list before ends with."""
MIN_SIMILAR = 0.8
"""Share of the hypotheses that must have half of their words in common with the first one of their list."""


def find_beam(source: Source) -> int:
    """Find the beam size of a file whose lists are ordered from best to worst; 0 if it is not certain.

    Where a score is higher than the one before, a list begins. So the beam size divides the positions of all
    these lines. Their greatest common divisor is the beam size, unless some lists never begin so; then the
    groups of lines have texts of several utterances, which share few words.
    """
    if not isinstance(source, (str, Path)) or not Path(source).is_file():
        return 0  # what can be read only once
    lines = [str(text).rpartition("\t") for _, text in islice(read_lines(source), MAX_SAMPLED_LINES + 1)]
    is_whole = len(lines) <= MAX_SAMPLED_LINES
    scores = [score for *_, text in lines if isinstance(score := parse_number(text), float)]
    if len(scores) < len(lines):
        return 0  # which is reported with its line if a beam size is given
    rises = [i for i, (last, score) in enumerate(pairwise(scores), start=1) if score > last]
    beam = math.gcd(*rises)
    if len(rises) < MIN_RISES or beam < 2 or (is_whole and len(lines) % beam):
        return 0
    words = [{*text.split()} for text, _, _ in lines]
    pairs = [(words[i], words[i - i % beam]) for i in range(len(words)) if i % beam]
    similar = sum(2 * len(one & first) >= max(len(one), len(first)) for one, first in pairs)
    return beam if similar >= MIN_SIMILAR * len(pairs) else 0


def _read_lists(source: Source, beam: int) -> Lists:
    file = source_name(source)
    lines = read_lines(source)
    for position in count(1):
        beam_lines, problem = collect(islice(lines, beam), lambda line: len(str(line[1])))
        if not beam_lines:
            return
        if position == 1 and has_id_column([text for _, text in beam_lines if isinstance(text, str)]):
            found = "its lines have three columns, not text<TAB>score"
            message = f"{found}; give --format table if these are id, text, score"
            raise FormatError(message, file=file, line=beam_lines[0][0])
        error = next((text for _, text in beam_lines if isinstance(text, FormatError)), None)
        if problem:
            error = FormatError(f"list {position} {problem}", file=file, line=beam_lines[0][0])
        if error is not None:
            yield error
        elif len(beam_lines) < beam:
            left = pluralise(len(beam_lines), "line is", "lines are")
            message = f"{left} left for a beam of {beam}; is the beam size right?"
            yield InvalidList(message, list_id=str(position), file=file, line=beam_lines[0][0])
        else:
            rows = [_parse_row(text, line) for line, text in beam_lines if isinstance(text, str)]
            yield build_list(str(position), rows, {}, file)


def _parse_row(text: str, line: int) -> Row:
    words, _, score = text.rpartition("\t")  # a line without a tab is rejected because of its score
    return Row(words, {STREAM: parse_number(score)}, {}, line)


def nemo_writer(target: str | Path, *, beam: int = 0) -> ListWriter:
    """Write lists of exactly ``beam`` hypotheses, with scores from the stream ``first_pass``.

    Raises:
        ConfigError: no beam size is given.
    """
    if beam < 1:
        raise ConfigError("all lists of a NeMo file have the same size; give beam=N")

    def format_lines(nbest: NBestList) -> Iterator[str]:
        if len(nbest.hypotheses) != beam:
            expected = pluralise(beam, "hypothesis", "hypotheses")
            message = f"expected {expected} as in every list, got {len(nbest.hypotheses)}"
            raise InvalidList(message, list_id=nbest.id, field="hypotheses")
        format_texts(nbest)  # rejects line breaks; the text is written with its original spaces
        for hypothesis, score in zip(nbest.hypotheses, stream_from_nats(nbest, STREAM, NATURAL), strict=True):
            yield f"{hypothesis.text}\t{score!r}"

    return line_writer(target, format_lines, once=False)


def looks_like_nemo(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    if not sample.lines or has_id_column(sample.lines):
        return ""
    scores = [line.rpartition("\t")[2] if "\t" in line else "" for line in sample.lines]
    is_scored = all(isinstance(parse_number(score), float) for score in scores)
    return "lines of text, a tab and a number" if is_scored else ""


def has_id_column(lines: Sequence[str]) -> bool:
    """Whether all lines have a third column, such as an id, besides text and score; few texts have tabs."""
    return bool(lines) and all(line.count("\t") > 1 for line in lines)


FORMAT = "manifest"
"""Name of the format."""
AUDIO_KEY = "audio_filepath"
REFERENCE_KEY = "text"
BEAMS_KEY = "beams"
PREDICTION_KEY = "pred_text"
GROUP_KEY = "speaker"
ID_KEY = "id"
"""Key of an explicit id. The writer adds it to a line if the name of the audio file is not the list's id."""
RESERVED_KEYS = (REFERENCE_KEY, BEAMS_KEY, PREDICTION_KEY, GROUP_KEY, ID_KEY)
"""Keys of a line that do not become fields of its list."""


def find_id(record: Mapping[str, Any], number: int) -> str:
    """Return the id of a manifest's line: its field ``id``, else the name of its audio file, else its number.

    >>> find_id({"audio_filepath": "calls/u1.wav", "offset": 12.5}, 3)
    'u1-12.5'

    Args:
        number: 1-based number of the line.
    """
    own, audio, offset = (record.get(key) for key in (ID_KEY, AUDIO_KEY, "offset"))
    if isinstance(own, str) and own:
        return own
    if not isinstance(audio, str):
        return str(number)
    stem = PurePosixPath(audio.replace("\\", "/")).stem
    return (f"{stem}-{offset}" if is_number(offset) and offset else stem) or str(number)


def read_manifest(source: Source) -> Lists:
    """Yield one list per JSON object, with the stream ``first_pass`` if the object's beams have scores."""
    file, seen = source_name(source), set[str]()

    def parse_record(record: Any, position: int, line: int | None) -> NBestList | InvalidList:
        number = line or position
        if not isinstance(record, dict):
            raise InvalidList(f"expected a JSON object, got {describe_type(record)}", list_id=str(number))
        list_id = find_id(record, number)
        if list_id in seen:
            raise InvalidList(DUPLICATE_ID, list_id=list_id)
        seen.add(list_id)
        return _parse_list(record, list_id, file, line)

    return read_records(source, parse_record, prefers_lines=True)


def _parse_list(record: dict[str, Any], list_id: str, file: str, line: int | None) -> NBestList | InvalidList:
    keys = (REFERENCE_KEY, PREDICTION_KEY, GROUP_KEY)
    reference, prediction, group = (check_text(record.get(key), list_id, key) for key in keys)
    beams = record.get(BEAMS_KEY)
    if beams is None:
        if prediction is None:
            message = f"missing, and so is {PREDICTION_KEY}: the manifest has not been through a recogniser"
            raise InvalidList(message, list_id=list_id, field=BEAMS_KEY)
        beams = [[prediction]]
    beams = check_type(beams, list, list_id, BEAMS_KEY)
    rows = [_parse_beam(beam, list_id, index, line) for index, beam in enumerate(beams)]
    fields = without(record, RESERVED_KEYS)
    return build_list(list_id, rows, {}, file, reference=reference, group=group or "", fields=fields)


def _parse_beam(beam: Any, list_id: str, index: int, line: int | None) -> Row:
    """Parse a pair of text and score, or a text without a score."""
    pair = beam if isinstance(beam, list) else [beam]
    if not 1 <= len(pair) <= 2 or not isinstance(pair[0], str):
        message = f"expected a pair of text and score, got {describe_type(beam)}"
        raise InvalidList(message, list_id=list_id, hypothesis=index, field=f"{BEAMS_KEY}[{index}]")
    return Row(pair[0], {STREAM: pair[1]} if len(pair) == 2 else {}, {}, line)


def manifest_writer(target: str | Path) -> ListWriter:
    """Write one line per list, with all hypotheses as ``beams`` and the first one as ``pred_text``.

    A line has an ``id`` only if the name of its audio file is not the id of the list.
    """

    def format_lines(nbest: NBestList) -> Iterator[str]:
        check_reserved(nbest, nbest.fields, RESERVED_KEYS)
        named = {} if find_id(nbest.fields, 0) == nbest.id else {ID_KEY: nbest.id}
        texts = {REFERENCE_KEY: nbest.reference, GROUP_KEY: nbest.group or None}
        known = {key: text for key, text in texts.items() if text is not None}
        best = {PREDICTION_KEY: nbest.hypotheses[0].text, BEAMS_KEY: _make_beams(nbest)}
        yield json.dumps({**named, **nbest.fields, **known, **best}, ensure_ascii=False)

    return line_writer(target, format_lines, once=False)


def _make_beams(nbest: NBestList) -> list[list[str | float]]:
    """Return each hypothesis as a beam: ``[text, score]``, or ``[text]`` if the list has no scores."""
    texts = [hypothesis.text for hypothesis in nbest.hypotheses]
    scores = [nbest.streams[STREAM]] if STREAM in nbest.streams else []
    return list(map(list, zip(texts, *scores, strict=True)))


def looks_like_manifest(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    for record in sample.documents:
        if isinstance(record, dict) and record.keys() & {AUDIO_KEY, PREDICTION_KEY}:
            key = next((key for key in (BEAMS_KEY, PREDICTION_KEY) if key in record), "")
            return f"a manifest of NeMo, with {key!r}" if key else ""
    return ""


BY_ORDER = "order"
"""Value of the option ``by`` for lists whose ids are numbers of lines."""


def filled_manifest_writer(target: str | Path, *, manifest: str = "", by: str = "") -> ListWriter:
    """For each list, write its line of a manifest; without a manifest, write as ``manifest_writer`` does.

    The first hypothesis becomes ``pred_text`` of the line. All of them become ``beams``, if there are
    several. The writer raises InvalidList for a list that has no line in the manifest.

    Args:
        manifest: the manifest that was recognised.
        by: ``order`` if the ids of lists are numbers of lines, ``name`` if they are names of audio files. If
            it is empty, the id of the first list decides.

    Raises:
        FormatError: the target cannot be written, or the manifest cannot be read.
    """
    if not manifest:
        return manifest_writer(target)
    lines = _ManifestLines(manifest, by)
    return line_writer(target, lambda nbest: [json.dumps(lines.fill(nbest), ensure_ascii=False)], once=False)


def list_names(record: Mapping[str, Any]) -> dict[str, None]:
    """Return the ids that the list for a manifest's line may have, in order of preference."""
    own, audio = record.get(ID_KEY), record.get(AUDIO_KEY)
    names = [own] if isinstance(own, str) else []
    if isinstance(audio, str):
        path = PurePosixPath(audio.replace("\\", "/"))
        names += [find_id(record, 0), path.name, str(path), audio]
    return dict.fromkeys(filter(None, names))


class _ManifestLines:
    """The lines of a manifest, each of which can be filled with the hypotheses of its list, once.

    Raises:
        FormatError: the file cannot be read, or has a line that is not an object.
    """

    def __init__(self, file: str, by: str) -> None:
        self._file = file
        lines = ((line, text) for line, text in read_lines_strict(file) if text.strip())
        self._records = [parse_object(text, file, line) for line, text in lines]
        self._numbers = {str(number): number - 1 for number in range(1, len(self._records) + 1)}
        self._names: dict[str, int | None] = {}
        """Index of the line that a name belongs to; None if several lines have the name."""
        for index, record in enumerate(self._records):
            for name in list_names(record):
                self._names[name] = index if self._names.get(name, index) == index else None
        self._by_number = by == BY_ORDER if by else None
        self._written: set[int] = set()

    def fill(self, nbest: NBestList) -> dict[str, Any]:
        """Return a list's line with the list's hypotheses; raise InvalidList if there is no line, or it is
        written already."""
        index = self._find(nbest.id)
        if index in self._written:
            raise InvalidList("already written; expected each line once", list_id=nbest.id, field="id")
        self._written.add(index)
        kept = {key: value for key, value in self._records[index].items() if key != BEAMS_KEY}
        beams = {BEAMS_KEY: _make_beams(nbest)} if len(nbest.hypotheses) > 1 else {}
        return {**kept, PREDICTION_KEY: nbest.hypotheses[0].text, **beams}

    def _find(self, list_id: str) -> int:
        number, name = self._numbers.get(list_id), self._names.get(list_id)
        if self._by_number is None and None not in (number, name) and number != name:
            message = (
                f"could be line {list_id} of {self._file} or an audio file there; add by=order or by=name"
            )
            raise InvalidList(message, list_id=list_id, field="id")
        by_number = name is None if self._by_number is None else self._by_number
        index = number if by_number else name
        if index is None:
            several = "several lines" if list_id in self._names else "no line"
            kind = "number" if by_number and self._by_number is not None else "name or number"
            raise InvalidList(f"{several} of {self._file} with this {kind}", list_id=list_id, field="id")
        self._by_number = by_number
        return index

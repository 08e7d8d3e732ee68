"""Owns the project's JSON lines: one n-best list a line, read and written, with its optional header.

    {"format": "rescorer-nbest", "version": 1, "streams": {"acoustic": {"base": "10", "sign": "cost"}}}
    {"id": "u1", "hypotheses": [{"text": "a b", "scores": {"acoustic": 12.3}}], "reference": "a b"}

Fields that mean nothing here are kept and handed back. A flat file of other names is read through a
``FieldMap``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import Write, named, placed
from rescorer.formats.field_map import FieldMap
from rescorer.formats.io.json_records import json_kind, parse_object
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.score_units import NATURAL, Units, stream_to_nats
from rescorer.score_combination import weights_to_dict
from rescorer.types import Hypothesis, NBestList, RescoredHypothesis, RescoredList

FORMAT = "rescorer-nbest"
VERSION = 1
SCORE_DECIMALS = 6
"""Of scores written; a hundred times finer than the 1e-4 that ranking distinguishes."""
SHOWN_FIELDS = 8
"""Of a record that lacks the one looked for."""
OWN_FIELDS = FieldMap()
NULL = b"null"


def read_lists(
    source: Source, names: FieldMap = OWN_FIELDS, group_of: Callable[[str], str] | None = None
) -> Iterator[NBestList | InputError]:
    """Yields each line's list, or what is wrong with it; a bad line does not stop the good ones.

    Args:
        source: file name, ``-`` for standard input, or a binary stream; plain or gzip.
        names: the file's own names of fields.
        group_of: group (speaker) of an id, for lists that do not say theirs.

    Raises:
        FormatError: the source cannot be opened, or its header is not understood (the numbers after it
            could mean anything).
    """
    file = source_name(source)
    declared: Mapping[str, Units] = {}
    first = True
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield text
        elif text.strip():
            try:
                record = parse_object(text, file, line)
            except FormatError as fault:
                yield fault
            else:
                if first and "format" in record and names.hypotheses not in record:
                    declared = _header(record, names, file, line)
                else:
                    yield _list_or_error(record, names, declared, group_of, file, line)
        else:
            continue
        first = False


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Writes a list a line; a name that ends in ``.gz`` is compressed, ``-`` is standard output."""
    with open_output(target) as stream:
        yield lambda nbest: print(nbest_line(nbest), file=stream)


def looks_like(sample: Sample) -> str:
    """What says that a file is of this format; empty where nothing does."""
    record = sample.record
    if record.get("format") == FORMAT:
        return f"a header line with the format {FORMAT!r}"
    if isinstance(record.get("hypotheses"), list):
        return 'a JSON object a line, with "hypotheses"'
    named = sample.path.name.removesuffix(".gz").endswith(".jsonl")
    return "a file name that ends in .jsonl" if named and not sample.is_folder else ""


def group_by_pattern(pattern: str) -> Callable[[str], str]:
    r"""Finds a list's group in its id: the part that the pattern's only group matches, such as ``^(\d+)-``.

    An id that does not match belongs to no group (the empty string).

    Raises:
        ConfigError: the pattern is no regular expression with exactly one group.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as fault:
        raise ConfigError(f"{pattern!r} is no regular expression: {fault}") from None
    if compiled.groups != 1:
        raise ConfigError(f"{pattern!r} has {compiled.groups} groups; expected exactly one")

    def group_of(list_id: str) -> str:
        match = compiled.search(list_id)
        return (match[1] or "") if match else ""

    return group_of


def _header(record: dict[str, Any], names: FieldMap, file: str, line: int) -> dict[str, Units]:
    """Units by stream that the header declares."""

    def fault(message: str, field: str = "") -> FormatError:
        return FormatError(message, file=file, line=line, field=field)

    if record["format"] != FORMAT:
        raise fault(f"{record['format']!r} is not known; expected {FORMAT!r}", "format")
    if record.get("version") != VERSION or isinstance(record["version"], bool):
        raise fault(f"{record.get('version')!r} is not known; expected {VERSION}", "version")
    unknown = sorted(set(record) - {"format", "version", "streams"})
    if unknown:
        raise fault(f"unknown header keys {unknown}; known are format, version, streams")
    streams = record.get("streams", {})
    if not isinstance(streams, dict):
        raise fault(f"expected an object, not {json_kind(streams)}", "streams")
    declared = {}
    for name, units in streams.items():
        field = f'streams["{name}"]'
        if not isinstance(units, dict) or set(units) - {"base", "sign"}:
            raise fault('expected an object with "base" and "sign" and nothing else', field)
        if name in names.streams:
            raise fault("declared by the header and by the options too", field)
        try:
            declared[name] = Units(**units)
        except ValueError as wrong:
            raise fault(str(wrong), field) from None
    return declared


def _list_or_error(
    record: dict[str, Any],
    names: FieldMap,
    declared: Mapping[str, Units],
    group_of: Callable[[str], str] | None,
    file: str,
    line: int,
) -> NBestList | InvalidList:
    try:
        return _list(record, names, declared, group_of, line)
    except InvalidList as fault:
        return placed(fault, file, line)


def _list(
    record: dict[str, Any],
    names: FieldMap,
    declared: Mapping[str, Units],
    group_of: Callable[[str], str] | None,
    line: int,
) -> NBestList:
    """Takes the known fields out of ``record``; what is left is the client's."""
    list_id = _text(_id(record.pop(names.id, None)), names.id, "", required=True) if names.id else str(line)
    if names.hypotheses not in record:
        there = ", ".join([*record][:SHOWN_FIELDS]) or "nothing else"
        message = f"no such field; expected it, or --map hypotheses=FIELD, where there is {there}"
        raise InvalidList(message, list_id=list_id, field=names.hypotheses)
    items = record.pop(names.hypotheses)
    if not isinstance(items, list) or not items:
        raise InvalidList(
            f"expected a non-empty array, not {json_kind(items)}", list_id=list_id, field=names.hypotheses
        )
    hypotheses, raw = [], []
    for index, item in enumerate(items):
        hypothesis, scores = _hypothesis(item, names, list_id, index)
        hypotheses.append(hypothesis)
        raw.append(scores)
    group = _text(record.pop(names.group, None), names.group, list_id)
    if not group and group_of is not None:
        group = group_of(list_id)
    return NBestList(
        id=list_id,
        hypotheses=tuple(hypotheses),
        streams=_streams(raw, names, declared, list_id),
        context=_text(record.pop(names.context, None), names.context, list_id) or "",
        reference=_text(record.pop(names.reference, None), names.reference, list_id),
        group=group or "",
        fields=record,
    )


def _hypothesis(item: Any, names: FieldMap, list_id: str, index: int) -> tuple[Hypothesis, dict[str, Any]]:
    """A hypothesis and its raw scores by stream name."""

    def fault(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=list_id, hypothesis=index, field=field)

    if isinstance(item, str):
        return Hypothesis(item), {}
    if not isinstance(item, dict):
        raise fault(f"expected an object or a string, not {json_kind(item)}", names.hypotheses)
    text = item.pop(names.text, None)
    if not isinstance(text, str):
        raise fault(f"expected a string, not {json_kind(text)}", names.text)
    scores = item.pop(names.scores, None) if names.scores else None
    if scores is None:
        scores = {}
    if not isinstance(scores, dict):
        raise fault(f"expected an object, not {json_kind(scores)}", names.scores)
    if not names.streams:
        return Hypothesis(text, item), scores
    mapped = {}
    for name, stream in names.streams.items():
        place = item if stream.field in item else scores
        mapped[name] = place.pop(stream.field, None)
    twice = sorted(mapped.keys() & scores.keys())
    if twice:
        raise fault("has a score of its own, and one by the options too", f'{names.scores}["{twice[0]}"]')
    return Hypothesis(text, item), scores | mapped


def _streams(
    raw: list[dict[str, Any]], names: FieldMap, declared: Mapping[str, Units], list_id: str
) -> dict[str, tuple[float, ...]]:
    """Converts the streams that at least one hypothesis has a value for."""
    streams = {}
    for name in named(raw):
        mapped = names.streams.get(name)
        values = stream_to_nats(
            name,
            [scores.get(name) for scores in raw],
            mapped.units if mapped else declared.get(name, NATURAL),
            list_id=list_id,
            field=mapped.field if mapped else f'{names.scores}["{name}"]',
        )
        if values is not None:
            streams[name] = values
    return streams


def _id(value: Any) -> Any:
    """Many files number their lists; a number is as good a name as any."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _text(value: Any, field: str, list_id: str, required: bool = False) -> Any:
    """``value`` where it is a string, or None where it may be missing."""
    if value is None and not required:
        return None
    if not isinstance(value, str) or (required and not value):
        expected = "a non-empty string" if required else "a string"
        raise InvalidList(f"expected {expected}, not {json_kind(value)}", list_id=list_id, field=field)
    return value


def nbest_line(nbest: NBestList) -> str:
    """One line without its end; scores are natural-log log-probabilities, exact."""
    hypotheses = []
    for index, hypothesis in enumerate(nbest.hypotheses):
        own: dict[str, Any] = {"text": hypothesis.text}
        if nbest.streams:
            own["scores"] = {name: values[index] for name, values in nbest.streams.items()}
        hypotheses.append(_with_client_fields(own, hypothesis.fields))
    own = {"id": nbest.id, "hypotheses": hypotheses}
    own |= {"context": nbest.context} if nbest.context else {}
    return _dump(_with_client_fields(own | _known(nbest.reference, nbest.group), nbest.fields))


def rescored_line(rescored: RescoredList) -> str:
    """One line without its end; ranks count from 1, scores have ``SCORE_DECIMALS`` decimals."""
    hypotheses = [_rescored_hypothesis(each, rank) for rank, each in enumerate(rescored.hypotheses, start=1)]
    weights = {key: value for key, value in weights_to_dict(rescored.weights).items() if key != "tuned_on"}
    own = {"id": rescored.id, "model": rescored.model, "weights": weights, "hypotheses": hypotheses}
    own |= {"context": rescored.context} if rescored.context else {}
    return _dump(_with_client_fields(own | _known(rescored.reference, rescored.group), rescored.fields))


def _rescored_hypothesis(hypothesis: RescoredHypothesis, rank: int) -> dict[str, Any]:
    # Adding 0 leaves no -0.0.
    own = {
        "text": hypothesis.text,
        "rank": rank,
        "original_rank": hypothesis.original_rank + 1,
        "total": round(hypothesis.total, SCORE_DECIMALS) + 0.0,
        "log_posterior": round(hypothesis.log_posterior, SCORE_DECIMALS) + 0.0,
        "components": {n: round(value, SCORE_DECIMALS) + 0.0 for n, value in hypothesis.components.items()},
    }
    if hypothesis.merged_ranks:
        own["merged_ranks"] = [each + 1 for each in hypothesis.merged_ranks]
    return _with_client_fields(own, hypothesis.fields)


def _known(reference: str | None, group: str) -> dict[str, Any]:
    return ({} if reference is None else {"reference": reference}) | ({"group": group} if group else {})


def _with_client_fields(own: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the client's fields; those that are called like ours go together under ``client``."""
    if not fields:
        return own
    clashing = own.keys() & fields.keys()
    if not clashing:
        return {**own, **fields}
    apart = {name: value for name, value in fields.items() if name in clashing or name == "client"}
    return {**own, **{name: value for name, value in fields.items() if name not in apart}, "client": apart}


def _dump(record: dict[str, Any]) -> str:
    """One line of JSON. The fast writer makes null of NaN, and refuses integers of more than 64 bits: what
    clients' own fields hold of either is left to Python's."""
    try:
        text = orjson.dumps(record)
    except TypeError:
        text = NULL
    return json.dumps(record, ensure_ascii=False) if NULL in text else text.decode()

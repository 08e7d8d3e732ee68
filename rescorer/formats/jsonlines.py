"""Read and write n-best lists as JSON: one list per line, or an array of them, with an optional header.

    {"format": "rescorer-nbest", "version": 1, "streams": {"acoustic": {"base": "10", "sign": "cost"}}}
    {"id": "u1", "hypotheses": [{"text": "a b", "scores": {"acoustic": 12.3}}], "reference": "a b"}

Unknown fields are kept and written back. A ``FieldMap`` gives the names of fields in files with other names;
those that some programs use need none. Lists may also be the elements of an array, or take several lines
each. If the first list has neither an id nor a field that looks like one, each list without an id gets its
position as the id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.common import (
    NATURAL,
    STREAM,
    ListWriter,
    Units,
    check_text,
    check_type,
    json_writer,
    line_writer,
    parse_at,
    round_all,
    stream_names,
    stream_to_nats,
)
from rescorer.formats.fields import (
    FieldMap,
    PlainColumns,
    explain_missing_hypotheses,
    explain_missing_id,
    explain_missing_text,
    find_names,
    generated_record,
    has_lists,
    is_pair,
    may_number,
    parse_phrases,
    parse_utterances,
    phrase_records,
    take_scores,
    utterance_records,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.json_io import describe_type, parse_object
from rescorer.formats.io.text_io import Source, read_lines, source_name
from rescorer.formats.json_documents import Document, UnusableFile, read_documents
from rescorer.formats.score_rows import SCORE_DECIMALS, encode_rows
from rescorer.ranking import Ranking
from rescorer.types import MAXIMUM, Hypothesis, NBestList, PlainHypotheses, Weights
from rescorer.weights import weights_to_dict


@dataclass(slots=True)
class RecordParser:
    """Builds lists from the records of a file or table."""

    file: str
    names: FieldMap
    """Names of the known fields of records; all other fields of a record become fields of the list."""
    group_of: Callable[[str], str] | None
    """Returns the group of a list, given the list's id; called for lists without a group."""
    declared: Mapping[str, Units] = field(default_factory=dict)
    """Units by stream name, as the header of the file declares them."""

    def parse(
        self, record: dict[str, Any], line: int | None, number: str = "", names: FieldMap | None = None
    ) -> NBestList | InvalidList:
        """Build a list from a record, or return the error with its place.

        Args:
            line: number of the record's first line or row, from 1; None if the file is not read by line.
            number: the id for a list without an id; by default its line.
            names: names of the fields of this record, if they differ from those of the file.
        """
        names = find_names(record, names or self.names)
        return parse_at(self.file, line, _parse_list, record, names, self, number or str(line))


def _parse_list(record: dict[str, Any], names: FieldMap, parser: RecordParser, number: str) -> NBestList:
    """Build a list from a record. Known fields are removed from it; the others become fields of the list."""
    if names.hypotheses not in record:
        given = record.get(names.id)
        list_id = str(given) if isinstance(given, (str, int)) else number
        raise InvalidList(explain_missing_hypotheses(record, names), list_id=list_id, field=names.hypotheses)
    list_id = _parse_id(record, names.id) if names.id else number
    hypotheses: Sequence[Hypothesis]
    items = record.pop(names.hypotheses)
    if isinstance(items, PlainColumns):
        hypotheses, columns = PlainHypotheses(items.texts), items.streams
    elif isinstance(items, list) and items:
        usual = _parse_columns(items, names) or _parse_score_objects(items, names)
        hypotheses, columns = usual or _parse_rows(items, names, list_id)
    else:
        message = f"expected a non-empty array, got {describe_type(items)}"
        raise InvalidList(message, list_id=list_id, field=names.hypotheses)
    columns = columns or take_scores(record, names, len(hypotheses), list_id)
    group = check_text(record.pop(names.group, None), list_id, names.group)
    if not group and parser.group_of is not None:
        group = parser.group_of(list_id)
    return NBestList(
        id=list_id,
        hypotheses=hypotheses,
        streams=_convert_streams(columns, names, parser.declared, list_id),
        context=check_text(record.pop(names.context, None), list_id, names.context) or "",
        reference=check_text(record.pop(names.reference, None), list_id, names.reference),
        group=group or "",
        previous=parse_utterances(record.pop(names.previous, None), names.previous, list_id),
        phrases=parse_phrases(record.pop(names.phrases, None), names.phrases, list_id),
        fields=record,
    )


Columns = Mapping[str, Sequence[Any]]
"""Scores by stream name, as read. Each array has one score per hypothesis, or None where one has no score."""


def _parse_columns(items: list[Any], names: FieldMap) -> tuple[Sequence[Hypothesis], Columns] | None:
    """Parse hypotheses fast if all their scores are in fields that options name; return None otherwise.

    The result is the same as that of ``_parse_rows``, which takes twice as long.
    """
    if not names.streams or set(map(type, items)) != {dict}:
        return None
    fields = [names.text, *(stream.field for stream in names.streams.values())]
    has_others = set(map(len, items)) != {len({*fields})} or len({*fields}) < len(fields)
    if not has_others and names.scores not in fields:
        with suppress(KeyError):
            plain, *scores = zip(*map(itemgetter(*fields), items), strict=True)
            if set(map(type, plain)) == {str} and not any(None in column for column in scores):
                return PlainHypotheses(plain), dict(zip(names.streams, scores, strict=True))
    texts = [item.get(names.text) for item in items]
    if set(map(type, texts)) != {str} or any(names.scores in item for item in items):
        return None
    for item in items:
        del item[names.text]
    columns = {
        name: [item.pop(stream.field, None) for item in items] for name, stream in names.streams.items()
    }
    if any(None in values for values in columns.values()):
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        columns = {name: columns[name] for name in stream_names(rows)}
    return tuple(map(Hypothesis, texts, items)), columns


def _parse_score_objects(items: list[Any], names: FieldMap) -> tuple[Sequence[Hypothesis], Columns] | None:
    """Parse hypotheses fast if each has nothing but a text and an object with the same scores; return None
    otherwise. The result is the same as that of ``_parse_rows``."""
    if names.streams or not names.scores or set(map(type, items)) != {dict} or set(map(len, items)) != {2}:
        return None
    with suppress(KeyError):
        texts, objects = zip(*map(itemgetter(names.text, names.scores), items), strict=True)
        if set(map(type, texts)) != {str} or set(map(type, objects)) != {dict}:
            return None
        streams = [*objects[0]]
        if streams and set(map(len, objects)) == {len(streams)}:
            columns = {name: [*map(itemgetter(name), objects)] for name in streams}
            if not any(None in column for column in columns.values()):
                return PlainHypotheses(texts), columns
    return None


def _parse_rows(items: list[Any], names: FieldMap, list_id: str) -> tuple[tuple[Hypothesis, ...], Columns]:
    """Parse hypotheses one by one; raise InvalidList if one of them is invalid."""
    pairs = [_parse_hypothesis(item, names, list_id, index) for index, item in enumerate(items)]
    rows = [scores for _, scores in pairs]
    columns: dict[str, Sequence[Any]] = {}
    for name in stream_names(rows):
        columns[name] = [scores.get(name) for scores in rows]
        if None in columns[name]:  # an error, before there are as many columns as hypotheses
            break
    return tuple(hypothesis for hypothesis, _ in pairs), columns


def _parse_hypothesis(
    item: Any, names: FieldMap, list_id: str, index: int
) -> tuple[Hypothesis, dict[str, Any]]:
    """Return a hypothesis, and its scores as read, by stream name."""

    def invalid(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=list_id, hypothesis=index, field=field)

    if isinstance(item, str):
        return Hypothesis(item), {}
    if is_pair(item):
        return Hypothesis(item[0]), {STREAM: item[1]}
    if not isinstance(item, dict):
        message = f"expected an object or a string, got {describe_type(item)}"
        if isinstance(item, list) and item and all(isinstance(token, int) for token in item):
            message += " of token ids; decode them first (`processor.batch_decode`, skip_special_tokens=True)"
        raise invalid(message, names.hypotheses)
    if not isinstance(item.get(names.text), str):
        raise invalid(explain_missing_text(item, names.text), names.text)
    text = item.pop(names.text)
    scores = item.pop(names.scores, None) if names.scores else None
    scores = {} if scores is None else check_type(scores, dict, list_id, names.scores, index)
    if not names.streams:
        return Hypothesis(text, item), scores
    mapped = {}
    for name, stream in names.streams.items():
        container = item if stream.field in item else scores
        mapped[name] = container.pop(stream.field, None)
    if not scores:
        return Hypothesis(text, item), mapped
    if duplicates := sorted(mapped.keys() & scores.keys()):
        field = f'{names.scores}["{duplicates[0]}"]'
        raise invalid("this stream is also mapped to another field by an option", field)
    return Hypothesis(text, item), scores | mapped


def _convert_streams(
    columns: Columns, names: FieldMap, declared: Mapping[str, Units], list_id: str
) -> dict[str, tuple[float, ...]]:
    """Convert streams to nats. Leave out streams in which no hypothesis has a score."""
    streams = {}
    for name, scores in columns.items():
        mapped = names.streams.get(name)
        units = mapped.units if mapped else declared.get(name, NATURAL)
        field = mapped.field if mapped else f'{names.scores}["{name}"]'
        values = stream_to_nats(name, scores, units, list_id=list_id, field=field)
        if values is not None:
            streams[name] = values
    return streams


def _parse_id(record: dict[str, Any], name: str) -> str:
    """Remove the id from a record and return it. Integers, which many files have as ids, become texts."""
    value = record.pop(name, None)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        hint = explain_missing_id(record) if value is None else ""
        raise InvalidList(f"expected a non-empty string, got {describe_type(value)}{hint}", field=name)
    return value


FORMAT = "rescorer-nbest"
VERSION = 1


def read_header(source: Source, names: FieldMap) -> str:
    """Return the header line of a file; an empty string if its first line is a list or cannot be read.

    Raises:
        FormatError: the file is one array, so that it cannot be divided between lines.
    """
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            return ""
        if text.lstrip().startswith("["):
            message = "a JSON array cannot be divided at its lines; give --format json"
            raise FormatError(message, file=source_name(source))
        if text.strip():
            try:
                has_header = is_header(parse_object(text, source_name(source), line), names)
            except FormatError:
                return ""
            return text if has_header else ""
    return ""


def has_ids(source: Source, names: FieldMap) -> bool:
    """Whether lists have ids of their own instead of their positions: the first list has one, on one line.

    The ids of a file that is divided between its lines do not depend on the division then.
    """
    file = source_name(source)
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            return False
        if text.strip():
            try:
                record = parse_object(text, file, line)
            except FormatError:
                return False
            if not is_header(record, names):
                return not may_number(record, names)
    return False


def is_header(record: dict[str, Any], names: FieldMap) -> bool:
    """Whether the first object of a file is a header instead of a list."""
    return "format" in record and names.hypotheses not in record


def parse_header(record: dict[str, Any], names: FieldMap, file: str, line: int | None) -> dict[str, Units]:
    """Return the units that the header declares, by stream name.

    Raises:
        FormatError: the header is invalid.
    """

    def invalid(message: str, field: str = "") -> FormatError:
        return FormatError(message, file=file, line=line, field=field)

    if record["format"] != FORMAT:
        raise invalid(f"unknown format {record['format']!r}; expected {FORMAT!r}", "format")
    if record.get("version") != VERSION or isinstance(record["version"], bool):
        raise invalid(f"unknown version {record.get('version')!r}; expected {VERSION}", "version")
    unknown = sorted(set(record) - {"format", "version", "streams"})
    if unknown:
        raise invalid(f"unknown header keys {unknown}; expected format, version and streams")
    streams = record.get("streams", {})
    if not isinstance(streams, dict):
        raise invalid(f"expected an object, got {describe_type(streams)}", "streams")
    declared = {}
    for name, units in streams.items():
        field = f'streams["{name}"]'
        if not isinstance(units, dict) or set(units) - {"base", "sign"}:
            raise invalid('expected an object with no keys but "base" and "sign"', field)
        if name in names.streams:
            raise invalid("declared both in the header and by an option", field)
        try:
            declared[name] = Units(**units)
        except ValueError as error:
            raise invalid(str(error), field) from None
    return declared


CONFIDENCE_DECIMALS = 4
UNREPEATED_WEIGHTS = ("tuned_on", "tuned_with", "held_out", "calibration")
"""Parts of the weights that are not repeated in each rescored list, because they are as long as a list."""
NULL = b"null"


def encode_list(nbest: NBestList) -> str:
    """Return an n-best list as one line without line end; scores are exact log-probabilities in nats."""
    hypotheses = []
    for index, hypothesis in enumerate(nbest.hypotheses):
        record: dict[str, Any] = {"text": hypothesis.text}
        if nbest.streams:
            record["scores"] = {name: values[index] for name, values in nbest.streams.items()}
        hypotheses.append(_add_client_fields(record, hypothesis.fields))
    record = {"id": nbest.id, "hypotheses": hypotheses, **_about_list(nbest)}
    return _dump(_add_client_fields(record, nbest.fields))


def encode_ranking(ranking: Ranking, weights: Weights, model: str) -> str:
    """Return a re-ranked list as one line; see ``encode_rankings``."""
    return encode_rankings([ranking], weights, model)[0]


def encode_rankings(rankings: Sequence[Ranking], weights: Weights, model: str) -> list[str]:
    """Return each re-ranked list as one line without line end.

    Ranks count from 1; scores are rounded to ``SCORE_DECIMALS`` decimals.

    Args:
        weights: the weights by which the lists were ranked.
        model: label of the bundle that scored the lists.
    """
    describe = describer(weights, model)
    lines = []
    for ranking, hypotheses in zip(rankings, _encode_hypotheses(rankings), strict=True):
        record = _add_client_fields(describe(ranking), ranking.nbest.fields)
        line = _encode(record | {"hypotheses": ""}) if hypotheses else b""
        if line:
            before, key, after = line.decode().partition(NO_HYPOTHESES)
            lines.append(f"{before}{key[:-2]}{hypotheses}{after}")
        else:
            fields = (ranking.nbest.hypotheses[i].fields for i in ranking.order)
            records = [*map(_add_client_fields, hypothesis_records(ranking), fields)]
            lines.append(_dump(record | {"hypotheses": records}))
    return lines


def describer(weights: Weights, model: str) -> Callable[[Ranking], dict[str, Any]]:
    """Return the function that makes the record of a re-ranked list, without the client's fields, and with
    None for its hypotheses.

    Arguments are those of ``encode_rankings``.
    """
    about_all = {"model": model, "weights": repeated_weights(weights), "hypotheses": None}

    def describe(ranking: Ranking) -> dict[str, Any]:
        record: dict[str, Any] = {"id": ranking.nbest.id, **about_all}
        if ranking.decision is not None and ranking.decision != MAXIMUM:
            record["decision"] = asdict(ranking.decision)
            record |= _consensus_record(ranking)
        if ranking.dropped:
            record["dropped_ranks"] = [rank + 1 for rank in ranking.dropped]
        if ranking.degradation:
            record["degradation"] = ranking.degradation
        if ranking.previous_unread_by:
            record["previous_unread_by"] = list(ranking.previous_unread_by)
        return record | _about_list(ranking.nbest)

    return describe


def repeated_weights(weights: Weights) -> dict[str, Any]:
    """Return the parts of the weights that are repeated in each rescored list."""
    record = weights_to_dict(weights)
    for name in UNREPEATED_WEIGHTS:
        record.pop(name, None)
    return record


NO_HYPOTHESES = '"hypotheses":""'
FIRST_KEY = '{"text":"'
ROW_END = "}},"
ESCAPED = '"', "\\"
"""Characters that JSON escapes, besides those before the blank."""


def _encode_hypotheses(rankings: Sequence[Ranking]) -> list[str]:
    """Encode ``hypothesis_records`` of many rankings at once; empty where hypotheses have more than texts and
    scores, or cannot be encoded in this way."""
    encoded, alike = [""] * len(rankings), dict[tuple[str, ...], list[int]]()
    for i, ranking in enumerate(rankings):
        nbest = ranking.nbest
        has_fields = not nbest.is_plain and any(hypothesis.fields for hypothesis in nbest.hypotheses)
        if ranking.components and not has_fields and has_only_scores(ranking):
            alike.setdefault(tuple(ranking.components), []).append(i)
    for names, places in alike.items():
        found = _encode_alike([rankings[i] for i in places], names)
        if not found:  # one of them has odd numbers or texts
            found = [*chain.from_iterable(_encode_alike([rankings[i]], names) or [""] for i in places)]
        for i, one in zip(places, found, strict=True):
            encoded[i] = one
    return encoded


def _encode_alike(rankings: Sequence[Ranking], names: Sequence[str]) -> list[str]:
    """Encode the hypotheses of rankings with the same components; empty if that fails for one of them."""
    try:
        texts = _encode_texts(
            [*chain.from_iterable(map(one.nbest.texts.__getitem__, one.order) for one in rankings)]
        )
    except (TypeError, UnicodeEncodeError):  # a text is not valid Unicode
        return []
    counts = [len(ranking.order) for ranking in rankings]
    ranks = np.concatenate([np.arange(1, count + 1) for count in counts])
    original_ranks = np.concatenate([np.array(ranking.order) for ranking in rankings]) + 1
    keys = ['","rank":', ',"original_rank":', ',"total":', ',"log_posterior":']
    first_name, *others = (orjson.dumps(name).decode() for name in names)
    keys += [f',"components":{{{first_name}:', *(f",{name}:" for name in others)]
    scores = np.concatenate([*map(scores_in_order, rankings)], axis=1)
    rows = encode_rows(keys, [ranks, original_ranks], scores, ROW_END + FIRST_KEY)
    if rows is None:
        return []
    pieces = [""] * (2 * len(rows))
    pieces[::2], pieces[1::2] = texts, rows
    encoded, begin = list[str](), 0
    for count in counts:
        end = begin + 2 * count
        pieces[end - 1] = pieces[end - 1].removesuffix("," + FIRST_KEY)
        encoded.append(f"[{FIRST_KEY}{''.join(pieces[begin:end])}]")
        begin = end
    return encoded


def _encode_texts(texts: Sequence[str]) -> Sequence[str]:
    """Encode texts as JSON without quotes around them; those without special characters stay as they are.

    Raises:
        TypeError, UnicodeEncodeError: a text is not valid Unicode.
    """
    joined = "".join(texts)
    smallest = np.frombuffer(joined.encode(), dtype=np.uint8).min(initial=ord(" "))
    if smallest < ord(" ") or any(character in joined for character in ESCAPED):
        return [orjson.dumps(text)[1:-1].decode() for text in texts]
    return texts


def has_only_scores(ranking: Ranking) -> bool:
    """Whether hypotheses have nothing but texts, ranks, scores, components, and fields of the client."""
    is_ranked_only = (
        ranking.confidence is None and ranking.expected_errors is None and not any(ranking.members)
    )
    is_plain = ranking.nbest.is_plain
    return is_ranked_only and (is_plain or not any(one.generated for one in ranking.nbest.hypotheses))


def hypothesis_records(ranking: Ranking) -> list[dict[str, Any]]:
    """Return one JSON object per hypothesis, best first, without the client's fields."""
    order, names = list(ranking.order), list(ranking.components)
    hypotheses = [ranking.nbest.hypotheses[i] for i in order]
    totals, log_posteriors, *components = round_scores(scores_in_order(ranking)).tolist()
    components_of_each = map(dict, map(zip, repeat(names), zip(*components, strict=True)))
    columns = hypotheses, order, totals, log_posteriors, components_of_each
    records: list[dict[str, Any]] = [
        {
            "text": hypothesis.text,
            "rank": rank,
            "original_rank": i + 1,
            "total": total,
            "log_posterior": log_posterior,
            "components": named,
        }
        for rank, (hypothesis, i, total, log_posterior, named) in enumerate(
            zip(*columns, strict=True), start=1
        )
    ]
    for record, hypothesis in zip(records, hypotheses, strict=True):
        if hypothesis.generated is not None:
            record["generated"] = generated_record(hypothesis.generated)
    if ranking.confidence is not None:
        records[0]["confidence"] = round(ranking.confidence, CONFIDENCE_DECIMALS)
    if ranking.word_confidences:
        records[0]["word_confidences"] = [
            {"word": word.word, "confidence": word.confidence and round(word.confidence, CONFIDENCE_DECIMALS)}
            for word in ranking.word_confidences
        ]
    if ranking.expected_errors is not None:
        errors = round_scores(ranking.expected_errors[order]).tolist()
        for record, expected_errors in zip(records, errors, strict=True):
            record["expected_errors"] = expected_errors
    if any(ranking.members):
        for record, i in zip(records, order, strict=True):
            record["merged_ranks"] = [member + 1 for member in ranking.members[i]]
    return records


def scores_in_order(ranking: Ranking) -> np.ndarray:
    """Return totals, log-posteriors and components, (2 + K, H), best hypothesis first."""
    columns = ranking.totals, ranking.log_posteriors, *ranking.components.values()
    if len(ranking.order) == 1:  # a single hypothesis, which takes less time without arrays
        return np.array([[float(column[ranking.order[0]])] for column in columns])
    return np.array(columns).take(ranking.order, axis=1)


def round_scores(values: np.ndarray) -> np.ndarray:
    """Round to ``SCORE_DECIMALS`` decimals; adding 0.0 turns -0.0 into 0.0."""
    return round_all(values, SCORE_DECIMALS) + 0.0


def _consensus_record(ranking: Ranking) -> dict[str, Any]:
    if ranking.decision is None or ranking.decision.kind != "confusion_network":
        return {}
    position = ranking.consensus_position
    words = []
    for word in ranking.consensus:
        numbers = {"posterior": word.posterior, "start_s": word.start_s, "duration_s": word.duration_s}
        rounded = {name: round(value, SCORE_DECIMALS) for name, value in numbers.items() if value is not None}
        words.append({"word": word.word, **rounded, **({"text": word.text} if word.text else {})})
    return {"consensus": words, "consensus_rank": None if position is None else position + 1}


def _about_list(nbest: NBestList) -> dict[str, Any]:
    """Return those of context, previous utterances, phrases, reference and group that the list has."""
    record: dict[str, Any] = {"context": nbest.context} if nbest.context else {}
    record |= {"previous": utterance_records(nbest.previous)} if nbest.previous else {}
    record |= {"phrases": phrase_records(nbest.phrases)} if nbest.phrases else {}
    record |= {} if nbest.reference is None else {"reference": nbest.reference}
    return record | ({"group": nbest.group} if nbest.group else {})


def _add_client_fields(record: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the client's fields. Those whose names are taken are put under ``client``."""
    if not fields:
        return record
    clashing = record.keys() & fields.keys()
    if not clashing:
        return {**record, **fields}
    moved = {name: value for name, value in fields.items() if name in clashing or name == "client"}
    kept = {name: value for name, value in fields.items() if name not in moved}
    return {**record, **kept, "client": moved}


def _dump(record: dict[str, Any]) -> str:
    """Return a record as one line of JSON, encoded by the standard library if orjson cannot."""
    return _encode(record).decode() or json.dumps(record, ensure_ascii=False)


def _encode(record: dict[str, Any]) -> bytes:
    """Encode a record by orjson; empty if a client's fields may contain numbers that orjson cannot write.

    orjson is fast, but writes NaN as null and rejects integers of more than 64 bits.
    """
    try:
        line = orjson.dumps(record)
    except TypeError:
        return b""
    return b"" if NULL in line else line


DEFAULT_FIELDS = FieldMap()
MANIFEST_KEYS = frozenset({"audio_filepath", "pred_text"})


def read_lists(
    source: Source,
    names: FieldMap = DEFAULT_FIELDS,
    group_of: Callable[[str], str] | None = None,
    first_line: int = 1,
    header: str = "",
) -> Lists:
    """Yield every list, or an error in place of an invalid line or record; reading then continues.

    Args:
        source: file name, ``-`` for standard input, or a binary stream; plain or gzip.
        names: field names used by the file.
        group_of: function that returns the group (speaker) of a list, given the list's id; called for lists
            without a group.
        first_line: number of the source's first line, if the source is a part of a file that begins later.
        header: header line of the file, if the source is such a part.

    Raises:
        FormatError: the source cannot be opened, or its header is invalid, so that the meaning of the scores
            is unknown.
    """
    file = source_name(source)
    reader = _Reader(file, names, group_of, is_first=first_line == 1)
    if header and first_line != 1:
        reader.declared = parse_header(parse_object(header, file, 1), names, file, 1)
    return read_documents(source, file, reader.read_document, prefers_lines=True, first_line=first_line)


@dataclass(slots=True)
class _Reader(RecordParser):
    """Builds lists from the records of a file. The first record may be a header."""

    is_first: bool = True
    is_numbered: bool = False
    """Whether lists without an id are numbered, because the first list has no id."""
    number: int = 0
    """Number of records, without the header, that have been read."""

    def read_document(self, document: Document) -> Lists:
        """Yield the list of a document if it is a record, or its lists if it is an array of records."""
        cursor = document.cursor
        if cursor.peek() == "[":
            for index in cursor.read_elements():
                yield from self._read_value(cursor.read_value(), document.line, "", index)
        elif cursor.peek():
            label = "" if document.line is None else document.label
            yield from self._read_value(cursor.read_value(), document.line, label)

    def _read_value(self, record: Any, line: int | None, label: str, index: int | None = None) -> Lists:
        if isinstance(record, dict):
            yield from self.read_record(record, line, label)
            return
        self.number, self.is_first = self.number + 1, False
        place = "" if index is None else f"element {index + 1}: "
        message = f"{place}expected a JSON object, got {describe_type(record)}"
        yield FormatError(message, file=self.file, line=line)

    def read_record(self, record: dict[str, Any], line: int | None, label: str) -> Lists:
        """Yield the list of a record, or nothing if the record is a header.

        Args:
            label: the id for a list without an id; by default the number of the record.

        Raises:
            UnusableFile: the record is an invalid header.
        """
        if self.is_first:
            self.is_first = False
            if is_header(record, self.names):
                try:
                    self.declared = parse_header(record, self.names, self.file, line)
                except FormatError as error:  # the meaning of the scores is unknown
                    raise UnusableFile(error.message, file=self.file, line=line, field=error.field) from None
                self.is_first = True
                return
            self.is_numbered = may_number(record, self.names)
        self.number += 1
        has_number = self.is_numbered and self.names.id not in record
        names = replace(self.names, id="") if has_number else self.names
        yield self.parse(record, line, label or str(self.number), names)


def writer(target: str | Path) -> ListWriter:
    """Write one list per line.

    Args:
        target: file name, compressed if it ends in ``.gz``; ``-`` is standard output.
    """
    return line_writer(target, lambda nbest: [encode_list(nbest)], once=False)


def array_writer(target: str | Path) -> ListWriter:
    """Write an array with one list per line."""
    return json_writer(target, encode_list)


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file has one list per line, or an empty string."""
    record = sample.record
    if record.get("format") == FORMAT:
        return f"a header line with the format {FORMAT!r}"
    name = "" if _is_manifest(record) else has_lists(record)
    return f'one JSON object per line, with "{name}"' if name else ""


def looks_like_documents(sample: Sample) -> str:
    """Return the evidence that a file has lists in an array, or on several lines each, or an empty string."""
    if sample.is_folder or sample.record or not sample.documents:
        return ""
    first = sample.documents[0]
    name = "" if _is_manifest(first[0] if isinstance(first, list) and first else first) else has_lists(first)
    return f'JSON {"arrays" if isinstance(first, list) else "objects"} with "{name}"' if name else ""


def _is_manifest(record: Any) -> bool:
    """Whether a record is a line of a NeMo manifest, and so of another format."""
    return isinstance(record, dict) and "hypotheses" not in record and bool(record.keys() & MANIFEST_KEYS)


def compile_group_pattern(pattern: str) -> Callable[[str], str]:
    r"""Return a function that extracts a list's group from its id.

    The group is the text that matches the only capturing group of the pattern, as in ``^(\d+)-``; it is empty
    if the id does not match.

    Raises:
        ConfigError: the pattern is not a regular expression with exactly one capturing group.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a valid regular expression: {error}") from None
    if compiled.groups != 1:
        raise ConfigError(
            f"{pattern!r} is neither a file nor a regular expression with one group, such as '^(\\d+)-': it "
            f"has {compiled.groups} groups"
        )

    def group_of(list_id: str) -> str:
        match = compiled.search(list_id)
        return (match[1] or "") if match else ""

    return group_of

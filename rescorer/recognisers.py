"""Lists from the results of other libraries: transformers, pyctcdecode, NeMo, ESPnet, Whisper and vosk.

Each function takes what the library returned, and returns one ``NBestList`` per utterance. None of the
libraries is imported: results are recognised by their attributes. Streams are called as those of the
libraries' files are (``rescorer.formats``): ``first_pass`` for the score by which the library ranks, and
``acoustic`` and ``lm`` where it returns the parts. All scores are in nats.

``ids`` names the lists: a text per utterance, or one text, to which several lists add their number.

Raises, in all functions:
    TypeError: the result is of another type or shape; the message says how to get the right one.
    InvalidList: a text or a score in it cannot be used.
    LimitExceeded: it has more than ``MAX_LISTS`` lists, or a list more than ``MAX_HYPOTHESES`` hypotheses.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NoReturn

from rescorer.errors import InvalidList, LimitExceeded
from rescorer.formats.common import STREAM, Row, build_list
from rescorer.formats.fields import WORDS_FIELD
from rescorer.formats.speech_services import parse_segments
from rescorer.types import NBestList

MAX_LISTS, MAX_HYPOTHESES = 1_000_000, 10_000
"""Largest numbers of lists in a result, and of hypotheses in a list."""
ACOUSTIC, LM = "acoustic", "lm"
WHISPER_FIELDS = (
    *("id", "seek", "start", "end", "text", "tokens", "avg_logprob", "temperature"),
    *("compression_ratio", "no_speech_prob", "language"),
)
"""Attributes of Whisper's objects that are kept; the others are arrays, or the library's own objects."""
Ids = str | Sequence[str]


def from_transformers(
    output: Any,
    decoder: Any = None,
    *,
    num_return_sequences: int = 1,
    length_penalty: float = 1.0,
    ids: Ids = "",
) -> list[NBestList]:
    """Make lists of the beams that transformers' ``generate`` returned, or of a CTC processor's ``n_best``.

        output = model.generate(**inputs, num_beams=5, num_return_sequences=5,
                                return_dict_in_generate=True, output_scores=True)
        lists = from_transformers(output, processor, num_return_sequences=5)

    The stream ``first_pass`` is the log-probability of all tokens: transformers divides it by the number of
    tokens, and this is undone. The output of ``Wav2Vec2ProcessorWithLM.batch_decode(…, n_best=5)`` needs no
    further arguments, and has the streams of ``from_pyctcdecode``.

    Args:
        decoder: processor or tokenizer whose ``batch_decode`` turns tokens into texts.
        num_return_sequences: hypotheses per utterance, as given to ``generate``.
        length_penalty: as given to ``generate``, or as in the model's generation settings.
    """
    if hasattr(output, "logit_score") and hasattr(output, "lm_score"):
        return _from_ctc_processor(output, ids)
    parts: list[Any] = [
        getattr(output, name, None) for name in ("sequences", "sequences_scores", "beam_indices")
    ]
    if any(part is None for part in parts):
        options = "num_beams=5, num_return_sequences=5, return_dict_in_generate=True, output_scores=True"
        _refuse(
            "output",
            output,
            f"sequences, sequences_scores and beam_indices, as returned by generate({options})",
        )
    if not hasattr(decoder, "batch_decode"):
        _refuse("decoder", decoder, "a processor or tokenizer with batch_decode")
    texts = decoder.batch_decode(parts[0], skip_special_tokens=True)
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        _refuse("the result of decoder.batch_decode", texts, "a list of texts")
    size = _integer(num_return_sequences, "num_return_sequences")
    if size < 1 or len(texts) % size:
        raise TypeError(
            f"output has {len(texts):,} sequences, and num_return_sequences is {size}; "
            "expected the number that generate() was given"
        )
    scores = _column(parts[1], len(texts), "output.sequences_scores")
    indices = _column(parts[2], len(texts), "output.beam_indices")
    power = _number(length_penalty, "length_penalty")
    rows = []
    for text, score, places in zip(texts, scores, indices, strict=True):
        n_tokens = sum(_number(place, "a beam index") >= 0 for place in _column(places, None, "beam indices"))
        rows.append(
            Row(text.strip(), {STREAM: _undo_penalty(_number(score, "a sequence score"), n_tokens, power)})
        )
    starts = range(0, len(rows), size)
    return _make_lists([rows[start : start + size] for start in starts], ids)


def _column(values: Any, length: int | None, name: str) -> list[Any]:
    """Return the values of a list, an array or a tensor, of a length if it is known."""
    column = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(column, (list, tuple)) or (length is not None and len(column) != length):
        count = "" if length is None else f", one for each of {length:,} sequences"
        _refuse(name, values, f"numbers in a list or tensor{count}")
    return list(column)


def _undo_penalty(score: float, n_tokens: int, power: float) -> float:
    """Return the log-probability of all tokens; infinite, and so refused, if it is no finite number."""
    try:
        return score * float(n_tokens) ** power
    except (OverflowError, ZeroDivisionError):
        return math.inf


def _from_ctc_processor(output: Any, ids: Ids) -> list[NBestList]:
    columns = [output.text, output.logit_score, output.lm_score]
    if isinstance(output.text, str) or not all(isinstance(column, list) for column in columns):
        _refuse("output", output, "several hypotheses, as returned by batch_decode(logits, n_best=5)")
    if output.text and isinstance(output.text[0], str):  # of decode(…, n_best=5), which is for one utterance
        columns = [[column] for column in columns]
    names = "output.text", "output.logit_score", "output.lm_score"
    n_lists = len(columns[0])
    parts = zip(*(_column(*pair) for pair in zip(columns, [n_lists] * 3, names, strict=True)), strict=True)
    beams = []
    for texts, *scores in parts:
        found = _column(texts, None, names[0])
        both = (_column(one, len(found), name) for one, name in zip(scores, names[1:], strict=True))
        beams.append([_ctc_row(*beam) for beam in zip(found, *both, strict=True)])
    return _make_lists(_without_empty_stream(beams, LM), ids)


def from_pyctcdecode(beams: Any, *, ids: Ids = "") -> list[NBestList]:
    """Make lists of the beams that pyctcdecode's ``decode_beams`` or ``decode_beams_batch`` returned.

    The streams are ``acoustic``, the log-probability of the letters, and ``lm``, which the decoder's own
    language model and hot words add to it, if it has any.
    """
    utterances = [beams] if _is_list_of(beams, _is_ctc_beam) else beams
    rows = []
    for number, utterance in enumerate(_take(utterances, MAX_LISTS, "beams")):
        if not _is_list_of(utterance, _is_ctc_beam):
            _refuse(f"beams[{number}]", utterance, "the beams of decode_beams()")
        found = _take(utterance, MAX_HYPOTHESES, f"beams[{number}]")
        parts = ((beam[0], *beam[-2:]) if isinstance(beam, tuple) else _ctc_parts(beam) for beam in found)
        rows.append([_ctc_row(*part) for part in parts])
    return _make_lists(_without_empty_stream(rows, LM), ids)


def _is_ctc_beam(value: Any) -> bool:
    is_tuple = isinstance(value, tuple) and len(value) in (4, 5) and isinstance(value[0], str)
    return is_tuple or all(hasattr(value, name) for name in ("text", "logit_score", "lm_score"))


def _ctc_parts(beam: Any) -> tuple[Any, Any, Any]:
    return beam.text, beam.logit_score, beam.lm_score


def _ctc_row(text: str, logit_score: Any, lm_score: Any) -> Row:
    """Return the row of a beam, whose ``lm_score`` includes the score of the letters."""
    acoustic = _number(logit_score, "logit_score")
    return Row(text, {ACOUSTIC: acoustic, LM: _number(lm_score, "lm_score") - acoustic})


def _without_empty_stream(lists: list[list[Row]], stream: str) -> list[list[Row]]:
    """Leave out a stream that is 0 everywhere, because nothing computed it."""
    if any(row.scores[stream] for rows in lists for row in rows):
        return lists
    return [
        [replace(row, scores={k: v for k, v in row.scores.items() if k != stream}) for row in rows]
        for rows in lists
    ]


def from_nemo(result: Any, *, ids: Ids = "") -> list[NBestList]:
    """Make lists of the hypotheses that a NeMo model's ``transcribe(…, return_hypotheses=True)`` returned.

    For several hypotheses per utterance, the decoding must have ``return_best_hypothesis`` false: elements
    are then lists of hypotheses, or ``NBestHypotheses``; the pairs of earlier versions, of best and of all
    hypotheses, are read too. Times of words come along as the field ``words``.
    """
    if isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, list) for part in result):
        result = result[1] or result[0]
    elements = [result] if _is_nemo(result) or hasattr(result, "n_best_hypotheses") else result
    lists = []
    for number, element in enumerate(_take(elements, MAX_LISTS, "result")):
        found = getattr(element, "n_best_hypotheses", element)
        found = [found] if _is_nemo(found) else found
        if not _is_list_of(found, _is_nemo):
            _refuse(
                f"result[{number}]",
                element,
                "hypotheses, as returned by transcribe(…, return_hypotheses=True)",
            )
        lists.append([_nemo_row(one) for one in _take(found, MAX_HYPOTHESES, f"result[{number}]")])
    return _make_lists(lists, ids)


def _is_nemo(value: Any) -> bool:
    return hasattr(value, "y_sequence") and isinstance(getattr(value, "text", None), str)


def _nemo_row(hypothesis: Any) -> Row:
    timestamps = getattr(hypothesis, "timestamp", None)
    words = timestamps.get("word") if isinstance(timestamps, Mapping) else None
    return Row(hypothesis.text, {STREAM: _number(hypothesis.score, "score")}, _word_times(words))


def from_espnet(result: Any, *, ids: Ids = "") -> list[NBestList]:
    """Make lists of what ESPnet's ``Speech2Text`` returned for one utterance, or of several such results.

    Its ``nbest`` must be above 1 for several hypotheses. The stream ``first_pass`` is their score, which is
    the weighted sum of further streams that are called as the scorers: ``decoder``, ``ctc``, ``lm``, ….
    """
    results = [result] if _is_list_of(result, _is_espnet) else result
    lists = []
    for number, found in enumerate(_take(results, MAX_LISTS, "result")):
        if not _is_list_of(found, _is_espnet):
            _refuse(
                f"result[{number}]", found, "tuples of text, tokens, numbers and hypothesis of Speech2Text"
            )
        rows = []
        for text, *_, hypothesis in _take(found, MAX_HYPOTHESES, f"result[{number}]"):
            parts = getattr(hypothesis, "scores", None) or {}
            if not isinstance(parts, Mapping):
                _refuse(f"result[{number}] scores", parts, "scores by the names of their scorers")
            scores = {str(name): _number(value, f"scores[{name!r}]") for name, value in parts.items()}
            rows.append(Row(text, {STREAM: _number(hypothesis.score, "score"), **scores}))
        lists.append(rows)
    return _make_lists(lists, ids)


def _is_espnet(value: Any) -> bool:
    is_tuple = isinstance(value, (tuple, list)) and len(value) == 4
    return is_tuple and isinstance(value[0], str) and hasattr(value[3], "score")


def from_whisper(result: Any, *, ids: str = "whisper") -> list[NBestList]:
    """Make lists of Whisper's results: one per segment, or one of several texts of the same segment.

    ``result`` is what openai-whisper's ``transcribe`` returned, or the segments of faster-whisper, which are
    lists with one hypothesis. Several ``DecodingResult`` of the same segment, such as those of
    ``decode(model, [mel] * 5, DecodingOptions(temperature=0.4))``, are the hypotheses of one list. The stream
    ``first_pass`` is the log-probability of all tokens, as in files of the format ``whisper``.

    Args:
        ids: the lists are called by this and the number of the segment, such as ``talk-12``.
    """
    if isinstance(result, Mapping):
        document: Any = dict(result)
    else:
        found = [result] if hasattr(result, "avg_logprob") else _take(result, MAX_LISTS, "result")
        if not found:
            return []  # nothing was said
        records = [_whisper_record(index, segment) for index, segment in enumerate(found)]
        has_times = any("start" in record for record in records)
        document = records if has_times else [{"candidates": records[:MAX_HYPOTHESES]}]
    lists = []
    for nbest in islice(parse_segments(document, ids), MAX_LISTS):
        if isinstance(nbest, InvalidList):
            raise nbest
        lists.append(nbest)
    return lists


def _whisper_record(index: int, segment: Any) -> dict[str, Any]:
    if isinstance(segment, Mapping):
        return dict(segment)
    if not hasattr(segment, "avg_logprob") or not isinstance(getattr(segment, "text", None), str):
        _refuse(
            f"result[{index}]", segment, "a segment or DecodingResult of Whisper, with text and avg_logprob"
        )
    return {name: getattr(segment, name) for name in WHISPER_FIELDS if hasattr(segment, name)}


def from_vosk(result: str | Mapping[str, Any] | Iterable[Any], *, ids: Ids = "") -> list[NBestList]:
    """Make lists of the JSON of vosk's ``Result()``, ``FinalResult()`` or ``PartialResult()``, or of several.

    ``SetMaxAlternatives(10)`` gives several hypotheses, whose ``confidence`` is a log-likelihood in nats: the
    stream ``first_pass``. Times of words come along as the field ``words``. A partial result becomes a list
    with one hypothesis that is ``partial``, and is scored without the end of the sentence.
    """
    results = [result] if isinstance(result, (str, Mapping)) else result
    documents = [_vosk_document(i, one) for i, one in enumerate(_take(results, MAX_LISTS, "result"))]
    lists = _make_lists([_vosk_rows(i, document) for i, document in enumerate(documents)], ids)
    return [
        replace(nbest, hypotheses=tuple(replace(one, partial=True) for one in nbest.hypotheses))
        if "partial" in document
        else nbest
        for nbest, document in zip(lists, documents, strict=True)
    ]


def _vosk_document(index: int, result: Any) -> Mapping[str, Any]:
    if isinstance(result, str):
        try:
            result = json.loads(result)
        except (ValueError, RecursionError):
            raise TypeError(
                f"result[{index}] is a text that is not JSON; expected that of Result()"
            ) from None
    if not isinstance(result, Mapping) or not result.keys() & {"alternatives", "text", "partial"}:
        _refuse(f"result[{index}]", result, "the JSON of Result(), with alternatives, text or partial")
    return result


def _vosk_rows(index: int, document: Mapping[str, Any]) -> list[Row]:
    alternatives = document.get("alternatives", [document])
    if not isinstance(alternatives, list) or not all(isinstance(one, Mapping) for one in alternatives):
        _refuse(f"result[{index}].alternatives", alternatives, "an array of objects")
    return [
        Row(
            one.get("text", one.get("partial")),
            {STREAM: one.get("confidence")},
            _word_times(one.get("result")),
        )
        for one in _take(alternatives, MAX_HYPOTHESES, f"result[{index}]")
    ]


def _word_times(words: Any) -> dict[str, Any]:
    """Return the field of words with times, as formats with times read and write it; none without times."""
    if not isinstance(words, list) or not words:
        return {}
    if not all(isinstance(word, Mapping) and {"word", "start", "end"} <= word.keys() for word in words):
        return {}
    timed = []
    for word in words:
        start, end = (_number(word[name], f"{name} of a word") for name in ("start", "end"))
        confidence = {"confidence": word["conf"]} if "conf" in word else {}
        timed.append({"word": word["word"], "start_s": start, "duration_s": end - start, **confidence})
    return {WORDS_FIELD: timed}


def _make_lists(lists: Sequence[Sequence[Row]], ids: Ids) -> list[NBestList]:
    """Build a list per utterance, and name it.

    Raises:
        TypeError: there are not as many ids as lists, or a text is none.
        InvalidList: a list has no hypotheses, or a score is not a finite number.
    """
    if isinstance(ids, str):
        names = (
            [ids] if ids and len(lists) == 1 else [f"{ids}-{n}".lstrip("-") for n in range(1, len(lists) + 1)]
        )
    elif not hasattr(ids, "__iter__"):
        _refuse("ids", ids, "a text, or a text for each list")
    else:
        names = list(islice(ids, len(lists) + 1))
        if len(names) != len(lists) or not all(isinstance(name, str) for name in names):
            count = f"{len(names)}{' or more' * (len(names) > len(lists))}"
            raise TypeError(f"ids has {count} values for {len(lists):,} lists; expected a text each")
    built = []
    for name, rows in zip(names, lists, strict=True):
        for index, row in enumerate(rows):
            if not isinstance(row.text, str):
                _refuse(f"the text of hypothesis {index} of list {name}", row.text, "a text")
        nbest = build_list(name, rows, {}, "")
        if isinstance(nbest, InvalidList):
            raise nbest
        built.append(nbest)
    return built


def _take(values: Any, limit: int, name: str) -> list[Any]:
    """Read the values of a result, at most ``limit``."""
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(values, "__iter__"):
        _refuse(name, values, "the result of one utterance, or a sequence of such results")
    taken = list(islice(values, limit + 1))
    if len(taken) > limit:
        raise LimitExceeded(f"more than {limit:,} elements; expected fewer", field=name)
    return taken


def _is_list_of(value: Any, is_one: Any) -> bool:
    """Whether a value is a sequence whose first element is a hypothesis of a library, and all others are."""
    return isinstance(value, (list, tuple)) and bool(value) and all(is_one(one) for one in value)


def _number(value: Any, name: str) -> float:
    """Return a number of Python, of an array or of a tensor with one element."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        _refuse(name, value, "a number")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # several elements: of NumPy, and of torch
        _refuse(name, value, "a single number")
    except OverflowError:
        return math.inf  # which is refused with the place of the score


def _integer(value: Any, name: str) -> int:
    """Return an integer of Python, or of an array or tensor."""
    if not isinstance(value, bool):
        # NumPy and torch raise these for other numbers and for several elements.
        with suppress(TypeError, ValueError, RuntimeError):
            return operator.index(value)
    _refuse(name, value, "an integer")


def _refuse(name: str, value: Any, expected: str) -> NoReturn:
    raise TypeError(f"{name} is of type {type(value).__name__}; expected {expected}")

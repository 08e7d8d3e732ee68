"""Encode n-best lists and re-ranked lists as single lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import orjson

from rescorer.score_combination import weights_to_dict
from rescorer.types import MAXIMUM, NBestList, RescoredHypothesis, RescoredList

SCORE_DECIMALS = 6
"""Decimals of written scores: a hundred times finer than the 1e-4 that ranking distinguishes."""
CONFIDENCE_DECIMALS = 4
UNREPEATED_WEIGHTS = ("tuned_on", "tuned_with", "held_out", "calibration")
"""Parts of the weights that are as long as a list, and are not repeated in each."""
NULL = b"null"


def encode_list(nbest: NBestList) -> str:
    """Return an n-best list as one line without line end; scores are exact log-probabilities in nats."""
    hypotheses = []
    for index, hypothesis in enumerate(nbest.hypotheses):
        record: dict[str, Any] = {"text": hypothesis.text}
        if nbest.streams:
            record["scores"] = {name: values[index] for name, values in nbest.streams.items()}
        hypotheses.append(_add_client_fields(record, hypothesis.fields))
    record = {"id": nbest.id, "hypotheses": hypotheses}
    record |= {"context": nbest.context} if nbest.context else {}
    record |= _reference_and_group(nbest.reference, nbest.group)
    return _dump(_add_client_fields(record, nbest.fields))


def encode_rescored_list(rescored: RescoredList) -> str:
    """Return a re-ranked list as one line without line end.

    Ranks count from 1; scores are rounded to ``SCORE_DECIMALS`` decimals.
    """
    hypotheses = [
        _rescored_hypothesis_record(hypothesis, rank)
        for rank, hypothesis in enumerate(rescored.hypotheses, start=1)
    ]
    record: dict[str, Any]
    weights = weights_to_dict(rescored.weights)
    for key in UNREPEATED_WEIGHTS:
        weights.pop(key, None)
    record = {"id": rescored.id, "model": rescored.model, "weights": weights, "hypotheses": hypotheses}
    if rescored.decision is not None and rescored.decision != MAXIMUM:
        record["decision"] = asdict(rescored.decision)
        record |= _consensus_record(rescored)
    if rescored.dropped_ranks:
        record["dropped_ranks"] = [rank + 1 for rank in rescored.dropped_ranks]
    record |= {"context": rescored.context} if rescored.context else {}
    record |= _reference_and_group(rescored.reference, rescored.group)
    return _dump(_add_client_fields(record, rescored.fields))


def _rescored_hypothesis_record(hypothesis: RescoredHypothesis, rank: int) -> dict[str, Any]:
    # Adding 0.0 turns -0.0 into 0.0.
    components = hypothesis.components.items()
    record = {
        "text": hypothesis.text,
        "rank": rank,
        "original_rank": hypothesis.original_rank + 1,
        "total": round(hypothesis.total, SCORE_DECIMALS) + 0.0,
        "log_posterior": round(hypothesis.log_posterior, SCORE_DECIMALS) + 0.0,
        "components": {name: round(value, SCORE_DECIMALS) + 0.0 for name, value in components},
    }
    if hypothesis.confidence is not None:
        record["confidence"] = round(hypothesis.confidence, CONFIDENCE_DECIMALS)
    if hypothesis.word_confidences:
        record["word_confidences"] = [
            {"word": word.word, "confidence": _round_confidence(word.confidence)}
            for word in hypothesis.word_confidences
        ]
    if hypothesis.expected_errors is not None:
        record["expected_errors"] = round(hypothesis.expected_errors, SCORE_DECIMALS)
    if hypothesis.merged_ranks:
        record["merged_ranks"] = [rank + 1 for rank in hypothesis.merged_ranks]
    return _add_client_fields(record, hypothesis.fields)


def _round_confidence(confidence: float | None) -> float | None:
    return None if confidence is None else round(confidence, CONFIDENCE_DECIMALS)


def _consensus_record(rescored: RescoredList) -> dict[str, Any]:
    if rescored.decision is None or rescored.decision.kind != "confusion_network":
        return {}
    rank = rescored.consensus_rank
    words = []
    for word in rescored.consensus:
        numbers = {"posterior": word.posterior, "start_s": word.start_s, "duration_s": word.duration_s}
        rounded = {name: round(value, SCORE_DECIMALS) for name, value in numbers.items() if value is not None}
        words.append({"word": word.word, **rounded})
    return {"consensus": words, "consensus_rank": None if rank is None else rank + 1}


def _reference_and_group(reference: str | None, group: str) -> dict[str, Any]:
    return ({} if reference is None else {"reference": reference}) | ({"group": group} if group else {})


def _add_client_fields(record: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with the client's fields added; fields that clash with keys of the record go under
    ``client``."""
    if not fields:
        return record
    clashing = record.keys() & fields.keys()
    if not clashing:
        return {**record, **fields}
    moved = {name: value for name, value in fields.items() if name in clashing or name == "client"}
    kept = {name: value for name, value in fields.items() if name not in moved}
    return {**record, **kept, "client": moved}


def _dump(record: dict[str, Any]) -> str:
    """Return a record as one line of JSON.

    orjson is fast, but writes NaN as null and rejects integers of more than 64 bits. The standard library
    encodes records whose client fields may contain either.
    """
    try:
        text = orjson.dumps(record)
    except TypeError:
        text = NULL
    return json.dumps(record, ensure_ascii=False) if NULL in text else text.decode()

"""Encode n-best lists and re-ranked lists as single lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import repeat
from typing import Any

import numpy as np
import orjson

from rescorer.formats.conversation_fields import generated_record, phrase_records, utterance_records
from rescorer.formats.rounding import round_all
from rescorer.ranking import Ranking
from rescorer.score_combination import weights_to_dict
from rescorer.types import MAXIMUM, NBestList, Weights

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
    record |= _conversation(nbest)
    record |= _reference_and_group(nbest.reference, nbest.group)
    return _dump(_add_client_fields(record, nbest.fields))


def encode_ranking(ranking: Ranking, weights: Weights, model: str) -> str:
    """Return a re-ranked list as one line without line end.

    Ranks count from 1; scores are rounded to ``SCORE_DECIMALS`` decimals.

    Args:
        weights: the weights of the totals.
        model: label of the bundle that scored the list.
    """
    nbest = ranking.nbest
    weights_record = weights_to_dict(weights)
    for key in UNREPEATED_WEIGHTS:
        weights_record.pop(key, None)
    record: dict[str, Any]
    record = {"id": nbest.id, "model": model, "weights": weights_record}
    record["hypotheses"] = _hypothesis_records(ranking)
    if ranking.decision is not None and ranking.decision != MAXIMUM:
        record["decision"] = asdict(ranking.decision)
        record |= _consensus_record(ranking)
    if ranking.dropped:
        record["dropped_ranks"] = [rank + 1 for rank in ranking.dropped]
    record |= _conversation(nbest)
    record |= _reference_and_group(nbest.reference, nbest.group)
    return _dump(_add_client_fields(record, nbest.fields))


def _hypothesis_records(ranking: Ranking) -> list[dict[str, Any]]:
    """Return a record per hypothesis, best first; all scores of the list are rounded at once."""
    order, names = list(ranking.order), list(ranking.components)
    hypotheses = [ranking.nbest.hypotheses[i] for i in order]
    scores = np.array([ranking.totals, ranking.log_posteriors, *ranking.components.values()])[:, order]
    totals, log_posteriors, *components = _round_scores(scores).tolist()
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
            {"word": word.word, "confidence": _round_confidence(word.confidence)}
            for word in ranking.word_confidences
        ]
    if ranking.expected_errors is not None:
        errors = _round_scores(ranking.expected_errors[order]).tolist()
        for record, expected_errors in zip(records, errors, strict=True):
            record["expected_errors"] = expected_errors
    if any(ranking.members):
        for record, i in zip(records, order, strict=True):
            record["merged_ranks"] = [member + 1 for member in ranking.members[i]]
    fields = [hypothesis.fields for hypothesis in hypotheses]
    return [*map(_add_client_fields, records, fields)] if any(fields) else records


def _round_scores(values: np.ndarray) -> np.ndarray:
    """Round to ``SCORE_DECIMALS`` decimals; adding 0.0 turns -0.0 into 0.0."""
    return round_all(values, SCORE_DECIMALS) + 0.0


def _round_confidence(confidence: float | None) -> float | None:
    return None if confidence is None else round(confidence, CONFIDENCE_DECIMALS)


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


def _conversation(nbest: NBestList) -> dict[str, Any]:
    """The context, previous utterances and phrases, as far as there are any."""
    record: dict[str, Any] = {"context": nbest.context} if nbest.context else {}
    record |= {"previous": utterance_records(nbest.previous)} if nbest.previous else {}
    return record | ({"phrases": phrase_records(nbest.phrases)} if nbest.phrases else {})


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

"""Re-ranked lists, and the slow, obvious way to write one: an object per hypothesis, number after number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rescorer.formats.jsonlines import CONFIDENCE_DECIMALS, UNREPEATED_WEIGHTS
from rescorer.formats.score_rows import SCORE_DECIMALS
from rescorer.ranking import Ranking, find_empty, ranking
from rescorer.types import (
    MAXIMUM,
    ConsensusWord,
    DecisionRule,
    Hypothesis,
    NBestList,
    PlainHypotheses,
    RescoredHypothesis,
    RescoredList,
    WordConfidence,
)
from rescorer.weights import weights_to_dict

FIELD_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["ü", "null"])


@st.composite
def rankings(draw: st.DrawFn, *, with_fields: bool = True) -> Ranking:
    """Rankings by any rule, with ties, merged and dropped hypotheses, and fields that clash with records'."""
    texts = draw(
        st.lists(
            st.sampled_from(["", "a", "a b", "b ü", "null", "%s", '","', 'a",', "\\\\", "a\tb", "a\x00"]),
            min_size=1,
            max_size=6,
        )
    )
    fields = st.dictionaries(st.sampled_from(["rank", "total", "client", "conf"]), FIELD_VALUES, max_size=2)
    fields = fields if with_fields else st.just({})
    n, scores = len(texts), st.floats(-1e7, 1e7) | st.sampled_from([0.0, -0.0, 0.0000005, -1.0000025, 2.5e-6])
    nbest = NBestList(
        "u1",
        PlainHypotheses(texts)
        if draw(st.booleans())
        else tuple(Hypothesis(text, draw(fields)) for text in texts),
        context=draw(st.sampled_from(["", "so"])),
        reference=draw(st.none() | st.just("a")),
        group=draw(st.sampled_from(["", "g"])),
        fields=draw(fields),
    )
    columns = [np.array(draw(st.lists(scores, min_size=n, max_size=n))) for _ in range(4)]
    words = [tuple(text.split()) for text in texts]
    ranked = ranking(
        nbest,
        {"acoustic": columns[0], "ngram": columns[1], "words": np.array([*map(len, words)], dtype=float)},
        columns[2],
        words if draw(st.booleans()) else None,
        find_empty(words) if draw(st.booleans()) else (),
    )
    if draw(st.booleans()):
        word_confidences = (WordConfidence("a", 0.51234567), WordConfidence("b", None))
        ranked = replace(ranked, confidence=0.98765432, word_confidences=word_confidences)
    if draw(st.booleans()):
        return replace(ranked, decision=DecisionRule("minimum_bayes_risk"), expected_errors=abs(columns[3]))
    consensus = (ConsensusWord("a", 0.1234567), ConsensusWord("b", 1.0, 0.1, 0.20000004))
    rule = draw(st.sampled_from([None, DecisionRule(), DecisionRule("confusion_network")]))
    return replace(
        ranked, decision=rule, consensus=consensus, consensus_position=draw(st.none() | st.integers(0, n - 1))
    )


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
    record |= {} if rescored.reference is None else {"reference": rescored.reference}
    record |= {"group": rescored.group} if rescored.group else {}
    return json.dumps(add_client_fields(record, rescored.fields), ensure_ascii=False)


def _rescored_hypothesis_record(hypothesis: RescoredHypothesis, rank: int) -> dict[str, Any]:
    components = hypothesis.components.items()  # adding 0.0 turns -0.0 into 0.0
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
    return add_client_fields(record, hypothesis.fields)


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


def add_client_fields(record: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with the client's fields; if one clashes, it goes under ``client``."""
    clashing = {name for name in fields if name in record}
    if not clashing:
        return {**record, **fields}
    clashing |= {"client"} & fields.keys()
    kept = {name: value for name, value in fields.items() if name not in clashing}
    return {**record, **kept, "client": {name: value for name, value in fields.items() if name in clashing}}

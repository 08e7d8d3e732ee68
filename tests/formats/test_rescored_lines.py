"""Re-ranked lists as JSON lines: written from columns as from an object per hypothesis."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rescorer.formats.jsonlines import encode_ranking
from rescorer.ranking import Ranking, find_empty, ranking
from rescorer.types import (
    ConsensusWord,
    DecisionRule,
    Hypothesis,
    NBestList,
    PlainHypotheses,
    Weights,
    WordConfidence,
)
from tests.support.rescored_lines import encode_rescored_list

FIELD_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["ü", "null"])
TEXTS = "", "a", "a b", "b ü", "null", "%s", '","', 'a",', "\\\\"


@st.composite
def rankings(draw: st.DrawFn) -> Ranking:
    """Rankings by any rule, with ties, merged and dropped hypotheses, and fields that clash with records'."""
    texts = draw(
        st.lists(
            st.sampled_from(["", "a", "a b", "b ü", "null", "%s", '","', 'a",', "\\\\"]),
            min_size=1,
            max_size=6,
        )
    )
    fields = st.dictionaries(st.sampled_from(["rank", "total", "client", "conf"]), FIELD_VALUES, max_size=2)
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


@given(rankings())
def test_encodes_a_ranking_as_its_hypotheses_one_by_one(ranked):
    weights = Weights("tuned", {"acoustic": 1.0}, tuned_on=("abc",))
    expected = encode_rescored_list(ranked.to_rescored_list(weights, "demo/3"))
    found = json.loads(encode_ranking(ranked, weights, "demo/3"))
    assert json.dumps(found) == json.dumps(json.loads(expected))

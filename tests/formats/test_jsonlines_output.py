"""Lists and rescored lists as JSON lines are written so that they are read again."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rescorer.formats.jsonlines import encode_list, encode_ranking
from rescorer.ranking import Ranking
from rescorer.types import Hypothesis, NBestList, Weights
from tests.support.list_lines import read

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.text("abcxyz", min_size=1, max_size=4)
KNOWN_FIELDS = {"id", "hypotheses", "context", "reference", "group", "text", "scores"}
CLIENT_FIELDS = st.dictionaries(
    WORDS.filter(lambda name: name not in KNOWN_FIELDS | {"format", "client"}),
    st.none() | st.booleans() | st.integers() | WORDS | st.lists(st.floats(-9, 9), max_size=3),
    max_size=3,
)


@st.composite
def nbest_lists(draw) -> NBestList:
    hypotheses = draw(st.lists(st.builds(Hypothesis, WORDS, CLIENT_FIELDS), min_size=1, max_size=4))
    values = st.lists(
        st.floats(allow_nan=False, allow_infinity=False), min_size=len(hypotheses), max_size=len(hypotheses)
    )
    return NBestList(
        id=draw(WORDS.filter(bool)),
        hypotheses=tuple(hypotheses),
        streams=draw(st.dictionaries(NAMES, values.map(tuple), max_size=3)),
        context=draw(WORDS),
        reference=draw(st.none() | WORDS),
        group=draw(WORDS),
        fields=draw(CLIENT_FIELDS),
    )


@given(st.lists(nbest_lists(), max_size=3))
def test_round_trip(lists):
    assert read(*map(encode_list, lists)) == lists


def test_encodes_rescored_list_with_ranks_from_one_and_rounded_scores():
    nbest = NBestList(
        "u1",
        (Hypothesis("a"), Hypothesis("b", {"conf": 0.5, "total": "x"})),
        reference="b ü",
        group="s1",
        fields={"job": 7, "client": 1, "id": "y"},
    )
    components = {"acoustic": np.array([0.0, 0.1 + 0.2]), "words": np.ones(2)}
    totals, log_posteriors = np.array([-np.inf, -1.23456789]), np.array([-np.inf, -1e-9])
    ranked = Ranking(nbest, [1], totals, log_posteriors, components, [(), ()])
    line = encode_ranking(ranked, Weights("tuned"), "demo/3")
    assert json.loads(line) == {
        "id": "u1",
        "model": "demo/3",
        "weights": {
            "name": "tuned",
            "streams": {},
            "lm": {"mixture": 1.0},
            "word": 0.0,
            "oov": 0.0,
            "mixture": {},
        },
        "hypotheses": [
            {
                "text": "b",
                "rank": 1,
                "original_rank": 2,
                "total": -1.234568,
                "log_posterior": 0.0,
                "components": {"acoustic": 0.3, "words": 1.0},
                "conf": 0.5,
                "client": {"total": "x"},
            }
        ],
        "reference": "b ü",
        "group": "s1",
        "job": 7,
        "client": {"client": 1, "id": "y"},
    }
    assert "ü" in line
    assert "\n" not in line

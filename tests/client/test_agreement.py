"""Both Python clients return the library's results, on random and on real lists."""

from __future__ import annotations

import asyncio
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import (
    Hypothesis,
    InputError,
    NBestList,
    RescoredList,
    Weights,
)
from rescorer.client import AsyncClient
from rescorer.errors import ModelNotFound
from rescorer.formats.fields import parse_field_map
from rescorer.formats.jsonlines import read_lists
from rescorer.jobs.files import LocalRescorer, rescore_lists
from tests.support.clients import make_list, rescore_async
from tests.support.rescored_lines import encode_rescored_list

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
"""float32 products differ in the last digits from batch to batch."""


def assert_same(answer, expected) -> None:
    """Compare answers; scores may differ by the tolerance, and hypotheses may swap ranks within it."""
    assert type(answer) is type(expected)
    if not isinstance(expected, RescoredList):
        place = (expected.list_id, expected.hypothesis, expected.field)
        assert (answer.list_id, answer.hypothesis, answer.field) == place
        return
    assert replace(answer, hypotheses=()) == replace(expected, hypotheses=())
    assert len(answer.hypotheses) == len(expected.hypotheses)
    by_original_rank = {hypothesis.original_rank: hypothesis for hypothesis in answer.hypotheses}
    for rank, expected_hypothesis in enumerate(expected.hypotheses):
        hypothesis = by_original_rank[expected_hypothesis.original_rank]
        assert (hypothesis.text, hypothesis.fields) == (expected_hypothesis.text, expected_hypothesis.fields)
        assert hypothesis.merged_ranks == expected_hypothesis.merged_ranks
        assert hypothesis.total == pytest.approx(expected_hypothesis.total, abs=TOLERANCE)
        assert hypothesis.log_posterior == pytest.approx(expected_hypothesis.log_posterior, abs=2 * TOLERANCE)
        assert hypothesis.components == pytest.approx(dict(expected_hypothesis.components), abs=TOLERANCE)
        assert answer.hypotheses[rank].total == pytest.approx(expected_hypothesis.total, abs=TOLERANCE)


texts = st.lists(
    st.sampled_from(["The", "cat", "sat,", "on", "mat", "zebra", "qqq", "<sil>", "é", "a_b"]), max_size=6
).map(" ".join)
numbers = st.one_of(st.floats(-1e4, 1e4), st.sampled_from([float("nan"), float("inf")]))
hypotheses = st.lists(
    st.tuples(texts, st.floats(-1e4, 1e4), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
    max_size=5,
)
weight = st.floats(-3, 3)


@st.composite
def lists(draw) -> NBestList:
    drawn_hypotheses = draw(hypotheses)
    scores = [score for _, score, _ in drawn_hypotheses]
    if scores and draw(st.integers(0, 5)) == 0:
        scores[-1] = draw(numbers)
    streams = {"acoustic": tuple(scores)} if draw(st.integers(0, 5)) else {}
    return NBestList(
        draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
        tuple(Hypothesis(text, fields) for text, _, fields in drawn_hypotheses),
        streams,
        draw(texts),
        draw(st.none() | texts),
        draw(texts),
        {"n": draw(st.integers())},
    )


@settings(max_examples=40, deadline=None)
@given(
    st.lists(lists(), max_size=6),
    st.none()
    | st.builds(
        Weights,
        st.sampled_from(["a", "b"]),
        st.fixed_dictionaries({"acoustic": weight}),
        st.fixed_dictionaries({"mixture": weight, "ngram": weight}),
        weight,
        weight,
    ),
    st.booleans(),
    st.booleans(),
)
def test_clients_rescore_like_the_library(library, server, client, some_lists, weights, merge, drop_empty):
    options = {"merge": merge, "drop_empty": drop_empty}
    expected_answers = library.rescore_each(some_lists, weights, **options)
    results = [
        client.rescore_each(some_lists, weights, **options),
        list(client.rescore_stream(some_lists, weights, **options)),
        *asyncio.run(rescore_async(server.target, some_lists, weights, **options)),
    ]
    for answers in results:
        for answer, expected in zip(answers, expected_answers, strict=True):
            assert_same(answer, expected)


def test_a_call_may_name_its_model(server, client):
    sent = [NBestList("u1", (Hypothesis("the cat"),), {"acoustic": (-1.0,)})]
    assert client.rescore(sent, model="tiny/1")[0].model == "tiny/1"
    with pytest.raises(ModelNotFound, match="other"):
        client.rescore(sent, model="other")
    with pytest.raises(ModelNotFound, match="other"):
        list(client.rescore_stream(sent, model="other"))


def test_clients_score_texts_like_the_library(library, server, client):
    texts = ["The dog", "", "qqq zebra"]
    weights = Weights(mixture={"ngram": 0.9, "neural": 0.1})

    async def score_async():
        async with AsyncClient(server.target) as client:
            return await client.score_text(texts, "the cat", weights)

    expected_scores = library.score_text(texts, "the cat", weights)
    for scores in (client.score_text(texts, "the cat", weights), asyncio.run(score_async())):
        for score, expected in zip(scores, expected_scores, strict=True):
            assert (score.text, score.words, score.unknown) == (
                expected.text,
                expected.words,
                expected.unknown,
            )
            assert score.log_probs.keys() == expected.log_probs.keys()
            for name, values in expected.log_probs.items():
                assert score.log_probs[name] == pytest.approx(values, abs=TOLERANCE)
    assert client.score_text([]) == []
    with pytest.raises(InputError, match="cannot be sent"):
        client.score_text(["\ud800"])


def test_threads_can_share_a_client(client, library):
    requests = [[make_list(f"u{i}", "the cat sat", f"the mat {i}")] for i in range(24)]
    with ThreadPoolExecutor(4) as pool:
        for lists, answers in zip(requests, pool.map(client.rescore, requests), strict=True):
            assert_same(answers[0], library.rescore(lists)[0])


@pytest.mark.data
def test_library_files_and_service_agree_on_real_lists(data_dir, library, client):
    names = parse_field_map(["hypotheses=hyps,reference=ref"], ["acoustic=am"])
    source = data_dir / "nbest" / "read-speech" / "moonshine-20best.jsonl.gz"
    lists = list(itertools.islice(read_lists(source, names), 100))
    assert len(lists) == 100
    expected_answers = library.rescore_each(lists)
    for answer, expected in zip(client.rescore_stream(lists), expected_answers, strict=True):
        assert_same(answer, expected)
        assert answer.best.text == expected.best.text
    lines: list[str] = []
    summary = rescore_lists(LocalRescorer(library), lists, lines.append)
    assert (summary.lists, summary.rejected) == (100, 0)
    for line, answer in zip(lines, client.rescore(lists), strict=True):
        assert_close(json.loads(encode_rescored_list(answer)), json.loads(line))


def assert_close(value, expected) -> None:
    """Compare JSON values; numbers may differ by twice the tolerance."""
    assert type(value) is type(expected)
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for key in expected:
            assert_close(value[key], expected[key])
    elif isinstance(expected, list):
        assert len(value) == len(expected)
        for item, expected_item in zip(value, expected, strict=True):
            assert_close(item, expected_item)
    elif isinstance(expected, float):
        assert value == pytest.approx(expected, abs=2 * TOLERANCE)
    else:
        assert value == expected

"""Batches: each list gets the same columns, however lists are cut and combined."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer import Hypothesis, NBestList, Phrase, RescoreOptions, Utterance, Weights
from rescorer.errors import InvalidList
from rescorer.pipeline import Rescorer
from rescorer.ranking import Ranking
from rescorer.scoring.batch import Batch, plan, split
from rescorer.scoring.components import PreparedList

WORDS = ("the", "cat", "dog", "sat", "on", "mat", "zebra", "quux")
OPTIONS = (
    RescoreOptions(),
    RescoreOptions(Weights("cached", {"acoustic": 1.0}, cache=0.2)),
    RescoreOptions(phrases=(Phrase("the quux", 2.0), Phrase("zebra"))),
)


@st.composite
def lists(draw):
    texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)
    made = []
    for index in range(draw(st.integers(1, 5))):
        chosen = draw(st.lists(texts, min_size=1, max_size=6))
        hypotheses = tuple(Hypothesis(text, partial=draw(st.booleans())) for text in chosen)
        previous = tuple(map(Utterance, draw(st.lists(texts, max_size=2))))
        streams = {"acoustic": tuple(-float(i) for i in range(len(chosen)))}
        made.append(NBestList(f"u{index}", hypotheses, streams, draw(texts), previous=previous))
    return made


@pytest.fixture(scope="module")
def rescorer(ngram_bundle):
    return Rescorer.load(ngram_bundle)


def run(rescorer, batch):
    request = batch.advance()
    while request is not None:
        request = batch.advance(rescorer.scorer.score(request.trie, request.models, request.encoders))
    return batch


def prepare(rescorer, made, options) -> list[PreparedList]:
    bound = rescorer.ranker.bind(options)
    return [rescorer.ranker.prepare(nbest, bound) for nbest in made]


@given(lists(), st.sampled_from(OPTIONS), st.integers(1, 40))
def test_columns_do_not_depend_on_how_lists_are_cut(rescorer, made, options, max_words):
    prepared = prepare(rescorer, made, options)
    for each in prepared:
        alone = run(rescorer, Batch(list(split(each, 1_000_000))))
        expected = rescorer.ranker.columns(each, [alone.part(0)])
        parts = [run(rescorer, Batch([part])).part(0) for part in split(each, max_words)]
        found = rescorer.ranker.columns(each, parts)
        assert list(found) == list(expected)
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-9, err_msg=name)


def test_a_list_that_fits_because_words_are_shared_is_not_reordered(rescorer):
    texts = ("the dog sat on the mat", "the cat sat", "the dog sat on the mat on", "a cat", "the dog sat")
    nbest = NBestList("u1", tuple(map(Hypothesis, texts)), {"acoustic": (0.0,) * len(texts)})
    (prepared,) = prepare(rescorer, [nbest], RescoreOptions())
    (part,) = split(prepared, 16)
    assert list(part.indices) != list(range(len(texts)))  # sorted, so that shared words are seen
    expected = rescorer.ranker.columns(prepared, [run(rescorer, Batch(list(split(prepared, 1000)))).part(0)])
    found = rescorer.ranker.columns(prepared, [run(rescorer, Batch([part])).part(0)])
    np.testing.assert_array_equal(found["mixture"], expected["mixture"])


@given(lists(), st.integers(1, 60))
def test_lists_of_different_options_share_a_batch(rescorer, made, seed):
    random_ = random.Random(seed)
    prepared = [
        rescorer.ranker.prepare(nbest, rescorer.ranker.bind(random_.choice(OPTIONS))) for nbest in made
    ]
    batch = run(rescorer, Batch([part for each in prepared for part in split(each, 1_000_000)]))
    for index, each in enumerate(prepared):
        alone = run(rescorer, Batch(list(split(each, 1_000_000)))).part(0)
        expected = rescorer.ranker.columns(each, [alone])
        found = rescorer.ranker.columns(each, [batch.part(index)])
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-9, err_msg=name)


@given(lists(), st.integers(1, 60))
def test_a_plan_has_every_hypothesis_once_and_lists_in_order(rescorer, made, max_words):
    prepared = prepare(rescorer, made, RescoreOptions())
    order = {id(each): index for index, each in enumerate(prepared)}
    batches = list(plan(prepared, max_words))
    seen = [
        (order[id(part.prepared)], index) for parts in batches for part in parts for index in part.indices
    ]
    assert sorted(seen) == [(i, row) for i, each in enumerate(prepared) for row in range(len(each.words))]
    assert [i for i, _ in seen] == sorted(i for i, _ in seen)
    for parts in batches:
        cost = sum(part.cost for part in parts)
        assert cost <= max_words or (len(parts) == 1 and len(parts[0].indices) == 1)


ODD = st.sampled_from([0.0, -0.0, 1e-5, -1e301, 1e300])


@given(lists(), st.lists(st.sampled_from([*OPTIONS, RescoreOptions(merge=True)])), st.data())
def test_lists_are_ranked_together_as_each_alone(rescorer, made, options, data):
    """Some lists are odd: with previous utterances, phrases, other streams, or totals that are too large."""
    bound, prepared = (
        [rescorer.ranker.bind(one) for one in (*options, RescoreOptions())],
        list[PreparedList](),
    )
    for nbest in made:
        streams = dict(nbest.streams)
        if data.draw(st.booleans()):
            streams["acoustic"] = tuple(data.draw(ODD) for _ in nbest.hypotheses)
        streams |= {"b": nbest.streams["acoustic"]} if data.draw(st.booleans()) else {}
        previous = nbest.previous if data.draw(st.booleans()) else ()
        changed = replace(nbest, streams=streams, previous=previous)
        prepared.append(rescorer.ranker.prepare(changed, data.draw(st.sampled_from(bound))))
    batch = run(rescorer, Batch([part for each in prepared for part in split(each, 1_000_000)]))
    scored = [(each, [batch.part(index)]) for index, each in enumerate(prepared)]
    for one, found in zip(scored, rescorer.ranker.rank_each(scored), strict=True):
        assert describe(found) == describe(rank_alone(rescorer, *one))


def rank_alone(rescorer, prepared, parts) -> Ranking | InvalidList:
    try:
        return rescorer.ranker.rank(prepared, parts)
    except InvalidList as error:
        return error


def describe(answer: Ranking | InvalidList) -> tuple[object, ...]:
    """An answer, with its numbers as bytes."""
    if isinstance(answer, InvalidList):
        return (str(answer),)
    columns = {"total": answer.totals, "log_posterior": answer.log_posteriors, **answer.components}
    numbers = [(name, values.tobytes()) for name, values in columns.items()]
    return answer.nbest, answer.order, answer.members, answer.decision, numbers


def test_mixtures_are_those_of_rescoring(rescorer):
    made = [
        NBestList("u1", (Hypothesis("the cat"), Hypothesis("the quux")), {"acoustic": (0.0, 0.0)}),
        NBestList("u2", (Hypothesis("a dog"),), {"acoustic": (0.0,)}, previous=(Utterance("the quux"),)),
    ]
    (name,) = rescorer.bundle.model_kinds
    log_probs = rescorer.mixture_log_probs(made, [{name: 1.0}, {name: 1.0}], cache=[0.0, 0.3])
    for row, cache in zip(log_probs, (0.0, 0.3), strict=True):
        weights = Weights("w", lm={"mixture": 1.0}, mixture={name: 1.0}, cache=cache)
        answers = rescorer.rank_each(made, weights)
        expected = np.concatenate([answer.components["mixture"] for answer in answers])
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-9)


class Tracked(NBestList):
    """A list of which a test asks whether it is still in memory."""

    __slots__ = ("__weakref__",)


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("steps", ["none", "started", "scored"])
def test_batches_keep_no_list_in_memory(rescorer, steps):
    nbest = Tracked("u1", (Hypothesis("the cat"),), {"acoustic": (0.0,)})
    is_alive = weakref.ref(nbest)
    batch = Batch(list(split(*prepare(rescorer, [nbest], RescoreOptions()), 100)))
    if steps == "started":
        batch.advance()
    part = run(rescorer, batch).part(0) if steps == "scored" else None
    del nbest
    if part is None:
        del batch
    assert is_alive() is None
    assert part is None or list(part.indices) == [0]


def test_texts_and_lists_may_be_none_at_all(rescorer):
    assert rescorer.score_text([]) == rescorer.rescore([]) == []

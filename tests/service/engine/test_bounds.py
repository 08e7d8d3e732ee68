"""What components state before they work is an upper bound of the steps that they take."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import DeadlineExceeded, InvalidList
from rescorer.extensions import make_ranker
from rescorer.models.bundle import read_bundle
from rescorer.phrases import STEPS_PER_COMPARISON, PhraseSearch
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.scoring.batch import Batch, split
from rescorer.service.api import rescoring
from rescorer.service.api.rescoring import prepare_lists, prepare_texts, search_cost
from rescorer.service.engine.engine import CallContext, Dispatcher
from rescorer.service.engine.request_bounds import TOKENS_PER_LEVEL, USUAL_WORDS, check_request, search_budget
from rescorer.service.settings import load_settings
from tests.support.small_dictionary import write_dictionary

SETTINGS = load_settings(bundle="b", max_words=12, max_batch_tokens=40)


@pytest.fixture(scope="module")
def ranker(ngram_bundle, tmp_path_factory):
    return make_ranker(read_bundle(ngram_bundle), write_dictionary(tmp_path_factory.mktemp("dictionary")))


WORDS = st.sampled_from(["rust", "rusk", "a", "call", "York,", "to(2)", "⁇", "a,b", "[NOISE]", "...", "ﬁ"])
TEXTS = st.lists(WORDS, max_size=9).map(" ".join)
SPOKEN = st.lists(st.sampled_from(["rust", "rusk", "call", "York,", "a,b"]), min_size=1, max_size=4)
WAYS = SPOKEN.map(" ".join)
PHRASES = st.lists(st.builds(pb.Phrase, text=WAYS, spellings=st.lists(WAYS, max_size=2)), max_size=4)
LISTS = st.builds(
    pb.NBestList,
    hypotheses=st.lists(st.builds(pb.Hypothesis, text=TEXTS, partial=st.booleans()), min_size=1, max_size=6),
    context=TEXTS,
    previous=st.lists(st.builds(pb.Utterance, text=TEXTS), max_size=2),
    phrases=PHRASES,
)
REQUESTS = st.builds(
    pb.RescoreRequest,
    lists=st.lists(LISTS, min_size=1, max_size=3),
    phrases=PHRASES,
    generate=st.booleans(),
    merge=st.booleans(),
    weights=st.just(pb.Weights(lm={"mixture": 1.0})),
)


@given(request=REQUESTS)
def test_searches_take_no_more_steps_than_stated(ranker, request):
    spent, searches = [], []

    def make_budget(*args):
        budget = search_budget(*args)
        spend = budget.spend
        budget.spend = lambda amount, what="": (spent.append(amount), spend(amount, what))
        return budget

    class Search(PhraseSearch):
        def __init__(self, *args):
            super().__init__(*args)
            searches.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rescoring, "search_budget", make_budget)
        patch.setattr("rescorer.phrases.PhraseSearch", Search)
        prepare_lists(ranker, request, SETTINGS)
    assert sum(STEPS_PER_COMPARISON * search.steps for search in searches) <= sum(spent)
    assert sum(spent) <= sum(component.steps_by_size(request) for component in ranker.components)
    assert search_cost(ranker, request) >= sum(spent) // rescoring.STEPS_PER_TOKEN


@given(request=REQUESTS)
def test_tries_are_no_larger_than_stated(ranker, request):
    prepared_request = prepare_lists(ranker, request, SETTINGS)
    for prepared in prepared_request.valid_lists:
        parts = list(split(prepared, SETTINGS.max_batch_tokens))
        for part in parts:
            trie = Batch([part]).trie
            assert trie.n_edges + sum(map(len, trie.contexts)) <= part.cost
            assert len(trie.levels()) <= SETTINGS.max_words + 3 * 9  # of generated hypotheses
    n_tokens = sum(len(words) + 1 for one in prepared_request.valid_lists for words in one.words)
    assert prepared_request.tokens >= n_tokens


@pytest.mark.parametrize("text", ["a," * 13, "a\u200bb " * 7, "(a)" * 13, "⁇" * 13])
def test_words_that_punctuation_separates_count(ranker, text):
    """A word of 200 kB was 100,000 words, which took a server 2 seconds, and 45 for 20 of them."""
    nbest = pb.NBestList(id="x", hypotheses=[pb.Hypothesis(text="a"), pb.Hypothesis(text=text)])
    weights = pb.Weights(lm={"mixture": 1.0})
    (error,) = prepare_lists(ranker, pb.RescoreRequest(lists=[nbest], weights=weights), SETTINGS).lists
    assert isinstance(error, InvalidList)
    assert (error.hypothesis, error.field) == (1, "text")
    assert error.message in (
        f"at least {n} words; expected at most 12 (max_words); punctuation separates words" for n in (13, 14)
    )
    nbest = pb.NBestList(id="x", hypotheses=[pb.Hypothesis(text="a")], context=text)
    (error,) = prepare_lists(ranker, pb.RescoreRequest(lists=[nbest], weights=weights), SETTINGS).lists
    assert error.field == "context"
    with pytest.raises(InvalidList, match="expected at most 12"):
        prepare_texts(ranker, pb.ScoreTextRequest(texts=[text]), SETTINGS)


def test_large_answers_are_not_made_in_the_event_loop(ranker):
    prepared_request = prepare_lists(ranker, pb.RescoreRequest(), SETTINGS)
    assert prepared_request.response_tokens(0) == 0
    assert prepared_request.response_tokens(SETTINGS.max_response_bytes) > 200_000


DEEP = pb.NBestList(id="x", hypotheses=[pb.Hypothesis(text="a " * 400)])
FLAT = pb.NBestList(id="x", hypotheses=[pb.Hypothesis(text="a " * 20)])


@pytest.mark.parametrize(
    ("lists", "n_batches"), [([DEEP], 1), ([DEEP, FLAT], 1), ([DEEP] * 5, 3), ([FLAT], 0)]
)
def test_networks_take_time_for_each_level_of_a_batch(ranker, lists, n_batches, monkeypatch):
    """A hypothesis of 400 words cost the models five times as much as it was admitted for."""
    settings = load_settings(bundle="b", max_batch_tokens=2001 if len(lists) < 5 else 999, max_words=400)
    message = pb.RescoreRequest(lists=lists, weights=pb.Weights(lm={"mixture": 1.0}))
    words = prepare_lists(ranker, message, settings).tokens
    kinds = {**ranker.bundle.model_kinds, "network": "neural"}
    monkeypatch.setattr(ranker, "bundle", replace(ranker.bundle, model_kinds=kinds))
    prepared_request = prepare_lists(ranker, message, settings)
    assert prepared_request.tokens == words + n_batches * TOKENS_PER_LEVEL * (400 - USUAL_WORDS)

    class Batcher:
        advice, costs, sizes = "", 0, 0

        def put(self, item, client, *, urgent=False):
            self.costs += item.cost
            self.sizes += item.size

        def cancel(self, items):
            pass

    batcher = Batcher()
    call = CallContext("client", "id", 0.0, 0.0)
    lists = prepared_request.valid_lists
    with pytest.raises(DeadlineExceeded):
        asyncio.run(Dispatcher(batcher, settings.max_batch_tokens).score_lists(ranker, lists, call))
    assert batcher.sizes == words
    assert prepared_request.tokens - len(lists) <= batcher.costs <= prepared_request.tokens


def test_values_that_an_answer_copies_count_as_its_bytes(ranker):
    fields = {"words": [{"word": "a"}] * 9}
    nbest = pb.NBestList(fields=fields, hypotheses=[pb.Hypothesis(text="a", fields=fields)])
    assert check_request(pb.RescoreRequest(lists=[nbest] * 2), SETTINGS) == 4 * (1 + 9 + 9)

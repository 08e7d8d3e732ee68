"""Work that is bounded or charged: searches for phrases, and readings of hypotheses with slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rescorer.errors import InputError, LimitExceeded
from rescorer.extensions import Phrases, make_ranker
from rescorer.models.bundle import read_bundle
from rescorer.phrases import PhraseSearch, compile_phrases, fill_slots, read_slots
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.scoring.components import PreparedList
from rescorer.service.api.rescoring import prepare_lists
from rescorer.service.engine.request_bounds import search_budget
from rescorer.service.settings import load_settings
from rescorer.trie import Words
from rescorer.types import Hypothesis, NBestList, Phrase
from tests.support.small_dictionary import write_dictionary

PHRASES = [pb.Phrase(text="rusk"), pb.Phrase(text="call rusk", spellings=["rust"])]


@pytest.fixture(scope="module")
def ranker(ngram_bundle, tmp_path_factory):
    return make_ranker(read_bundle(ngram_bundle), write_dictionary(tmp_path_factory.mktemp("dictionary")))


def request(n_lists: int = 1, *, generate: bool = False, texts: int = 3) -> pb.RescoreRequest:
    nbest = pb.NBestList(
        id="x",
        hypotheses=[pb.Hypothesis(text=f"please call rust{' at' * i}") for i in range(texts)],
        streams=[pb.ScoreStream(name="acoustic", base=1, sign=1, values=[0.0] * texts)],
        phrases=PHRASES,
    )
    return pb.RescoreRequest(lists=[nbest] * n_lists, generate=generate)


def count_steps(ranker, message, **settings) -> int:
    """The least limit of steps that admits a request."""
    low, high = 0, 1 << 30
    while high - low > 1:
        middle = (low + high) // 2
        limits = load_settings(bundle="b", max_search_steps=middle, **settings)
        try:
            (one, *_) = prepare_lists(ranker, message, limits).lists
        except LimitExceeded:
            one = None
        low, high = (low, middle) if isinstance(one, PreparedList) else (middle, high)
    return high


@pytest.mark.parametrize("generate", [False, True])
def test_searches_are_refused_before_they_begin(ranker, generate, monkeypatch):
    needed = count_steps(ranker, request(generate=generate))
    limits = load_settings(bundle="b", max_search_steps=needed - 1)
    if not generate:
        monkeypatch.setattr(PhraseSearch, "find", None)
    (error,) = prepare_lists(ranker, request(generate=generate), limits).lists
    assert (type(error), error.field) == (LimitExceeded, "phrases")
    assert f"expected at most {needed - 1} (max_search_steps); send fewer hypotheses or phrases" in str(error)


def test_lists_share_the_steps_of_a_message(ranker):
    needed = count_steps(ranker, request())
    limits = load_settings(bundle="b", max_search_steps=3 * needed - 1)
    assert len(prepare_lists(ranker, request(2), limits).valid_lists) == 2
    with pytest.raises(LimitExceeded, match="the first 3 of 4 lists could take") as error:
        prepare_lists(ranker, request(4), limits)
    assert error.value.field == "lists[2]"


def test_generating_counts_much_more_than_finding(ranker):
    assert count_steps(ranker, request(generate=True)) > 10 * count_steps(ranker, request())


def test_lists_without_phrases_spend_nothing(ranker):
    message = request()
    del message.lists[0].phrases[:]
    assert count_steps(ranker, message) == 1


def test_a_list_that_was_refused_leaves_the_rest_to_others():
    def limit(*lists: list[int]) -> Sequence[PreparedList | InputError]:
        budget = search_budget(len(lists), 100)

        def prepare(steps: list[int]) -> InputError:
            for amount in steps:
                budget.spend(amount)
            return InputError("prepared")

        return budget.each(lists, prepare)

    refused, prepared = limit([60, 60], [40])
    assert "finding its phrases could take 120 steps" in str(refused)
    assert str(prepared) == "prepared"
    with pytest.raises(LimitExceeded, match="the first 2 of 2 lists could take 101 steps"):
        limit([60, 60], [40, 1])


def split(text: str) -> Words:
    return tuple(text.split())


def test_readings_of_slots_are_charged():
    slots = ("$name", "$place")
    phrases = [compile_phrases([Phrase("ada lovelace", slot=slot) for slot in slots], split, slots)]
    phrases += [compile_phrases([Phrase("bath", slot="$place")], split, slots)]
    texts = ("call ada lovelace", "call ada lovelace", "ada lovelace of bath", "call")
    words, found = {text: split(text) for text in texts}, {}
    for text in texts:
        found[text] = fill_slots(phrases, words[text], PhraseSearch(phrases).find(words[text]), {})
    nbest = NBestList("u", tuple(map(Hypothesis, texts)))
    history = split("well then")
    component = Phrases(SimpleNamespace(slots={"ngram": frozenset(slots)}), split)
    matches = tuple(found[text] for text in texts)
    in_order = tuple(words[text] for text in texts)
    prepared = PreparedList(
        nbest, in_order, history, None, (component,), history=history, notes={"phrases": matches}
    )
    counted = component.tokens(prepared)
    assert counted == 3 * (3 + 1) + 6 * (4 + 1) + len(history)
    read = [
        len(reading.words) + 1
        for part in read_slots(prepared.words, [history] * 4, matches, [False] * 4)
        for hypothesis in part.hypotheses
        for reading in hypothesis.readings
    ]
    assert len(read) == 3 + 6
    assert counted - 2 * len(read) <= sum(read) + len(history) <= counted
    assert component.tokens(replace(prepared, notes={})) == 0

"""Topics of the text before each sentence: the same scores as one request after the other gets with them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.list_checks import join_history
from rescorer.models.neural import NeuralLanguageModel
from rescorer_training.evaluation import past_text
from rescorer_training.evaluation.past_text import find_topical_histories, infer_token_topics
from rescorer_training.evaluation.perplexity import score_tokens
from tests.models.test_topics import network_with_topics
from tests.support.reference_scorer import reference_log_probs
from tests.support.tiny_models import NETWORK_WORDS, random_network

WORDS = (*NETWORK_WORDS, "nobody")
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=9).map(tuple), min_size=1, max_size=8)
KINDS = [{"kind": "lstm"}, {"kind": "lbl", "window": 2, "activation": "linear"}]


@pytest.mark.parametrize("config", KINDS, ids=str)
def test_in_order_equals_one_request_after_the_other(config):
    model = NeuralLanguageModel(*network_with_topics(**config))

    @given(texts)
    def check(sentences):
        scores = score_tokens({"neural": model}, sentences, in_order=True).log_probs["neural"]
        expected = [
            reference_log_probs(model, words, join_history(sentences[:i], ()))
            for i, words in enumerate(sentences)
        ]
        np.testing.assert_allclose(scores, np.concatenate(expected), atol=1e-4)

    check()


@given(texts)
def test_tokens_have_the_topics_of_all_sentences_before_theirs(sentences):
    model = NeuralLanguageModel(*network_with_topics(kind="lstm", carried=True))
    topics = infer_token_topics(model, sentences)
    first = 0
    for i, words in enumerate(sentences):
        before = [model.words.encode(other) for other in sentences[:i]]
        expected = model.topics.features([np.concatenate([np.zeros(0, np.int64), *before])])
        np.testing.assert_allclose(
            topics[first : first + len(words) + 1], expected.expand(len(words) + 1, -1), atol=1e-6
        )
        first += len(words) + 1
    assert first == len(topics)


def test_carried_state_and_topics_do_not_depend_on_the_chunks(monkeypatch):
    model = NeuralLanguageModel(*network_with_topics(kind="lstm", carried=True))
    random = np.random.default_rng(0)
    sentences = [tuple(random.choice(WORDS, size=n).tolist()) for n in (5, 9, 0, 7, 8)]
    whole = score_tokens({"neural": model}, sentences, in_order=True).log_probs["neural"]
    monkeypatch.setattr(past_text, "MAX_CARRIED_TOKENS", 4)
    parts = score_tokens({"neural": model}, sentences, in_order=True).log_probs["neural"]
    np.testing.assert_allclose(parts, whole, atol=1e-5)
    alone = score_tokens({"neural": model}, sentences).log_probs["neural"]
    np.testing.assert_allclose(whole[:6], alone[:6], atol=1e-5)  # nothing comes before the first sentence


def test_models_without_topics_need_no_history():
    model = NeuralLanguageModel(*random_network())
    assert find_topical_histories(model, [("a",), ("b",)]) == [(), ()]
    assert infer_token_topics(model, [("a",)]) is None

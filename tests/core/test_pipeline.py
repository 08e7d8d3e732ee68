"""``Rescorer``, score combination, ranking and batching: from n-best lists to rescored lists."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rescorer import ConfigError, Hypothesis, InvalidList, NBestList, Rescorer, ScoringError, Weights
from rescorer.models.neural import NeuralLanguageModel
from rescorer.pipeline import TrieScorer
from rescorer.ranking import MAX_TOTAL, best_first, merge_equal, ranking
from rescorer.weights import parse_weights, weights_to_dict
from tests.support.reference_scorer import reference_log_probs, reference_mixture
from tests.support.tiny_models import write_bundle


@pytest.fixture(scope="module")
def rescorer(tmp_path_factory):
    return Rescorer.load(write_bundle(tmp_path_factory.mktemp("bundle")))


def nbest(*texts: str, acoustic=None, **fields) -> NBestList:
    scores = acoustic if acoustic is not None else [-1.0] * len(texts)
    return NBestList("u1", tuple(Hypothesis(text) for text in texts), {"acoustic": tuple(scores)}, **fields)


texts = st.lists(
    st.sampled_from(["The", "cat", "sat,", "on", "mat", "zebra", "qqq", "<sil>"]), max_size=6
).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.tuples(texts, st.floats(-1e6, 1e6)), min_size=1, max_size=5), min_size=1, max_size=4)
)
def test_totals_are_weighted_sums_of_reference_scores(rescorer, lists):
    models, normalise = rescorer.models, rescorer.bundle.normaliser.normalise
    weights = Weights(
        "w", {"acoustic": 0.5}, {"ngram": 0.3, "mixture": 2.0}, -0.7, -1.5, {"ngram": 0.4, "neural": 0.6}
    )
    sent = [nbest(*(text for text, _ in items), acoustic=[score for _, score in items]) for items in lists]
    for original, answer in zip(sent, rescorer.rescore(sent, weights), strict=True):
        assert sorted(h.original_rank for h in answer.hypotheses) == list(range(len(original.hypotheses)))
        for hypothesis in answer.hypotheses:
            words = normalise(original.hypotheses[hypothesis.original_rank].text)
            expected = (
                0.5 * original.streams["acoustic"][hypothesis.original_rank]
                + 0.3 * reference_log_probs(models["ngram"], words).sum()
                + 2.0 * reference_mixture(models, weights.mixture, words).sum()
                - 0.7 * len(words)
                - 1.5 * sum(word not in models["ngram"].vocabulary() for word in words)
            )
            assert hypothesis.total == pytest.approx(expected, abs=1e-3)
        totals = [round(h.total, 4) for h in answer.hypotheses]
        assert totals == sorted(totals, reverse=True)


def test_rescored_list_keeps_input_fields_and_adds_scores(rescorer):
    sent = nbest("the cat", "The CAT", reference="the cat", group="s1", fields={"tag": 7})
    answer = rescorer.rescore([sent])[0]
    assert (answer.id, answer.reference, answer.group, answer.fields) == ("u1", "the cat", "s1", {"tag": 7})
    assert answer.model == "tiny/1"
    assert answer.weights.name == "default"
    assert [h.text for h in answer.hypotheses] == [
        "the cat",
        "The CAT",
    ]  # texts unchanged, tie in input order
    assert set(answer.best.components) == {"acoustic", "ngram", "neural", "mixture", "words", "oov"}
    assert np.exp([h.log_posterior for h in answer.hypotheses]).sum() == pytest.approx(1.0)


def test_merging_adds_probabilities(rescorer):
    sent = nbest("the mat", "the cat", "The CAT!", acoustic=[-9, -1, -2])
    unmerged = rescorer.rescore([sent])[0]
    merged = rescorer.rescore([sent], merge=True)[0]
    assert [h.merged_ranks for h in merged.hypotheses] == [(1, 2), (0,)]
    assert merged.best.total == pytest.approx(
        np.logaddexp(unmerged.hypotheses[0].total, unmerged.hypotheses[1].total)
    )


def test_a_model_that_overflows_at_a_word_fails_only_the_lists_with_that_word(rescorer, monkeypatch):
    model = rescorer.models["neural"]

    def score(trie, projections=None):
        scores = NeuralLanguageModel.score(model, trie, projections)
        log_probs = scores.log_probs * (math.nan if "zebra" in trie.words else 1.0)
        return dataclasses.replace(scores, log_probs=log_probs)

    lists = [nbest("the cat"), nbest("zebra", "cat"), nbest("the mat", "cat")]
    expected = rescorer.rescore_each(lists)
    monkeypatch.setattr(model, "score", score)
    monkeypatch.setattr(rescorer, "max_batch_words", 4)  # the first list is a batch by itself
    answers = rescorer.rescore_each(lists)
    assert isinstance(answers[1], InvalidList)
    assert "model 'neural' of tiny/1 returned a score that is not finite" in str(answers[1])
    for i in (0, 2):
        assert answers[i].best.total == pytest.approx(expected[i].best.total, abs=1e-4)
    with pytest.raises(ScoringError, match="not finite"):  # of no list: then the model is to blame
        rescorer.rescore_each([nbest("zebra"), nbest("the zebra")])


def test_model_must_be_that_of_the_loaded_bundle(rescorer):
    """The clients of a server choose a model by call; a ``Rescorer`` has one, and says so."""
    lists, bundle = [nbest("the cat", "a cat")], rescorer.bundle
    for model in ("", bundle.name, bundle.label):
        assert rescorer.rescore(lists, model=model) == rescorer.rescore(lists)
    message = rf"model is 'other', but this Rescorer has loaded '{bundle.label}'.*Rescorer.load.*Client\("
    for call in (rescorer.rescore, rescorer.rescore_each):
        with pytest.raises(ConfigError, match=message):
            call(lists, model="other")


@pytest.mark.parametrize("merge", [False, True])
def test_drops_empty_hypotheses_and_accounts_for_all(rescorer, merge):
    sent = nbest("...", "the cat", "", "The cat!", "the mat", acoustic=[9, -1, 9, -2, -3])
    answer = rescorer.rescore([sent], merge=merge, drop_empty=True)[0]
    assert answer.dropped_ranks == (0, 2)
    kept = [h.merged_ranks or (h.original_rank,) for h in answer.hypotheses]
    assert sorted(rank for ranks in kept for rank in ranks) == [1, 3, 4]
    assert np.exp([h.log_posterior for h in answer.hypotheses]).sum() == pytest.approx(1.0)
    alone = rescorer.rescore([nbest("the cat", "The cat!", "the mat", acoustic=[-1, -2, -3])], merge=merge)[0]
    assert [h.text for h in answer.hypotheses] == [h.text for h in alone.hypotheses]
    assert answer.best.log_posterior == pytest.approx(alone.best.log_posterior)
    assert rescorer.rescore([sent])[0].dropped_ranks == ()


@pytest.mark.parametrize("merge", [False, True])
def test_the_first_of_only_empty_hypotheses_stays(rescorer, merge):
    answer = rescorer.rescore([nbest("", "-", "", acoustic=[-2, -1, 0])], merge=merge, drop_empty=True)[0]
    assert (len(answer.hypotheses), answer.best.original_rank, answer.dropped_ranks) == (1, 0, (1, 2))
    assert answer.best.merged_ranks == ((0,) if merge else ())
    assert answer.best.log_posterior == 0.0


def test_scores_empty_long_and_unknown_texts(rescorer):
    generator = np.random.default_rng(1)
    long = " ".join(generator.choice(["the", "cat", "sat", "on", "mat", "zzz"], size=1000))
    many = nbest(*(" ".join(generator.choice(["the", "cat", "sat"], size=5)) for _ in range(2000)))
    odd = nbest("", long, "qqq zzz", "<sil>")
    small = Rescorer(rescorer.bundle, rescorer.models, max_batch_words=50)
    for in_one_batch, in_many in zip(rescorer.rescore([odd, many]), small.rescore([odd, many]), strict=True):
        expected_total = {h.original_rank: h.total for h in in_one_batch.hypotheses}
        for h in in_many.hypotheses:
            assert h.total == pytest.approx(
                expected_total[h.original_rank], abs=1e-4 * (h.components["words"] + 1)
            )
    by_rank = {h.original_rank: h for h in rescorer.rescore([odd])[0].hypotheses}
    assert by_rank[0].components["words"] == by_rank[3].components["words"] == 0
    assert by_rank[0].total == by_rank[3].total  # a text of fillers only equals the empty text
    assert by_rank[2].components["oov"] == 2
    words = rescorer.bundle.normaliser.normalise(long)
    expected = reference_log_probs(rescorer.models["neural"], words).sum()
    assert by_rank[1].components["neural"] == pytest.approx(expected, abs=0.1)


def test_hypotheses_continue_their_context(rescorer):
    without_context, in_context = (
        rescorer.rescore([nbest("sat on", context=context)])[0].best.components["mixture"]
        for context in ("", "The cat")
    )
    scores = rescorer.score_text(["the cat sat on"])[0].log_probs["mixture"]
    assert in_context == pytest.approx(sum(scores[2:]), abs=1e-4)
    assert in_context != pytest.approx(without_context, abs=0.1)


NAN = float("nan")


@pytest.mark.parametrize(
    ("bad", "field", "hypothesis"),
    [
        (NBestList("b", ()), "hypotheses", None),
        (NBestList("b", (Hypothesis("a"),)), 'streams["acoustic"]', None),
        (NBestList("b", (Hypothesis("a"),), {"acoustic": (NAN,)}), 'streams["acoustic"]', 0),
        (NBestList("b", (Hypothesis("a"),), {"acoustic": (1.0, 2.0)}), 'streams["acoustic"]', None),
        (
            NBestList("b", (Hypothesis("a"), Hypothesis("b")), {"acoustic": (1.0, float("inf"))}),
            'streams["acoustic"]',
            1,
        ),
        (NBestList("b", (Hypothesis("a\t" * 100_001),), {"acoustic": (1.0,)}), "text", 0),
        (NBestList("b", (Hypothesis("a"),), {"acoustic": (1.0,)}, "a " * 100_001), "context", None),
        (NBestList("b", (Hypothesis("a"),), {"acoustic": (1.0,), "mixture": (1.0,)}), "streams", None),
    ],
)
def test_rejects_invalid_list_and_scores_its_neighbours(rescorer, bad, field, hypothesis):
    good = nbest("the cat")
    first, error, last = rescorer.rescore_each([good, bad, good])
    assert first == last == rescorer.rescore([good])[0]
    assert isinstance(error, InvalidList)
    assert (error.list_id, error.field, error.hypothesis) == ("b", field, hypothesis)
    with pytest.raises(InvalidList):
        rescorer.rescore([good, bad])


def test_rejects_list_whose_total_overflows(rescorer):
    huge = nbest("the cat", "the mat", acoustic=[1.0, 1e308])
    weights = Weights("w", {"acoustic": 10.0})
    error, answer = rescorer.rescore_each([huge, nbest("the cat")], weights)
    assert (error.hypothesis, "too large" in str(error)) == (1, True)
    assert answer.best.text == "the cat"


def test_stream_with_weight_zero_may_be_missing(rescorer):
    weights = dataclasses.replace(rescorer.bundle.weights["default"], streams={"acoustic": 0.0})
    assert rescorer.rescore([NBestList("u", (Hypothesis("the cat"),))], weights)[0].best.text == "the cat"


@pytest.mark.parametrize(
    "weights",
    [
        Weights("w", lm={"transformer": 1.0}),
        Weights("w", mixture={"ngram": 0.5}),
        Weights("w", mixture={"ngram": 1.5, "neural": -0.5}),
    ],
)
def test_rejects_weights_that_do_not_fit_the_bundle(rescorer, weights):
    with pytest.raises(ConfigError):
        rescorer.rescore([nbest("a")], weights)


@pytest.mark.parametrize(
    "values", [{"wrd": 1}, {"word": "a"}, {"word": NAN}, {"streams": {"a": True}}, {"lm": 3}]
)
def test_rejects_malformed_weights(values):
    with pytest.raises(ConfigError):
        parse_weights(values)


def test_weights_round_trip_through_plain_data():
    weights = Weights("w", {"a": 1.0}, {"mixture": 2.0}, 0.5, -1.0, {"ngram": 1.0}, ("f",))
    assert parse_weights(weights_to_dict(weights)) == weights


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_ranking_ignores_differences_below_tie_decimals(totals):
    totals = np.array(totals)
    order = best_first(totals)
    assert sorted(order) == list(range(len(totals)))
    keys = [(-round(float(totals[i]), 4) + 0.0, i) for i in order]
    assert keys == sorted(keys)


@given(
    st.lists(st.floats() | st.sampled_from([1.7e308, -1.7e308, 1e305, -1e300]), min_size=1, max_size=6),
    st.booleans(),
)
@example([33554432.0, 33554432.0], False)  # the log-sum-exp of these rounds ln 2 to a multiple of 7e-9
def test_ranks_or_rejects_totals_of_any_size(totals, merge):
    merge_by = range(len(totals)) if merge else None
    if not all(abs(total) <= MAX_TOTAL for total in totals):
        with pytest.raises(InvalidList, match="too large"):
            ranking(nbest(*map(str, totals)), {}, np.array(totals), merge_by)
        return
    ranked = ranking(nbest(*map(str, totals)), {}, np.array(totals), merge_by)
    assert all(-math.inf < log_posterior <= 1e-9 for log_posterior in ranked.log_posteriors)
    assert max(ranked.log_posteriors) >= -math.log(len(totals)) - 1e-9
    ranked_totals = [totals[i] for i in ranked.order]
    assert all(better >= worse - 1e-4 for better, worse in itertools.pairwise(ranked_totals))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-50, 0)), min_size=1, max_size=10))
def test_merging_preserves_total_probability(items):
    keys, totals = [k for k, _ in items], np.array([t for _, t in items])
    merged, members = merge_equal(keys, totals)
    assert np.logaddexp.reduce(merged) == pytest.approx(np.logaddexp.reduce(totals))
    assert sorted(i for group in members for i in group) == list(range(len(items)))


def test_splits_a_list_above_the_budget_between_subtrees(rescorer, monkeypatch):
    # Texts that share a prefix are not neighbours.
    texts = [
        f"{first} {'cat sat on ' * 4}{last}" for last in ("the", "mat", "qqq") for first in ("the", "mat")
    ]
    node_counts = []
    score = TrieScorer.score

    def count_nodes(self, trie, *arguments, **options):
        node_counts.append(trie.n_nodes)
        return score(self, trie, *arguments, **options)

    monkeypatch.setattr(TrieScorer, "score", count_nodes)
    small = Rescorer(rescorer.bundle, rescorer.models, max_batch_words=25)
    found = sorted(small.rescore([nbest(*texts)])[0].hypotheses, key=lambda h: h.original_rank)
    assert len(node_counts) > 1
    # The 2 × 16 prefixes are scored about once each; batches in input order would score 6 × 14.
    assert sum(node_counts) < 50
    alone = [small.rescore([nbest(text)])[0].best for text in texts]
    assert [h.total for h in found] == pytest.approx([h.total for h in alone], abs=1e-4)

"""Phrases of a list: their credits in totals, on every way in; lists without a match do not change at all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rescorer import (
    ConfigError,
    Hypothesis,
    InvalidList,
    LimitExceeded,
    NBestList,
    Phrase,
    Rescorer,
    Weights,
)
from rescorer.client import Client
from rescorer.formats.jsonlines import read_lists
from rescorer.weights import parse_weights, weights_to_dict
from tests.support.servers import run_server
from tests.support.tiny_models import write_bundle

TEXTS = ("the cat sat", "the mat on", "on the Mat!", "")
PHRASES = (Phrase("Mat on", 2.0), Phrase("nobody", spellings=("on the mat",)))
WEIGHTS = Weights(
    "w", {"acoustic": 1.0}, {"mixture": 0.5, "ngram": 0.25}, mixture={"ngram": 0.5, "neural": 0.5}
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bundle"), replace(WEIGHTS, name="default"))


@pytest.fixture(scope="module")
def rescorer(bundle):
    return Rescorer.load(bundle)


def make_list(*phrases: Phrase, id: str = "u") -> NBestList:
    scores = {"acoustic": (-1.0, -2.0, -3.0, -4.0)}
    return NBestList(id, tuple(map(Hypothesis, TEXTS)), scores, phrases=phrases)


def by_text(answer):
    return {hypothesis.text: hypothesis for hypothesis in answer.hypotheses}


def test_credits_are_added_to_totals(rescorer):
    with_phrases, without = map(by_text, rescorer.rescore([make_list(*PHRASES), make_list()]))
    credits = {"the cat sat": 0.0, "the mat on": 4.0, "on the Mat!": 3.0, "": 0.0}
    for text, credit in credits.items():
        assert with_phrases[text].components["phrases"] == credit
        assert with_phrases[text].total == pytest.approx(without[text].total + 0.75 * credit, abs=1e-6)
        assert "phrases" not in without[text].components


def test_weights_say_what_a_credit_is_worth(rescorer):
    weights = replace(WEIGHTS, phrases=10.0)
    with_phrases, without = map(by_text, rescorer.rescore([make_list(*PHRASES), make_list()], weights))
    difference = with_phrases["the mat on"].total - without["the mat on"].total
    assert difference == pytest.approx(40.0, abs=1e-6)
    (none,) = rescorer.rescore([make_list(*PHRASES)], replace(WEIGHTS, phrases=0.0))
    assert [h.total for h in none.hypotheses] == [
        h.total for h in rescorer.rescore([make_list()])[0].hypotheses
    ]


def test_list_without_a_match_is_answered_as_without_phrases(rescorer):
    answer, expected = rescorer.rescore([make_list(Phrase("dog"), Phrase("mat sat")), make_list()])
    assert answer == expected


def test_service_and_file_agree_with_the_library(run, bundle, rescorer, tmp_path):
    lists = [make_list(*PHRASES), make_list(Phrase("dog")), make_list()]
    expected = rescorer.rescore(lists)
    with run_server(bundle) as server, Client(server.target) as client:
        for found, same in zip(client.rescore(lists), expected, strict=True):
            for hypothesis, other in zip(found.hypotheses, same.hypotheses, strict=True):
                assert hypothesis.text == other.text
                assert hypothesis.components == pytest.approx(dict(other.components), abs=1e-4)
        shared, stream = client.rescore([make_list()], phrases=PHRASES), [make_list()] * 2
        assert shared[0].best.components["phrases"] == expected[0].best.components["phrases"]
        assert list(client.rescore_stream(stream, phrases=PHRASES)) == shared * 2
        with pytest.raises(LimitExceeded, match=r"phrases\[0\]\.text: ' ' has 0 words"):
            client.rescore([make_list()], phrases=[Phrase(" ")])
        with pytest.raises(ConfigError, match="phrase_lists names 'x'; the bundle has: none"):
            client.rescore([make_list()], phrase_lists=["x"])
        with pytest.raises(LimitExceeded, match=r"phrase_lists: more than 16 names; expected at most 16"):
            client.rescore([make_list()], phrase_lists=["x"] * 17)
        assert client.rescore([make_list()], phrases=[PHRASES[0].text]) == client.rescore(
            [make_list()], phrases=[Phrase(PHRASES[0].text)]
        )
    source, output = tmp_path / "lists.jsonl", tmp_path / "out.jsonl"
    line = {
        "id": "u",
        "hypotheses": [
            {"text": text, "scores": {"acoustic": score}}
            for text, score in zip(TEXTS, (-1, -2, -3, -4), strict=True)
        ],
        "phrases": [{"text": "Mat on", "weight": 2}, {"text": "nobody", "spellings": ["on the mat"]}],
    }
    source.write_text(json.dumps(line) + "\n")
    assert run("rescore", source, "-o", output, "--bundle", bundle)[0] == 0
    written = json.loads(output.read_text())
    assert written["phrases"] == [
        {"text": "Mat on", "weight": 2.0, "spellings": []},
        line["phrases"][1] | {"weight": 1.0},
    ]
    assert [h["text"] for h in written["hypotheses"]] == [h.text for h in expected[0].hypotheses]
    assert written["hypotheses"][0]["components"]["phrases"] == expected[0].best.components["phrases"]


@pytest.mark.parametrize(
    ("phrases", "field", "message"),
    [
        ({"text": "a"}, "phrases", "expected an array"),
        ([3], "phrases[0]", "expected a text, or an object"),
        ([{"weight": 1}], "phrases[0].text", "expected a string, got nothing"),
        (["a", {"text": "b", "weight": "x"}], "phrases[1].weight", "expected a number"),
        ([{"text": "b", "spellings": "x"}], "phrases[0].spellings", "expected an array of texts"),
        ([{"text": "b", "boost": 1}], "phrases[0]", "unknown key 'boost'"),
        (["a", "<sil>"], "phrases[1].text", "has 0 words; expected 1 to 16"),
        ([{"text": "b", "weight": -1}], "phrases[0].weight", "-1.0 for 'b'; expected a number above 0"),
    ],
)
def test_wrong_phrases_are_named_and_other_lists_rescored(rescorer, tmp_path, phrases, field, message):
    lines = [
        {"id": "bad", "hypotheses": [{"text": "a", "scores": {"acoustic": 0}}], "phrases": phrases},
        {"id": "good", "hypotheses": [{"text": "a", "scores": {"acoustic": 0}}]},
    ]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    items = list(read_lists(tmp_path / "lists.jsonl"))
    if isinstance(items[0], NBestList):
        items = rescorer.rescore_each(items)
    error, good = items
    assert isinstance(error, InvalidList)
    assert (error.list_id, error.field) == ("bad", field)
    assert message in str(error)
    assert good.id == "good"


def test_weight_of_phrases_is_kept_and_checked():
    weights = replace(WEIGHTS, phrases=0.0)
    assert parse_weights(weights_to_dict(weights)) == weights
    assert "phrases" not in weights_to_dict(WEIGHTS)
    for value in (-1, float("nan"), "x"):
        with pytest.raises(ConfigError, match=r"weights\.phrases"):
            parse_weights({"phrases": value})


def test_stream_cannot_have_the_name_of_the_credits(rescorer):
    nbest = replace(make_list(), streams={"phrases": (0.0,) * 4})
    with pytest.raises(InvalidList, match="reserved"):
        rescorer.rescore([nbest], Weights("w", {}, {"mixture": 1.0}))


def test_unknown_word_of_a_phrase_counts_as_known(rescorer):
    nbest = NBestList("u", (Hypothesis("the cat sat"), Hypothesis("the zyx sat")))
    weights = Weights("w", {}, {"mixture": 1.0}, oov=-5.0, mixture=WEIGHTS.mixture)
    known, unknown = rescorer.rescore([replace(nbest, phrases=(Phrase("zyx"),)), nbest], weights)
    with_phrase, without = by_text(known)["the zyx sat"], by_text(unknown)["the zyx sat"]
    assert (with_phrase.components["oov"], without.components["oov"]) == (0.0, 1.0)
    for name in ("ngram", "neural", "mixture"):
        assert with_phrase.components[name] >= without.components[name]
    assert with_phrase.components["ngram"] > without.components["ngram"]
    assert by_text(known)["the cat sat"].total == by_text(unknown)["the cat sat"].total
    phrase = (Phrase("zyx"),)
    answers = rescorer.rescore([replace(nbest, phrases=phrase), nbest], replace(weights, phrases=0.0))
    assert answers[0] == answers[1]  # a weight of 0 leaves phrases out altogether


def test_phrases_of_a_call_are_those_of_its_lists(rescorer):
    expected = rescorer.rescore([make_list(*PHRASES)])[0]
    (found,) = rescorer.rescore([make_list()], phrases=PHRASES)
    assert found == expected
    (both,) = rescorer.rescore([make_list(PHRASES[0])], phrases=PHRASES[1:])
    assert [h.total for h in both.hypotheses] == pytest.approx([h.total for h in expected.hypotheses])
    with pytest.raises(ConfigError, match="phrase_lists names 'names'; the bundle has: none"):
        rescorer.rescore([make_list()], phrase_lists=["names"])
    with pytest.raises(LimitExceeded, match=r"phrases\[0\]\.text: ' ' has 0 words"):
        rescorer.rescore([make_list()], phrases=[Phrase(" ")])

"""Generated hypotheses in totals and answers, on every way in; without them, answers do not change at all."""

from __future__ import annotations

import json
from dataclasses import replace

import grpc
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from rescorer import (
    ConfigError,
    Hypothesis,
    InvalidList,
    NBestList,
    Phrase,
    Rescorer,
    RescorerError,
    Weights,
    sounds,
)
from rescorer.client import Client
from rescorer.extensions import Generation
from rescorer.protocol.messages import weights_from_proto, weights_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.service.engine.request_bounds import check_response_size
from rescorer.sounds import load_pronouncer
from rescorer.weights import parse_weights, weights_to_dict
from tests.support.servers import run_server
from tests.support.small_dictionary import install_dictionary, write_dictionary
from tests.support.tiny_models import write_bundle

TEXTS = ("the cat sat", "the cats at", "")
WEIGHTS = Weights(
    "w", {"acoustic": 1.0}, {"mixture": 0.5, "ngram": 0.5}, mixture={"ngram": 0.5, "neural": 0.5}
)
WORDS = [
    {"word": "the", "start_s": 0.0, "duration_s": 0.5},
    {"word": "cat", "start_s": 0.5, "duration_s": 0.5},
    {"word": "sat", "start_s": 1.0, "duration_s": 0.5},
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bundle"), replace(WEIGHTS, name="default"))


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory):
    return write_dictionary(tmp_path_factory.mktemp("dictionary"))


@pytest.fixture(scope="module")
def rescorer(bundle, dictionary):
    rescorer = Rescorer.load(bundle)
    rescorer.ranker.component(Generation).dictionary = dictionary
    return rescorer


def make_list(*phrases: str, id: str = "u") -> NBestList:
    hypotheses = tuple(Hypothesis(text, {"words": WORDS} if i == 0 else {}) for i, text in enumerate(TEXTS))
    return NBestList(id, hypotheses, {"acoustic": (-1.0, -2.0, -4.0)}, phrases=tuple(map(Phrase, phrases)))


def by_text(answer):
    return {hypothesis.text: hypothesis for hypothesis in answer.hypotheses}


def test_generated_hypotheses_have_the_scores_of_their_source_and_are_marked(rescorer):
    (answer,) = rescorer.rescore([make_list("Mat")], generate=True)
    found = by_text(answer)
    new = found["the Mat sat"]
    made = new.generated
    assert (made.source, made.heard, made.phrase, made.phones) == (0, "cat", "Mat", 3)
    assert new.original_rank >= 3
    assert new.components["acoustic"] == -1.0
    assert new.components["generated"] == 1.0
    assert new.components["sound_match"] == made.phones - 5 * made.distance
    assert new.fields["words"] == [WORDS[0], {**WORDS[1], "word": "Mat"}, WORDS[2]]
    for text in TEXTS:
        assert found[text].generated is None
        assert found[text].components["generated"] == found[text].components["sound_match"] == 0.0


def test_models_score_the_new_text(rescorer):
    (answer,) = rescorer.rescore([make_list("Mat")], generate=True)
    (expected,) = rescorer.rescore([NBestList("u", (Hypothesis("the Mat sat"),), {"acoustic": (-1.0,)})])
    new = by_text(answer)["the Mat sat"]
    for name in ("mixture", "ngram", "neural", "oov", "words"):
        assert new.components[name] == pytest.approx(expected.best.components[name], abs=1e-5)


def test_weights_say_what_a_generated_hypothesis_is_worth(rescorer):
    weights = replace(WEIGHTS, generated=-7.0, sound_match=2.0, phrases=0.0)
    (answer,) = rescorer.rescore([make_list("Mat")], weights, generate=True)
    new = by_text(answer)["the Mat sat"]
    parts = new.components
    expected = -1.0 + 0.5 * parts["mixture"] + 0.5 * parts["ngram"] - 7.0 + 2.0 * parts["sound_match"]
    assert new.total == pytest.approx(expected)
    (by_default,) = rescorer.rescore([make_list("Mat")], replace(weights, generated=None), generate=True)
    difference = by_text(by_default)["the Mat sat"].total - new.total
    assert difference == pytest.approx(-3.5 + 7.0)
    assert parse_weights(weights_to_dict(weights)) == weights
    assert not {"generated", "sound_match"} & weights_to_dict(WEIGHTS).keys()
    assert weights_from_proto(weights_to_proto(weights)) == weights


@pytest.mark.parametrize(
    ("name", "value"), [("generated", float("nan")), ("sound_match", -1), ("generated", "x")]
)
def test_wrong_weights_are_named(name, value):
    with pytest.raises(ConfigError, match=rf"weights\.{name}"):
        parse_weights({name: value})


def test_lists_for_which_nothing_is_made_are_answered_as_before(rescorer):
    lists = [make_list(), make_list("canoe"), make_list("cat sat")]
    assert rescorer.rescore(lists, generate=True) == rescorer.rescore(lists)
    assert rescorer.rescore([make_list("Mat")]) != rescorer.rescore([make_list("Mat")], generate=True)
    for answer in rescorer.rescore([make_list("Mat")]):
        assert not {"generated", "sound_match"} & answer.best.components.keys()


def test_generated_hypotheses_merge_and_take_part_in_rules(rescorer):
    (answer,) = rescorer.rescore([make_list("Mat")], generate=True, merge=True, drop_empty=True)
    ranks = {rank for hypothesis in answer.hypotheses for rank in hypothesis.merged_ranks}
    assert ranks | set(answer.dropped_ranks) == set(
        range(len(TEXTS) + len([1 for h in answer.hypotheses if h.generated]))
    )


def test_names_of_the_components_are_reserved(rescorer):
    for name in ("generated", "sound_match"):
        nbest = replace(make_list(), streams={name: (0.0,) * 3})
        with pytest.raises(InvalidList, match="reserved"):
            rescorer.rescore([nbest], Weights("w", {}, {"mixture": 1.0}))


def as_line(nbest: NBestList) -> str:
    hypotheses = [
        {"text": h.text, "scores": {"acoustic": score}, **h.fields}
        for h, score in zip(nbest.hypotheses, nbest.streams["acoustic"], strict=True)
    ]
    return json.dumps({"id": nbest.id, "hypotheses": hypotheses, "phrases": [p.text for p in nbest.phrases]})


@pytest.mark.slow
def test_service_agrees_with_the_library(bundle, rescorer, tmp_path, monkeypatch):
    install_dictionary(tmp_path, monkeypatch)
    lists = [make_list("Mat"), make_list(), make_list("canoe", "yolk"), make_list("Mat", "Sat at")]
    lists[3] = replace(lists[3], hypotheses=(*lists[3].hypotheses[:2], Hypothesis("a cat the cats at")))
    expected = rescorer.rescore(lists, generate=True)
    with run_server(bundle) as server, Client(server.target) as client:
        answers = client.rescore(lists, generate=True)
        shared = client.rescore([make_list()], phrases=[Phrase("Mat")], generate=True)
        streamed = list(client.rescore_stream(lists, generate=True))
        without = client.rescore(lists)
    assert any(h.generated and h.generated.further for h in expected[3].hypotheses)
    assert [answer.hypotheses for answer in answers] == [answer.hypotheses for answer in streamed]
    for found, same in zip([*answers, *shared], [*expected, expected[0]], strict=True):
        for hypothesis, other in zip(found.hypotheses, same.hypotheses, strict=True):
            assert (hypothesis.text, hypothesis.generated) == (other.text, other.generated)
            assert (hypothesis.original_rank, hypothesis.fields) == (other.original_rank, other.fields)
            assert hypothesis.components == pytest.approx(dict(other.components), abs=1e-4)
    assert all(h.generated is None for answer in without for h in answer.hypotheses)


@pytest.mark.slow
def test_service_returns_the_times_of_new_words(bundle, rescorer, tmp_path, monkeypatch):
    install_dictionary(tmp_path, monkeypatch)
    request = {
        "lists": [
            {
                "id": "u",
                "hypotheses": [{"text": "the cat sat", "fields": {"words": WORDS, "x": "y"}}],
                "streams": [
                    {"name": "acoustic", "base": "LOG_BASE_E", "sign": "SCORE_SIGN_LOG_PROB", "values": [-1]}
                ],
                "phrases": [{"text": "Mat"}],
            }
        ],
        "generate": True,
    }
    with run_server(bundle) as server, grpc.insecure_channel(server.target) as channel:
        message = ParseDict(request, pb.RescoreRequest())
        response = RescorerServiceStub(channel).Rescore(message, timeout=30)
    assert response.ByteSize() <= check_response_size(message, message.ByteSize(), rescorer.ranker, 1 << 30)
    (new,) = (h for h in response.lists[0].hypotheses if h.text == "the Mat sat")
    assert MessageToDict(new.fields) == {"words": [WORDS[0], {**WORDS[1], "word": "Mat"}, WORDS[2]], "x": "y"}
    made = new.generated
    assert (made.source_rank, made.first_word, made.last_word) == (1, 2, 2)
    assert (made.heard, made.phrase, made.phones) == ("cat", "Mat", 3)


@pytest.mark.slow
def test_server_without_a_dictionary_says_what_is_missing(bundle, monkeypatch):
    monkeypatch.setattr(sounds, "PACKAGE", "no_such_package")
    load_pronouncer.cache_clear()
    with run_server(bundle) as server, Client(server.target) as client:
        with pytest.raises(RescorerError, match=r"there is no pronunciation dictionary.*rescorer\[sounds\]"):
            client.rescore([make_list("Mat")], generate=True)
        assert client.rescore([make_list("Mat")])[0].best


@pytest.mark.slow
def test_server_reads_the_dictionary_of_its_setting_before_it_serves(
    bundle, dictionary, rescorer, tmp_path, monkeypatch
):
    monkeypatch.setattr(sounds, "PACKAGE", "no_such_package")
    load_pronouncer.cache_clear()
    with run_server(bundle, dictionary=dictionary) as server, Client(server.target) as client:
        pronouncer = load_pronouncer(dictionary)
        assert load_pronouncer.cache_info().hits == 1
        assert "_rules" in vars(pronouncer)
        answers = client.rescore([make_list("Mat")], generate=True)
        assert load_pronouncer.cache_info().misses == 1
    expected = rescorer.rescore([make_list("Mat")], generate=True)
    assert [h.text for h in answers[0].hypotheses] == [h.text for h in expected[0].hypotheses]
    bad = tmp_path / "bad.dict"
    bad.write_text("cat QQ\n")
    wrong = pytest.raises(ConfigError, match=r"dictionary .*bad.dict:1: unknown phone 'QQ'")
    with run_server(bundle, load=False, dictionary=bad) as server, wrong:
        server.load()


def test_file_agrees_with_the_library(run, bundle, dictionary, rescorer, tmp_path):
    nbest = make_list("Mat")
    (expected,) = rescorer.rescore([nbest], generate=True)
    source, output = tmp_path / "lists.jsonl", tmp_path / "out.jsonl"
    source.write_text(as_line(nbest) + "\n")
    options = ("--bundle", bundle, "--generate", "--dictionary", dictionary)
    assert run("rescore", source, "-o", output, *options)[0] == 0
    written = json.loads(output.read_text())
    assert [h["text"] for h in written["hypotheses"]] == [h.text for h in expected.hypotheses]
    for record, hypothesis in zip(written["hypotheses"], expected.hypotheses, strict=True):
        made = hypothesis.generated
        if made is None:
            assert "generated" not in record
        else:
            further = record["generated"].pop("further", [])
            assert [part["phrase"] for part in further] == [part.phrase for part in made.further]
            assert record["generated"] == {
                "source_rank": made.source + 1,
                "first_word": made.start + 1,
                "last_word": made.end,
                "heard": made.heard,
                "phrase": made.phrase,
                "distance": made.distance,
                "phones": made.phones,
            }
    new = next(h for h in written["hypotheses"] if h["text"] == "the Mat sat")
    assert [word["word"] for word in new["words"]] == ["the", "Mat", "sat"]


def test_wrong_dictionaries_end_the_command(run, bundle, tmp_path):
    source, bad = tmp_path / "lists.jsonl", tmp_path / "bad.dict"
    source.write_text(as_line(make_list("Mat")) + "\n")
    bad.write_text("cat QQ\n")
    code, _, errors = run("rescore", source, "--bundle", bundle, "--dictionary", bad)
    assert code == 2
    assert "--generate" in errors
    code, _, errors = run("rescore", source, "--bundle", bundle, "--generate", "--dictionary", bad)
    assert code == 2
    assert "unknown phone 'QQ'" in errors

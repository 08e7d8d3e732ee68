"""Decision rules over gRPC: what a request may ask for, what the answer says, and what is refused."""

from __future__ import annotations

import asyncio
import json
import math

import grpc
import pytest

from rescorer import Calibration, ConfidenceMap, ConfigError, DecisionRule, Hypothesis, NBestList, Weights
from rescorer.extensions import make_ranker
from rescorer.models.bundle import read_bundle
from rescorer.protocol.messages import decision_from_proto, decision_to_proto, rescored_from_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.api.rescoring import prepare_lists
from rescorer.service.engine.offloader import SMALL_TOKENS
from rescorer.service.settings import load_settings
from rescorer.types import MAXIMUM
from rescorer.weights import weights_to_dict
from tests.support.clients import rescore_async
from tests.support.rescored_lines import encode_rescored_list
from tests.support.stubs import make_list_message

STEPS = 50_000
STREAM_ONLY = Weights("stream", {"acoustic": 1.0}, {"mixture": 0.0})
MBR = DecisionRule("minimum_bayes_risk", "character", 2.0)
NETWORK = DecisionRule("confusion_network", temperature=3.0)
LISTS = [
    NBestList(
        "u1",
        tuple(map(Hypothesis, ("The cat, sat", "the hat sad", "a cat sad"))),
        {"acoustic": (0.0, -0.3, -0.3)},
    ),
    NBestList("u2", (Hypothesis(""), Hypothesis("the")), {"acoustic": (0.0, -1.0)}),
]


@pytest.fixture(scope="module")
def server_settings():
    return {"max_decision_steps": STEPS}


@pytest.mark.parametrize("rule", [MAXIMUM, MBR, NETWORK])
def test_rules_survive_a_round_trip(rule):
    assert decision_from_proto(decision_to_proto(rule)) == rule


def test_absent_values_have_the_defaults_of_the_library():
    assert decision_from_proto(pb.DecisionRule()) == DecisionRule()
    with pytest.raises(ConfigError, match=r"decision\.kind is '17'"):
        decision_from_proto(pb.DecisionRule(kind=17))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [None, MAXIMUM, MBR, NETWORK])
def test_clients_decide_like_the_library(library, server, client, rule):
    expected_answers = library.rescore(LISTS, STREAM_ONLY, decision=rule)
    for answers in (
        client.rescore(LISTS, STREAM_ONLY, decision=rule),
        list(client.rescore_stream(LISTS, STREAM_ONLY, decision=rule)),
        *asyncio.run(rescore_async(server.target, LISTS, STREAM_ONLY, decision=rule)),
    ):
        for answer, expected in zip(answers, expected_answers, strict=True):
            assert answer.decision == expected.decision == (rule or MAXIMUM)
            assert answer.consensus == expected.consensus
            assert answer.consensus_rank == expected.consensus_rank
            for hypothesis, other in zip(answer.hypotheses, expected.hypotheses, strict=True):
                assert hypothesis.original_rank == other.original_rank
                assert hypothesis.expected_errors == pytest.approx(other.expected_errors)


@pytest.mark.parametrize("rule", [MAXIMUM, MBR, NETWORK])
@pytest.mark.parametrize("select", [{}, {"merge": True, "drop_empty": True}])
def test_files_library_and_service_agree(run, library, client, bundle, tmp_path, rule, select):
    curve = ConfidenceMap(3.0, (0.1, 0.9), (0.2, 0.8))
    weights = Weights(
        "w", {"acoustic": 1.0}, {"mixture": 0.5}, decision=rule, calibration=Calibration(curve, curve)
    )  # fmt: skip
    texts = ("The cat, sat", "the hat sad", "a cat sad", "", "the cat sat")
    scores = (0.0, -0.3, -0.3, -1.0, -0.1)
    nbest = NBestList("u1", tuple(map(Hypothesis, texts)), {"acoustic": scores})
    (expected,) = library.rescore([nbest], weights, **select)
    (served,) = client.rescore([nbest], weights, **select)
    rows = [{"text": t, "scores": {"acoustic": s}} for t, s in zip(texts, scores, strict=True)]
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "u1", "hypotheses": rows}) + "\n")
    (tmp_path / "w.json").write_text(json.dumps(weights_to_dict(weights)))
    source, output, weights_file = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "w.json"))
    options = ("--weights", weights_file, *(("--merge", "--drop-empty") if select else ()))
    assert run("rescore", source, "-o", output, "--bundle", bundle, *options)[0] == 0
    plain = [
        json.loads(output.read_text()),
        *(json.loads(encode_rescored_list(answer)) for answer in (expected, served)),
    ]
    for exact in (get_merged_ranks, lambda answer: (answer.get("decision"), answer.get("consensus_rank"))):
        assert exact(plain[0]) == exact(plain[1]) == exact(plain[2])
    for name in ("original_rank", "total", "expected_errors", "confidence"):
        found = [[hypothesis.get(name) for hypothesis in answer["hypotheses"]] for answer in plain]
        assert found[0] == pytest.approx(found[1], abs=1e-3)
        assert found[2] == pytest.approx(found[1], abs=1e-3)
    for name, number in (("consensus", "posterior"), ("word_confidences", "confidence")):
        parts = [answer["hypotheses"][0] if name == "word_confidences" else answer for answer in plain]
        words = [part.get(name, []) for part in parts]
        assert [[word["word"] for word in part] for part in words] == [[w["word"] for w in words[1]]] * 3
        for part in words:
            assert [w[number] for w in part] == pytest.approx([w[number] for w in words[1]], abs=1e-3)


def get_merged_ranks(answer):
    return [hypothesis.get("merged_ranks") for hypothesis in answer["hypotheses"]]


def test_weights_carry_their_rule(client):
    weights = Weights("stream", {"acoustic": 1.0}, {"mixture": 0.0}, decision=MBR)
    (answer,) = client.rescore(LISTS[:1], weights)
    assert (answer.decision, answer.weights.decision) == (MBR, MBR)
    (answer,) = client.rescore(LISTS[:1], weights, decision=MAXIMUM)
    assert (answer.decision, answer.weights.decision) == (MAXIMUM, MBR)
    assert answer.best.expected_errors is None


def test_times_of_the_fields_reach_the_consensus(stub):
    message = make_list_message(texts=["The", "the"])
    for hypothesis, start_s in zip(message.hypotheses, (0.5, 1.0), strict=True):
        words = [{"word": hypothesis.text, "start_s": start_s, "duration_s": 0.25}]
        hypothesis.fields.update({"words": words})
    rule = pb.DecisionRule(kind=pb.DECISION_KIND_CONFUSION_NETWORK)
    response = stub.Rescore(
        pb.RescoreRequest(lists=[message], decision=rule, weights=pb.Weights(streams={"acoustic": 0.0}))
    )
    (word,) = response.lists[0].consensus
    assert (word.word, word.posterior) == ("the", pytest.approx(1.0))
    assert (word.start_s, word.duration_s) == pytest.approx((0.75, 0.25))
    assert response.decision == pb.DecisionRule(
        kind=pb.DECISION_KIND_CONFUSION_NETWORK, unit=pb.ERROR_UNIT_WORD, temperature=1.0
    )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (pb.DecisionRule(temperature=-1.0), "decision.temperature is -1.0"),
        (pb.DecisionRule(kind=pb.DECISION_KIND_MAXIMUM, temperature=math.nan), "decision.temperature is nan"),
        (pb.DecisionRule(temperature=math.inf), "decision.temperature is inf"),
        (pb.DecisionRule(unit=9), "decision.unit is '9'"),  # type: ignore[arg-type]
        (
            pb.DecisionRule(kind=pb.DECISION_KIND_CONFUSION_NETWORK, unit=pb.ERROR_UNIT_CHARACTER),
            "decides word by word",
        ),
    ],
)
def test_refuses_invalid_rules(stub, rule, message):
    with pytest.raises(grpc.RpcError) as error:
        stub.Rescore(pb.RescoreRequest(lists=[make_list_message()], decision=rule))
    assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert message in error.value.details()


def test_refuses_what_would_take_too_long(stub):
    """A list that takes too long alone gets an error of its own; lists that do so together are refused."""
    rule = pb.DecisionRule(kind=pb.DECISION_KIND_MINIMUM_BAYES_RISK)
    texts = [f"the {'cat ' * (i % 3)}sat" for i in range(400)]
    long, short = (make_list_message(texts=texts[:n], values=[0.0] * n) for n in (400, 100))
    long_answer, short_answer = stub.Rescore(pb.RescoreRequest(lists=[long, short], decision=rule)).lists
    assert "expected at most 50000 (max_decision_steps)" in long_answer.status.message
    assert short_answer.status.code == 0
    assert stub.Rescore(pb.RescoreRequest(lists=[long])).lists[0].status.code == 0
    with pytest.raises(grpc.RpcError) as error:
        stub.Rescore(pb.RescoreRequest(lists=[short] * 4, decision=rule))
    assert "minimum_bayes_risk of the first" in error.value.details()
    assert "per message" in error.value.details()


def test_networks_of_large_fields_are_decided_in_threads(ngram_bundle):
    """Reading 10,000 times of words takes tenths of a second, although the text has one word."""
    message = make_list_message(texts=["the"])
    message.hypotheses[0].fields.update({"words": [{"word": "<s>", "start_s": 0, "duration_s": 0}] * 10_000})
    ranker, settings = make_ranker(read_bundle(ngram_bundle)), load_settings(bundle=ngram_bundle)

    def count_tokens(kind: pb.DecisionKind) -> int:
        request = pb.RescoreRequest(lists=[message], decision=pb.DecisionRule(kind=kind))
        return prepare_lists(ranker, request, settings).decision_tokens

    assert count_tokens(pb.DECISION_KIND_CONFUSION_NETWORK) > SMALL_TOKENS
    assert count_tokens(pb.DECISION_KIND_MINIMUM_BAYES_RISK) == 0


def test_lists_in_first_pass_order_say_that_no_rule_was_applied():
    message = pb.RescoredList(id="u1", degradation=pb.DEGRADATION_FIRST_PASS)
    message.hypotheses.add(text="The cat, sat", rank=1, original_rank=1)
    answer = rescored_from_proto(message, LISTS[0], Weights(), "tiny/1", MBR)
    assert answer.decision is None
    message.degradation = pb.DEGRADATION_NGRAM
    assert rescored_from_proto(message, LISTS[0], Weights(), "tiny/1", MBR).decision == MBR

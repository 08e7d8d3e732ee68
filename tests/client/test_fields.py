"""Word times, confidences and the client's own fields are returned unchanged by all interfaces."""

from __future__ import annotations

import json
import sys

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import (
    Hypothesis,
    InvalidList,
    NBestList,
    RescoredHypothesis,
    RescoredList,
    Weights,
)
from rescorer.cli import main
from rescorer.formats.jsonlines import encode_list, read_lists
from rescorer.formats.nist import read_ctm_lists
from rescorer.formats.rescored import extract_best, rescored_writer
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub

TIMES_S = st.floats(0, 1e6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9) | st.text('aé\n"'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.dictionaries(st.sampled_from(["confidence", "job", "total", "client", "rank"]), JSON)
WORDS = st.lists(st.sampled_from(["the", "Cat", "sat", "zork", "<sil>"]), max_size=4)


@st.composite
def timed_hypotheses(draw) -> Hypothesis:
    words = draw(WORDS)
    times = [
        {"word": word, "start_s": draw(TIMES_S), "duration_s": draw(TIMES_S)}
        | draw(st.just({}) | st.builds(lambda value: {"confidence": value}, st.floats(0, 1)))
        for word in words
    ]
    return Hypothesis(" ".join(words), draw(FIELDS) | {"words": times})


@st.composite
def timed_lists(draw) -> NBestList:
    hypotheses = tuple(draw(st.lists(timed_hypotheses(), min_size=1, max_size=4)))
    scores = tuple(-1.0 - index for index in range(len(hypotheses)))
    return NBestList("call 2", hypotheses, {"acoustic": scores}, fields=draw(FIELDS))


@pytest.fixture(scope="module")
def stub(server, client):
    """Stub of a client that only knows the protocol."""
    with grpc.insecure_channel(server.target) as channel:
        yield RescorerServiceStub(channel)


@pytest.fixture
def run(monkeypatch, capsys, bundle):
    """Function that runs ``rescorer rescore`` in this process and returns its exit code and error output."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["rescorer", "rescore", "--bundle", *map(str, (bundle, *arguments))])
        code = 0
        try:
            main()
        except SystemExit as error:
            code = error.code or 0
        return code, capsys.readouterr().err

    return call


def assert_fields_kept(nbest: NBestList, answer: RescoredList) -> None:
    assert answer.fields == nbest.fields
    original_ranks = [hypothesis.original_rank for hypothesis in answer.hypotheses]
    assert sorted(original_ranks) == list(range(len(nbest.hypotheses)))
    for hypothesis in answer.hypotheses:
        assert hypothesis.fields == nbest.hypotheses[hypothesis.original_rank].fields


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(timed_lists())
def test_library_and_python_client_keep_fields(library, client, nbest):
    for (answer,) in (
        library.rescore([nbest]),
        client.rescore([nbest]),
        list(client.rescore_stream([nbest])),
    ):
        assert_fields_kept(nbest, answer)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(timed_lists())
def test_protocol_keeps_fields(stub, nbest):
    message = pb.NBestList(id=nbest.id, fields=nbest.fields)
    for hypothesis in nbest.hypotheses:
        message.hypotheses.add(text=hypothesis.text, fields=hypothesis.fields)
    scores = nbest.streams["acoustic"]
    message.streams.add(name="acoustic", base=pb.LOG_BASE_E, sign=pb.SCORE_SIGN_LOG_PROB, values=scores)
    unary_lists = stub.Rescore(pb.RescoreRequest(lists=[message])).lists
    (response,) = stub.RescoreStream(iter([pb.RescoreStreamRequest(lists=[message])]))
    for (answer,) in (unary_lists, response.lists):
        assert answer.status.code == 0
        assert MessageToDict(answer.fields) == nbest.fields
        assert len(answer.hypotheses) == len(nbest.hypotheses)
        for hypothesis in answer.hypotheses:
            fields = nbest.hypotheses[hypothesis.original_rank - 1].fields
            assert MessageToDict(hypothesis.fields) == fields


OWN = {"rank", "original_rank", "total", "log_posterior", "components"}
TIMES = [
    {"word": "the", "start_s": 0.1, "duration_s": 0.25, "confidence": 0.9},
    {"word": "Cat", "start_s": 0.4, "duration_s": 0.5, "speaker": "s1"},
]
LISTS = (
    NBestList(
        "call 2",
        (Hypothesis("zork zork", {"words": []}), Hypothesis("the Cat", {"words": TIMES, "job": {"n": [1]}})),
        {"acoustic": (-90.0, -1.0)},
        fields={"batch": None},
    ),
    NBestList("u2", (Hypothesis("zork zork"), Hypothesis("the mat")), {"acoustic": (-90.0, -1.0)}),
    NBestList("u3", (Hypothesis(""),), {"acoustic": (-1.0,)}),
)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(encode_list(nbest) + "\n" for nbest in LISTS))
    return path


def test_rescore_command_keeps_fields_and_reads_its_own_output(run, source, tmp_path):
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    assert run(source, "-o", once)[0] == 0
    record = json.loads(once.read_text().splitlines()[0])
    assert record["batch"] is None
    assert record["hypotheses"][0]["words"] == TIMES
    assert record["hypotheses"][0]["job"] == {"n": [1]}
    assert run(once, "-o", twice, "-w", "acoustic=0")[0] == 0
    (best, _) = next(iter(read_lists(twice))).hypotheses
    assert (best.text, best.fields["words"], best.fields["job"]) == ("the Cat", TIMES, {"n": [1]})


def test_writes_ctm_for_lists_with_word_times(run, source, tmp_path):
    code, err = run(source, "-o", tmp_path / "out.ctm", "--to", "ctm")
    assert (code, "2 lists" in err, "1 rejected" in err) == (1, True, True)
    assert (tmp_path / "out.ctm").read_text() == "call 2 0.1 0.25 the 0.9\ncall 2 0.4 0.5 Cat\n"
    (rejected,) = map(json.loads, (tmp_path / "out.ctm.rejects").read_text().splitlines())
    assert rejected["reason"] == (
        "list 'u2', hypothesis 1, words: expected the words with their times, which the format needs"
    )
    assert rejected["list"]["id"] == "u2"
    # A CTM file that is read can be written again.
    assert run(tmp_path / "out.ctm", "-o", tmp_path / "again.ctm", "--to", "ctm", "-w", "acoustic=0")[0] == 0
    assert (tmp_path / "again.ctm").read_text() == (tmp_path / "out.ctm").read_text()


def test_rejects_output_formats_that_need_missing_fields_before_scoring(run, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "u1", "hypotheses": ["", "the cat"]}) + "\n")
    for name, error in (
        ("ctm", "hypothesis 1, words: expected the words with their times"),
        ("stm", "group: "),
    ):
        code, err = run(tmp_path / "in.jsonl", "-o", tmp_path / "out", "--to", name, "-w", "acoustic=0")
        assert (code, error in err) == (2, True)
        assert f"{name} cannot hold any of the first 1 lists: list 'u1'" in err
        assert not (tmp_path / "out").exists()


def test_writes_stm_with_the_best_hypothesis_of_each_segment(run, tmp_path):
    segment = {"file": "call", "channel": "2", "start_s": 0.5, "end_s": 1.5, "group": "ann"}
    record = {"id": "ann-000", "hypotheses": ["the cat", "the mat"], **segment}
    (tmp_path / "in.jsonl").write_text(json.dumps(record) + "\n")
    assert run(tmp_path / "in.jsonl", "-o", tmp_path / "out", "--to", "stm", "-w", "acoustic=0")[0] == 0
    assert (tmp_path / "out").read_text() in (f"call 2 ann 0.5 1.5 the {word}\n" for word in ("cat", "mat"))


def test_writes_trn_with_the_best_hypothesis_of_each_list(run, source, tmp_path):
    assert run(source, "-o", tmp_path / "out.trn", "--to", "trn")[0] == 0
    assert (tmp_path / "out.trn").read_text() == "the Cat (call 2)\nthe mat (u2)\n(u3)\n"


def test_rejects_other_output_formats(run, source, tmp_path):
    code, err = run(source, "-o", tmp_path / "out", "--to", "srilm")
    assert (
        code,
        "cannot write rescored lists as srilm; choose jsonl, parquet, icefall, kaldi-text, lines, trn, ctm"
        in err,
    ) == (2, True)
    assert not (tmp_path / "out").exists()


@given(timed_hypotheses().filter(lambda hypothesis: hypothesis.text))
def test_ctm_has_the_word_times_of_the_best_hypothesis(tmp_path_factory, best):
    path = tmp_path_factory.mktemp("ctm") / "a.ctm"
    ranked = tuple(
        RescoredHypothesis(hypothesis.text, original_rank, 0.0, 0.0, {}, fields=hypothesis.fields)
        for hypothesis, original_rank in ((best, 3), (Hypothesis("x"), 0))
    )
    with rescored_writer("ctm", path) as write:
        write(extract_best(RescoredList("call 2", ranked, Weights(), "tiny/1")))
        with pytest.raises(InvalidList, match="hypothesis 0, words"):
            write(extract_best(RescoredList("call 2", ranked[1:], Weights(), "tiny/1")))
    (nbest,) = read_ctm_lists(path)
    assert (nbest.hypotheses[0].text, nbest.hypotheses[0].fields["words"]) == (
        best.text,
        best.fields["words"],
    )

"""Lists of conversations are rescored in order: the same answers as one list at a time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import Hypothesis, InvalidList, NBestList, Rescorer, Utterance, Weights
from rescorer.formats.rescored import get_renderer
from rescorer.jobs import files
from rescorer.jobs.files import LocalRescorer, SessionRescorer
from rescorer.list_checks import CUT_STEP, MAX_PREVIOUS_WORDS, normalise_previous
from rescorer.scoring.options import RescoreOptions
from rescorer.types import Calibration, ConfidenceMap, DecisionRule
from tests.support.tiny_models import write_bundle

TEXTS = ("the cat sat", "the dog ran", "on the mat", "")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    weights = Weights("default", {"acoustic": 1.0}, {"neural": 1.0}, mixture={"ngram": 0.5, "neural": 0.5})
    return write_bundle(tmp_path_factory.mktemp("carried"), weights, carried=True)


@pytest.fixture(scope="module")
def rescorer(bundle):
    return Rescorer.load(bundle)


def make_list(number: int, session: str, scores=(-1.0, -1.1, -1.2, -5.0), **parts) -> NBestList:
    hypotheses = tuple(map(Hypothesis, TEXTS))
    return NBestList(str(number), hypotheses, {"acoustic": scores}, fields={"call": session}, **parts)


def rescore(rescorer, lists, text="chosen", **options):
    local = LocalRescorer(
        rescorer, RescoreOptions(**options), render=lambda rankings, weights, model: rankings
    )
    ((_, results),) = SessionRescorer(local, "call", text).rescore_batches([list(lists)])
    return results


score = st.floats(-3, 0)
conversations = st.lists(
    st.tuples(st.sampled_from("abc"), st.tuples(score, score, score, score)), min_size=1, max_size=12
)


@settings(max_examples=30, deadline=None)
@given(conversations)
def test_equals_one_list_at_a_time(rescorer, items):
    lists = [make_list(i, session, scores) for i, (session, scores) in enumerate(items)]
    past: dict[str, tuple[Utterance, ...]] = {}
    for nbest, result in zip(lists, rescore(rescorer, lists), strict=True):
        session = nbest.fields["call"]
        (expected,) = rescorer.rescore([replace(nbest, previous=past.get(session, ()))])
        assert result.text == expected.best.text
        assert result.content.nbest.previous == expected.previous
        assert max(result.content.totals) == pytest.approx(expected.best.total, abs=1e-4)
        past[session] = (*past.get(session, ()), Utterance(expected.best.text))


def test_goes_on_from_batch_to_batch(rescorer):
    lists = [make_list(i, "a") for i in range(4)]
    local = LocalRescorer(rescorer, render=lambda rankings, weights, model: rankings)
    batches = SessionRescorer(local, "call").rescore_batches([lists[:1], lists[1:2], lists[2:]])
    found = [result.content.nbest.previous for _, results in batches for result in results]
    assert [len(previous) for previous in found] == [0, 1, 2, 3]


def test_reads_references_if_asked(rescorer):
    lists = [make_list(i, "a", reference=f"the mat {i}", group="caller") for i in range(3)]
    results = rescore(rescorer, lists, "reference")
    expected = (Utterance("the mat 0", "caller"), Utterance("the mat 1", "caller"))
    assert results[-1].content.nbest.previous == expected


def test_previous_utterances_of_a_list_are_kept(rescorer):
    own = (Utterance("on the mat"),)
    results = rescore(rescorer, [make_list(0, "a"), make_list(1, "a", previous=own), make_list(2, "a")])
    assert [len(result.content.nbest.previous) for result in results] == [0, 1, 2]
    assert results[1].content.nbest.previous == own


def test_consensus_is_what_was_said(rescorer):
    rule = DecisionRule("confusion_network")
    first, second = rescore(rescorer, [make_list(0, "a"), make_list(1, "a")], decision=rule)
    assert second.content.nbest.previous == (Utterance(first.text),)
    (rendered,) = get_renderer("trn")([first.content], rescorer.bundle.weights["default"], "tiny/1")
    assert first.text == rendered.nbest.hypotheses[0].text


def test_lists_that_cannot_take_part_are_named(rescorer):
    lists = [
        make_list(0, "a"),
        make_list(1, ""),
        replace(make_list(2, "a"), fields={"call": [1]}),
        make_list(3, "a", scores=(1.0,)),
        make_list(4, "a"),
    ]
    results = rescore(rescorer, lists)
    errors = {i: result for i, result in enumerate(results) if isinstance(result, InvalidList)}
    assert {i: error.field for i, error in errors.items()} == {1: "call", 2: "call", 3: 'streams["acoustic"]'}
    assert "--session" in str(errors[1])
    assert len(results[4].content.nbest.previous) == 1
    (error,) = rescore(rescorer, lists[:1], "reference")
    assert error.field == "reference"


def test_groups_are_conversations(rescorer):
    lists = [make_list(i, "x", group=group) for i, group in enumerate("aba")]
    local = LocalRescorer(rescorer, render=lambda rankings, weights, model: rankings)
    ((_, results),) = SessionRescorer(local, "group").rescore_batches([lists])
    assert [len(result.content.nbest.previous) for result in results] == [0, 0, 1]


def test_memory_is_bounded(rescorer, monkeypatch):
    session = files._Session()
    said = []
    for i in range(400):
        said.append(Utterance(" ".join(f"w{i}" for _ in range(i % 40))))
        session.add(said[-1])
        kept = normalise_previous(tuple(session.utterances), lambda text: tuple(text.split()))
        assert kept == normalise_previous(said, lambda text: tuple(text.split()))
    assert session.n_words <= MAX_PREVIOUS_WORDS + (CUT_STEP + 1) * 40
    monkeypatch.setattr(files, "MAX_SESSIONS", 1)
    results = rescore(rescorer, [make_list(i, name) for i, name in enumerate("abbab")])
    lengths = [len(result.content.nbest.previous) for result in results]
    assert lengths[2] == 1
    assert lengths[3] == 0  # forgotten when b was remembered


@pytest.mark.slow
def test_command_gives_the_same_in_two_processes(run, bundle, tmp_path):
    source = tmp_path / "lists.jsonl"
    with source.open("w") as file:
        for i in range(40):
            rows = [
                {"text": text, "scores": {"acoustic": -((i * 7 + j * 3) % 5) / 4}}
                for j, text in enumerate(TEXTS)
            ]
            file.write(json.dumps({"id": str(i), "call": "abcde"[i % 5], "hypotheses": rows}) + "\n")
    outputs = []
    for processes in ("1", "2"):
        output = tmp_path / f"{processes}.jsonl"
        arguments = ("--bundle", bundle, "--session", "call", "--workers", processes)
        assert run("rescore", source, "-o", output, *arguments)[0] == 0
        outputs.append([json.loads(line) for line in output.read_text().splitlines()])
    first, second = outputs
    assert [line["id"] for line in first] == [str(i) for i in range(40)]
    assert [len(line.get("previous", ())) for line in first] == [i // 5 for i in range(40)]
    for one, other in zip(first, second, strict=True):
        assert one.get("previous") == other.get("previous")
        assert one["hypotheses"][0]["total"] == pytest.approx(other["hypotheses"][0]["total"], abs=1e-3)


def test_command_warns_if_nothing_reads_the_past(run, tmp_path):
    bundle = write_bundle(tmp_path, neural=False)
    source = tmp_path / "lists.jsonl"
    source.write_text(
        '{"id": "1", "call": "a", "hypotheses": [{"text": "the", "scores": {"acoustic": -1}}]}\n'
    )
    code, _, err = run(
        "rescore", source, "-o", tmp_path / "out.jsonl", "--bundle", bundle, "--session", "call"
    )
    assert code == 0
    assert "--session call changes nothing" in " ".join(err.split())


def test_texts_are_as_certain_as_the_weights_say(rescorer):
    certain = ConfidenceMap(1.0, (0.5,), (0.25,))
    weights = replace(rescorer.bundle.weights["default"], calibration=Calibration(utterance=certain))
    lists = [make_list(i, "a", reference="the mat") for i in range(2)]
    for text, confidence in (("chosen", 0.25), ("reference", 1.0)):
        (previous,) = rescore(rescorer, lists, text, weights=weights)[1].content.nbest.previous
        assert previous.confidence == confidence

"""Advice for lists that lack the score that weights need: followed as printed, it keeps their order."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from rescorer import Hypothesis, NBestList, Weights
from rescorer.errors import InvalidList
from rescorer.pipeline import Rescorer
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.unread_scores import find_unread_fields, find_unread_lists
from tests.support.list_lines import write

TEXTS = ("zork zork on", "the cat sat on", "the cat")
"""The recogniser's order, which the language model would reverse."""


def make_lines(*hypotheses: dict[str, object], count: int = 6) -> list[str]:
    """Lists of the texts, each hypothesis with further fields."""
    items = [{"text": text, **fields} for text, fields in zip(TEXTS, hypotheses, strict=True)]
    return [json.dumps({"id": f"u{i}", "hypotheses": items}) for i in range(count)]


def read_texts(out: str) -> list[str]:
    return [hypothesis["text"] for hypothesis in json.loads(out.splitlines()[0])["hypotheses"]]


@pytest.mark.parametrize("weights", [(), ("-w", "word=-3", "-w", "oov=1", "-w", "lm:ngram=0.5")])
@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ([{"scores": {"first_pass": -s}} for s in (1, 2, 3)], "-w acoustic=0 -w first_pass=1"),
        ([{"scores": {"acoustic_2": -s, "z": s}} for s in (1, 2, 3)], "-w acoustic_2=1"),
        ([{"score": -s, "ntok": 3} for s in (1.5, 2, 3)], "--stream acoustic=score"),
        ([{"confidence": s, "start": 0.5} for s in (0.9, 0.5, 0.1)], "--stream acoustic=confidence:prob"),
        ([{"tokens": s, "nll": s} for s in (1, 2, 3)], "--stream acoustic=nll:e:cost"),
        ([{"h": -s} for s in (1.5, 2, 3)], "--stream acoustic=h"),
        ([{"avg logprob": -s} for s in (1, 2, 3)], "--stream 'acoustic=avg logprob'"),
        ([{"score": {"am": -s}} for s in (1, 2, 3)], "--map scores=score --stream acoustic=am"),
    ],
)
def test_advice_keeps_the_order_of_the_recogniser(run, ngram_bundle, tmp_path, fields, option, weights):
    source = write(tmp_path / "in.jsonl", *make_lines(*fields))
    command = ("rescore", source, "--bundle", ngram_bundle, "--quiet", *weights)
    code, _, err = run(*command)
    (advice,) = re.findall(r"`([^`]*lm:mixture=0[^`]*)`", err)
    assert (code, option in advice, "rescorer tune" in err) == (2, True, True)
    code, out, err = run(*command, *shlex.split(advice))
    assert (code, err, read_texts(out)) == (0, "", list(TEXTS))


def test_tuning_starts_from_the_score_that_the_lists_have(run, ngram_bundle, tmp_path):
    lines = make_lines(*({"scores": {"always": 0, "z": s, "total": -s}} for s in (1, 2, 3)))
    source = write(
        tmp_path / "in.jsonl",
        *(json.dumps({**json.loads(line), "reference": f"the cat {i}"}) for i, line in enumerate(lines)),
    )
    command = ("tune", source, "--bundle", ngram_bundle, "-o", tmp_path / "w.json", "--no-cache")
    code, _, err = run(*command)
    options = ("-w", "acoustic=0", "-w", "total=1", "-w", "lm:mixture=0", "-w", "word=0", "-w", "oov=0")
    assert code == 0
    assert f"note: tuning starts from the recogniser's own score: {' '.join(options)}\n" in err
    found = (tmp_path / "w.json").read_text()
    code, _, err = run(*command, *options)
    assert (code, "note:" in err, (tmp_path / "w.json").read_text()) == (0, False, found)
    for chosen in (("-w", "word=-1"), ("--weights", "default")):
        code, _, err = run(*command, *chosen)
        assert (code, "need the stream 'acoustic'" in err) == (2, True)


def test_tuning_does_not_start_from_a_score_of_the_wrong_sign(run, ngram_bundle, tmp_path):
    lines = make_lines(*({"scores": {"cost": s}} for s in (1, 2, 3)))
    source = write(
        tmp_path / "in.jsonl", *(json.dumps({**json.loads(line), "reference": "the cat"}) for line in lines)
    )
    code, _, err = run("tune", source, "--bundle", ngram_bundle, "-o", tmp_path / "w.json", "--no-cache")
    assert (
        code,
        "nothing shows that the recogniser ranked by it, so let `rescorer inspect` check it" in err,
    ) == (2, True)


def test_advice_for_services_names_the_option_of_their_format(run, ngram_bundle, tmp_path):
    items = [
        {"transcript": text, "confidence": score} for text, score in zip(TEXTS, (0.9, 0.5, 0.1), strict=True)
    ]
    source = write(tmp_path / "in.json", json.dumps({"results": [{"alternatives": items}]}))
    command = ("rescore", source, "--bundle", ngram_bundle, "--quiet")
    (advice,) = re.findall(r"`(--format [^`]*)`", run(*command)[2])
    assert read_texts(run(*command, *shlex.split(advice))[1]) == list(TEXTS)


def test_scores_that_nothing_reads_are_named_once(run, ngram_bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", *make_lines(*({"score": -s, "rank": s} for s in (1, 2, 3))))
    model_alone = ("--bundle", ngram_bundle, "-w", "acoustic=0")
    err = run("rescore", source, *model_alone, "--quiet")[2]
    assert (err.count("warning:"), len(err.splitlines())) == (1, 1)
    assert "`--stream acoustic=score -w acoustic=1 -w lm:mixture=0" in err
    other = write(tmp_path / "other.jsonl", *source.read_text().splitlines())
    err = run("evaluate", source, other, "--first-pass", "word=1", *model_alone)[2]
    assert err.count("no score of the hypotheses is read") == 1
    ranks = write(tmp_path / "ranks.jsonl", *make_lines(*({"rank": s, "end": 1.5} for s in (1, 2, 3))))
    assert run("rescore", ranks, *model_alone, "--quiet")[2] == ""


def test_a_score_left_over_is_one_note(run, ngram_bundle, tmp_path):
    fields = ({"scores": {"acoustic": -s}, "lm_score": -s, "ntok": 3, "x": 0.5} for s in (1.5, 2, 3))
    source = write(tmp_path / "in.jsonl", *make_lines(*fields))
    command = ("rescore", source, "--bundle", ngram_bundle, "--quiet")
    note = "note: no stream is read from lm_score; `--stream lm_score=lm_score` reads it\n"
    command = (*command, "-w", "lm:mixture=0.1")
    assert run(*command)[::2] == (0, note)
    assert run(*command, "--stream", "lm_score=lm_score")[::2] == (0, "")


def test_the_library_names_safe_weights_and_unread_fields(ngram_bundle):
    rescorer = Rescorer.load(ngram_bundle)
    named = NBestList("u", tuple(map(Hypothesis, TEXTS)), {"score": (-1.0, -2.0, -3.0)})
    with pytest.raises(InvalidList, match=re.escape("streams={'score': 1} and lm={'mixture': 0}")):
        rescorer.rescore([named])
    safe = Weights(streams={"score": 1}, lm={"mixture": 0})
    assert [h.text for h in rescorer.rescore([named], safe)[0].hypotheses] == list(TEXTS)
    with pytest.raises(InvalidList, match="not read as scores: acoustic"):
        rescorer.rescore([NBestList("u", (Hypothesis("the", {"acoustic": -1}),))])


@pytest.mark.parametrize(
    ("name", "values", "units"),
    [
        ("score", (-1.0, -2.0), ""),
        ("score", (3.5, 9.0), ":e:cost"),
        ("neg_log_prob", (3.0, 1.0), ":e:cost"),
        ("am_log2", (-3.0, -1.0), ":2"),
        ("confidence", (0.1, 0.9), ":prob"),
        ("confidence", (297.0, 294.5), ""),
        ("posterior", (1.0, 0.25), ":prob"),
        ("log_prob", (0.5, 0.25), ""),
    ],
)
def test_units_follow_name_and_order(name, values, units):
    nbest = NBestList("u", tuple(Hypothesis("a", {name: value}) for value in values))
    (field,) = find_unread_fields([nbest])
    assert (field.units, field.is_likely) == (units, True)


@pytest.mark.parametrize("value", [True, None, "-3", float("nan"), 10**400, [1.0]])
def test_only_finite_numbers_are_scores(value):
    hypotheses = Hypothesis("a", {"score": -1.0}), Hypothesis("b", {"score": value})
    assert find_unread_fields([NBestList("u", hypotheses)]) == []


BEAMS = {
    "objects": ([{"text": "the cat sat on"}, {"text": "the cat sat"}], "2 objects with text", "hypotheses=x"),
    "transcripts": (
        [{"transcript": "the cat sat on"}, {"transcript": "the cat"}],
        "2 objects with transcript",
        "hypotheses=x,text=transcript",
    ),
    "texts": (["the cat sat on", "the cat sat at"], "2 texts", "hypotheses=x"),
    "pairs": ([["the cat sat on", -1.0], ["the cat", -2.0]], "2 pairs of text and score", "hypotheses=x"),
}


@pytest.mark.parametrize("kind", BEAMS)
def test_arrays_that_look_like_hypotheses_are_named_with_what_reads_them(run, ngram_bundle, tmp_path, kind):
    beams, described, option = BEAMS[kind]
    record = {"id": "u", "reference": "the cat", "hypotheses": ["the cat sat on"], "x": beams}
    source = write(tmp_path / "in.jsonl", json.dumps(record))
    warning = f"warning: lists have a list 'x' of {described}, which is not read as their hypotheses"
    code, out, err = run("rescore", source, "--bundle", ngram_bundle, "-w", "acoustic=0", "--quiet")
    assert err.startswith(f"{warning}; `--map {option}` reads it")
    assert run("evaluate", source)[2].startswith(warning)
    code, out, _ = run("inspect", source, "--json")
    (finding,) = [f for f in json.loads(out)["files"][0]["findings"] if f["code"] == "unread_lists"]
    assert (code, finding["message"].endswith(f"a list 'x' of {described}")) == (1, True)
    code, out, err = run("convert", source, "-", "--to", "jsonl", "--map", option)
    assert len(json.loads(out)["hypotheses"]) == 2


def test_arrays_in_segments_of_whisper_are_named(run, tmp_path):
    segment = {
        "seek": 0,
        "text": " the cat sat",
        "avg_logprob": -0.5,
        "options": [{"text": " the cat sat"}, "x"],
    }
    segment["options"][1] = {"text": " the cat"}
    source = write(tmp_path / "talk.json", json.dumps({"segments": [segment]}))
    code, out, _ = run("inspect", source, "--json")
    assert (code, "'options' of 2 objects with text" in out, "rename it to candidates" in out) == (
        1,
        True,
        True,
    )


@pytest.mark.parametrize(
    "parts",
    [
        ["the", "cat", "sat", "on"],
        ["the cat", "sat on"],
        [{"text": " the"}, {"text": " cat sat on"}],
        [{"word": "the"}, {"word": "cat"}],
        ["le chat", "die katze"],
        [["the cat sat on", "x", 3], ["the cat", "y", 3]],
        ["the cat sat on"],
    ],
)
def test_parts_of_a_text_are_no_hypotheses(parts):
    nbest = NBestList("u", (Hypothesis("the cat sat on", {"x": parts}),), fields={"y": parts})
    assert find_unread_lists([nbest]) == []
    tokens = [{"text": "[_BEG_]"}, {"text": " so"}, {"text": " it"}, {"text": "[_TT_50]"}]
    assert find_unread_lists([NBestList("u", (Hypothesis(" so it", {"tokens": tokens}),))]) == []


def test_scores_of_some_hypotheses_only_are_named(run, tmp_path):
    items = [{"transcript": "the cat", "confidence": 0.9}, {"transcript": "the cats"}]
    source = write(tmp_path / "in.json", json.dumps({"results": [{"alternatives": items}]}))
    out = run("inspect", source, "--json")[1]
    messages = [finding["message"] for finding in json.loads(out)["files"][0]["findings"]]
    assert "1 list has a score in some hypotheses only: confidence" in messages


def test_a_field_of_a_message_without_a_value_is_no_number():
    message = pb.Hypothesis(text="a")
    message.fields.update({"score": -1.5, "inner": {"cost": 2.5}})
    message.fields.fields["unset"].SetInParent()
    message.fields["inner"].fields["unset"].SetInParent()
    found = find_unread_fields([NBestList("1", [Hypothesis("a", message.fields)])])
    assert {field.label for field in found} == {"score", "inner.cost"}

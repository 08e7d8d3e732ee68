"""Advice for lists that lack the score that weights need: followed as printed, it keeps their order."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from rescorer import Hypothesis, NBestList, Weights
from rescorer.errors import InvalidList
from rescorer.pipeline import Rescorer
from rescorer.preparation.unread_scores import find_unread_fields
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
        ([{"confidence": s, "start": 0.5} for s in (0.9, 0.5, 0.1)], "--stream acoustic=confidence"),
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
        ("confidence", (0.1, 0.9), ""),
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

"""The command ``explain``, and the options of ``evaluate`` that show errors."""

from __future__ import annotations

import json

import pytest
from rich.text import Text

from rescorer.cli.evaluate import render_alignment
from rescorer.evaluation.error_analysis import AlignedList, align_tokens
from tests.support.list_lines import GOOD, record, write


@pytest.fixture
def lists(tmp_path):
    """The acoustic scores of ``record`` prefer the first hypothesis, the models the second."""
    texts = "zebra mat cat", "the cat sat on the mat"
    return write(
        tmp_path / "in.jsonl",
        record("u1", *texts, reference=texts[1]),
        record("u2", "the cat", reference="the cat"),
    )


def test_explains_one_list(run, bundle, lists):
    code, out, _ = run("explain", lists, "u1", "--bundle", bundle, "-w", "lm:mixture=30")
    assert code == 0
    assert "hypothesis 2 of the first pass wins by" in out
    assert "of which mixture gives" in out
    assert "winner − first pass" in out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith(("reference", "rescored"))]
    data = json.loads(run("explain", lists, "u1", "--bundle", bundle, "--json")[1])
    assert [found["id"] for found in data] == ["u1"]
    lead = data[0]["lead_over_first_pass"]
    difference = data[0]["best"][0]["total"] - data[0]["first_pass"]["total"]
    assert sum(lead.values()) == pytest.approx(difference)


def test_lists_that_changed_most(run, bundle, lists):
    code, out, _ = run("explain", lists, "--bundle", bundle, "-w", "lm:mixture=30")
    assert (code, "1 of 2 lists changed; 1 shown" in out, "u1" in out) == (0, True, True)
    code, out, _ = run("explain", lists, "--bundle", bundle, "-w", "lm:mixture=0")
    assert (code, "0 of 2 lists changed" in out) == (0, True)


def test_explains_without_references(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", record("u1", "zebra mat cat", "the cat sat on the mat"))
    code, out, err = run("explain", source, "u1", "--bundle", bundle, "-w", "lm:mixture=30")
    assert (code, err) == (0, "")
    assert "errors" not in out.splitlines()[0]
    assert "oracle" not in out


def test_names_an_id_that_is_missing(run, bundle, tmp_path):
    source = write(tmp_path / "in.jsonl", record("speaker-1", "the cat"))
    code, _, err = run("explain", source, "speaker-2", "--bundle", bundle)
    assert (code, "no list has the id 'speaker-2'; did you mean 'speaker-1'" in err) == (3, True)


def test_errors_and_alignments_of_a_row(run, bundle, lists):
    options = ("--bundle", bundle, "-w", "lm:mixture=30", "--errors", "--alignments")
    code, out, _ = run("evaluate", lists, *options)
    assert code == 0
    for part in ("errors of mixture", "words fixed", "rank in the first pass", "rescored"):
        assert part in out
    assert "\nu2\n" not in out  # nothing is wrong in that list
    assert "errors of ngram" in run("evaluate", lists, *options, "--system", "ngram")[1]
    code, _, err = run("evaluate", lists, *options, "--system", "ngrams")
    assert (code, "--system 'ngrams': the rows can be 'first pass'" in err) == (2, True)
    data = json.loads(run("evaluate", lists, *options, "--json")[1])
    assert [aligned["id"] for aligned in data["alignments"]] == ["u1"]
    assert data["alignments"][0]["rescored"][0] == ["the", "the"]
    (errors,) = data["errors"]
    assert (errors["system"], errors["words_broken"]) == ("mixture", 0)
    assert errors["words_fixed"] >= 4


def test_errors_of_a_file_alone(run, tmp_path):
    source = write(tmp_path / "in.jsonl", *GOOD)
    code, out, _ = run("evaluate", source, "--errors", "--alignments")
    assert (code, "confused" in out, "recognised" in out, "words fixed" in out) == (0, True, True, False)


def test_aligned_texts_wrap_at_the_width():
    reference = tuple(f"word{number}" for number in range(20))
    before, after = align_tokens(reference, reference[1:]), align_tokens(reference, (*reference, "more"))
    lines = [line.plain for line in render_alignment(AlignedList("u1", before, after), 60)]
    assert max(map(len, lines)) <= 60
    for label, text in (("reference", reference), ("rescored", (*reference, "more"))):
        words = " ".join(line.removeprefix(label) for line in lines if line.startswith(label)).split()
        assert [word for word in words if word != "***"] == list(text)


def test_colours_say_what_rescoring_did():
    before, after = (align_tokens(("a", "b", "c"), text) for text in (("x", "b", "z"), ("a", "y", "z")))
    lines = list(render_alignment(AlignedList("u1", before, after), 80))

    def styles(line: Text) -> list[str]:
        return [str(span.style) for span in line.spans if str(span.style) not in ("", "dim")]

    assert styles(lines[2]) == ["bold green", "yellow"]
    assert styles(lines[3]) == ["bold green", "bold red", "yellow"]


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_shows_what_the_features_of_a_reranker_add(run, reranker_bundle, lists, name):
    arguments = ["explain", lists, "u1", "--bundle", reranker_bundle, "--weights", name]
    code, out, _ = run(*arguments)
    assert code == 0
    assert f"features of reranker:{name}" in out
    assert "score_per_word:mixture" in out
    assert ("interaction" in out) == (name == "mlp")
    winner = json.loads(run(*arguments, "--json")[1])[0]["best"][0]
    parts = winner["features"][f"reranker:{name}"]
    assert sum(part["term"] for part in parts.values()) == pytest.approx(winner["total"])

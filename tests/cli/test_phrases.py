"""Phrases on the command line: from a file or from the bundle, in every command that ranks lists."""

from __future__ import annotations

import json

import pytest

from tests.support.list_lines import record, write
from tests.support.tiny_models import write_bundle

TEXTS = "zebra mat cat", "the cat sat on the mat"


@pytest.fixture
def lists(tmp_path):
    return write(
        tmp_path / "in.jsonl",
        record("u1", *TEXTS, reference=TEXTS[0]),
        record("u2", "the cat", reference="the cat"),
    )


@pytest.fixture
def phrases(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text('# animals\n{"text": "Zebra", "weight": 90}\n')
    return path


@pytest.fixture
def bundle_with_phrases(run, tmp_path):
    folder = write_bundle(tmp_path / "bundle")
    (folder / "phrases").mkdir()
    (folder / "phrases" / "animals.txt").write_text('{"text": "zebra", "weight": 90}\n')
    code, out, _ = run("seal", folder)
    assert (code, out.split()) == (0, ["phrases/animals.txt"])
    return folder


def rescored_texts(run, lists, bundle, *options):
    code, out, err = run("rescore", lists, "--bundle", bundle, "-w", "lm:mixture=30", "-q", *options)
    assert code == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert all("phrases" not in answer for answer in answers)
    return [answer["hypotheses"][0]["text"] for answer in answers]


def test_phrases_of_a_file_and_of_the_bundle(run, lists, phrases, bundle_with_phrases):
    bundle = bundle_with_phrases
    assert rescored_texts(run, lists, bundle) == [TEXTS[1], "the cat"]
    assert rescored_texts(run, lists, bundle, "--phrases", phrases) == [TEXTS[0], "the cat"]
    assert rescored_texts(run, lists, bundle, "--phrase-list", "animals") == [TEXTS[0], "the cat"]
    with_weight = rescored_texts(run, lists, bundle, "--phrases", phrases, "-w", "phrases=0")
    assert with_weight == [TEXTS[1], "the cat"]
    with_two = rescored_texts(run, lists, bundle, "--phrase-list", "animals", "--workers", "2")
    assert with_two == [TEXTS[0], "the cat"]
    code, _, err = run("rescore", lists, "--bundle", bundle, "--phrase-list", "animal")
    assert code == 2
    assert "phrase_lists names 'animal'; the bundle has: animals; did you mean 'animals'?" in err


def test_changed_phrases_of_a_bundle_are_sealed_again(run, lists, bundle_with_phrases):
    (bundle_with_phrases / "phrases" / "animals.txt").write_text("nobody\n")
    code, _, err = run("rescore", lists, "--bundle", bundle_with_phrases, "--phrase-list", "animals")
    assert code != 0
    assert "animals.txt" in err
    assert run("seal", bundle_with_phrases)[0] == 0
    assert rescored_texts(run, lists, bundle_with_phrases, "--phrase-list", "animals")[0] == TEXTS[1]
    (bundle_with_phrases / "phrases" / "animals.txt").write_text("ok\n{}\n")
    code, _, err = run("seal", bundle_with_phrases)
    assert code != 0
    assert "animals.txt:2: text: expected a string" in err


def test_explain_names_the_phrases(run, lists, phrases, bundle):
    options = ("--bundle", bundle, "-w", "lm:mixture=30", "--phrases", phrases)
    code, out, _ = run("explain", lists, "u1", *options)
    assert code == 0
    assert "phrases with a credit" in out
    assert "1, before 1" in out[out.index("phrases with a credit") :]
    assert ": zebra" in out
    (found,) = json.loads(run("explain", lists, "u1", *options, "--json")[1])
    assert found["best"][0]["phrases"] == ["zebra"]
    assert "phrases" not in found["best"][1]
    assert run("explain", lists, *options)[0] == 0


def test_evaluate_uses_phrases(run, lists, phrases, bundle):
    options = ("--bundle", bundle, "-w", "lm:mixture=30", "--json")

    def errors(*more):
        code, out, err = run("evaluate", lists, *options, *more)
        assert code == 0, err
        return {row["name"]: row["errors"] for row in json.loads(out)["systems"]}["mixture"]

    assert errors("--phrases", phrases) < errors()
    code, _, err = run("evaluate", lists, "--phrases", phrases)
    assert code == 2
    assert "give one" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "names.txt:1: not UTF-8"),
        (b'{"text": "a", "weight": -1}', "phrases[0].weight: -1.0 for 'a'; expected a number above 0"),
        (b"a\n" * 5_001, "5,001 phrases and spellings; expected at most 5,000"),
        (b"<sil>\n", "phrases[0].text: '<sil>' has 0 words; expected 1 to 16"),
        (None, "names.txt: is missing"),
    ],
)
def test_wrong_files_are_named(run, lists, bundle, phrases, content, message):
    phrases.unlink() if content is None else phrases.write_bytes(content)
    code, _, err = run("rescore", lists, "--bundle", bundle, "--phrases", phrases)
    assert code != 0
    assert message.lower() in " ".join(err.split()).lower()

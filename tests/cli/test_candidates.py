"""The command ``rescorer candidates``: weights under which names win where they were said."""

from __future__ import annotations

import json

import pytest

from rescorer import Weights
from tests.support.small_dictionary import write_dictionary
from tests.support.tiny_models import write_bundle

SAID = {"mat": "mat", "hail": "hail", "rust": "rusk", "yolk": "york"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    weights = Weights("default", {"acoustic": 1.0}, {"ngram": 1.0}, mixture={"ngram": 0.5, "neural": 0.5})
    return write_bundle(tmp_path_factory.mktemp("bundle"), weights)


@pytest.fixture
def lists(tmp_path):
    lines = [
        {
            "id": f"u{i}",
            "group": f"speaker{i % 2}",
            "reference": f"the {said} sat",
            "phrases": [said],
            "hypotheses": [{"text": f"the {heard} sat", "scores": {"acoustic": -1}}],
        }
        for i, (heard, said) in enumerate(SAID.items())
    ]
    path = tmp_path / "lists.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_writes_weights_and_says_what_they_are_worth(run, bundle, lists, tmp_path):
    output, dictionary = tmp_path / "heard.json", write_dictionary(tmp_path)
    code, out, _ = run(
        "candidates",
        lists,
        "--bundle",
        bundle,
        "-o",
        output,
        "--dictionary",
        dictionary,
        "--max-false-alarms",
        0.5,
    )
    assert code == 0
    written = json.loads(output.read_text())
    assert written["sound_match"] > 0
    assert written["name"] == "heard"
    assert f"generated {written['generated']:g}" in out
    assert "false alarms: " in out
    assert "2 folds of 2 units by group" in out
    again = tmp_path / "out.jsonl"
    options = ("--bundle", bundle, "--weights", output, "--generate", "--dictionary", dictionary)
    assert run("rescore", lists, "-o", again, *options)[0] == 0
    assert any(
        "generated" in h for line in again.read_text().splitlines() for h in json.loads(line)["hypotheses"]
    )


def test_lists_without_references_are_rejected(run, bundle, lists, tmp_path):
    lines = [json.loads(line) for line in lists.read_text().splitlines()]
    del lines[0]["reference"]
    lists.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--bundle", bundle, "-o", tmp_path / "w.json", "--dictionary", write_dictionary(tmp_path))
    code, out, errors = run("candidates", lists, *options, "--max-false-alarms", 0.9)
    assert code == 1
    assert "1 lists rejected" in out
    assert "reference" in errors


def test_too_few_lists_for_the_bound_end_the_command(run, bundle, lists, tmp_path):
    options = ("--bundle", bundle, "-o", tmp_path / "w.json", "--dictionary", write_dictionary(tmp_path))
    code, _, errors = run("candidates", lists, *options)
    assert code == 2
    assert "more --rounds" in errors
    assert not (tmp_path / "w.json").exists()

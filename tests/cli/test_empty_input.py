"""Files without lists, which usually mean an error further upstream: commands warn about them."""

from __future__ import annotations

import io
import json

import pytest

from tests.support.list_lines import GOOD, write

HEADER = json.dumps({"format": "rescorer-nbest", "version": 1})


@pytest.mark.parametrize("lines", [(), ("",), (HEADER,)])
def test_rescore_and_convert_warn_of_no_lists(run, ngram_bundle, tmp_path, lines):
    source = write(tmp_path / "in.jsonl", *lines)
    warning = f"warning: {source}: there are no lists in it"
    ngram = ("--bundle", ngram_bundle, "--weight", "lm:mixture=0", "--weight", "lm:ngram=1")
    for command in (
        ("rescore", source, "-o", tmp_path / "out.jsonl", "--quiet", *ngram),
        ("convert", source, tmp_path / "out.jsonl"),
    ):
        code, _, err = run(*command)
        assert (code, warning in err.splitlines()) == (0, True)
        assert (tmp_path / "out.jsonl").read_text() == ""


def test_warns_of_a_pipe_without_lists(run, ngram_bundle, monkeypatch):
    class Pipe:
        buffer = io.BytesIO()

    monkeypatch.setattr("sys.stdin", Pipe())
    code, out, err = run("rescore", "-", "--bundle", ngram_bundle, "--quiet", "--weight", "lm:mixture=1")
    assert (code, out, err) == (0, "", "warning: <stdin>: there are no lists in it\n")


def test_evaluate_needs_lists(run, tmp_path):
    source = write(tmp_path / "in.jsonl")
    code, out, err = run("evaluate", source)
    assert (code, out) == (3, "")
    assert err.splitlines() == [
        f"warning: {source}: there are no lists in it",
        f"rescorer: {source}: no list could be evaluated",
    ]
    good = write(tmp_path / "good.jsonl", *GOOD)
    code, out, err = run("evaluate", source, good, "--json")
    assert (code, json.loads(out)["systems"][0]["lists"]) == (0, 2)
    assert "no lists in it" in err

"""Files without any lists, which commands tell of: mostly they are somebody's mistake upstream."""

from __future__ import annotations

import io
import json

import pytest

from tests.support.list_lines import GOOD, write

HEADER = json.dumps({"format": "rescorer-nbest", "version": 1})


@pytest.mark.parametrize("lines", [(), ("",), (HEADER,)])
def test_no_lists_are_a_warning_for_who_only_passes_them_on(run, ngram_bundle, tmp_path, lines):
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


def test_a_pipe_without_lists_is_told(run, ngram_bundle, monkeypatch):
    class Pipe:
        buffer = io.BytesIO()

    monkeypatch.setattr("sys.stdin", Pipe())
    code, out, err = run("rescore", "-", "--bundle", ngram_bundle, "--quiet", "--weight", "lm:mixture=1")
    assert (code, out, err) == (0, "", "warning: <stdin>: there are no lists in it\n")


def test_no_lists_cannot_be_evaluated(run, tmp_path):
    source = write(tmp_path / "in.jsonl")
    code, out, err = run("evaluate", source)
    assert (code, out) == (3, "")
    assert err.splitlines() == [
        f"warning: {source}: there are no lists in it",
        f"rescorer: {source}: no list could be evaluated",
    ]
    good = write(tmp_path / "good.jsonl", *GOOD)
    code, out, err = run("evaluate", source, good, "--json")
    assert (code, json.loads(out)["lists"]) == (0, 2)
    assert "no lists in it" in err

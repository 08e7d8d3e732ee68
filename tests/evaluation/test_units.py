"""All commands draw the same units, so that the same row has the same interval everywhere."""

from __future__ import annotations

import json

import pytest

from tests.support.list_lines import record, write


@pytest.fixture
def lists(tmp_path):
    """Twenty lists: some with a group, some without, and two that share a reference."""
    lines = []
    for i in range(20):
        texts = ("the cat", "the mat") if i % 3 else ("the mat", "the cat")
        reference = "the cat sat" if i < 2 else f"the cat {'on ' * i}"
        lines.append(record(f"u{i:02}", *texts, reference=reference, group=f"s{i}" if i % 2 else ""))
    return write(tmp_path / "in.jsonl", *lines)


def test_the_same_row_has_the_same_interval_in_all_commands(run, ngram_bundle, lists, tmp_path):
    """The weights cannot change the ranking of the held-out row if nothing may be tuned but ``empty``."""
    start = ("--bundle", ngram_bundle, "--free", "empty")
    tuned = json.loads(run("tune", lists, *start, "-o", tmp_path / "w.json", "--json")[1])
    rows = json.loads(run("evaluate", lists, "--bundle", ngram_bundle, "--json")[1])["systems"]
    same = [row for row in rows if row["kind"] == "model"][-1]
    run("rescore", lists, "--bundle", ngram_bundle, "-o", tmp_path / "a.jsonl", "-q")
    compared = json.loads(run("compare", lists, tmp_path / "a.jsonl", "--json")[1])
    run("report", lists, "--bundle", ngram_bundle, "-o", tmp_path / "r.json")
    reported = json.loads((tmp_path / "r.json").read_text())["systems"]
    files = (lists, tmp_path / "a.jsonl")
    combined = json.loads(run("combine", *files, "-o", tmp_path / "c.jsonl", "--json")[1])
    (shown,) = [row for row in reported if row["name"] == same["name"]]
    expected = pytest.approx(same["wer_interval"], abs=0.006)
    assert tuned["held_out_wer_interval"] == expected
    assert compared["systems"][1]["wer_interval"] == expected
    assert shown["wer_interval"] == expected
    assert combined["systems"][1]["wer_interval"] == expected
    assert compared["pairs"][0]["gain_interval"] == same["gain_interval"]
    assert compared["pairs"][0]["p_value"] == same["p_value"]
    assert tuned["units"] == 20

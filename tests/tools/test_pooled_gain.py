"""Pooling the reports of several sets."""

from __future__ import annotations

import json

import pytest

from tools.pooled_gain import pool, read_outcomes


def write_report(path, errors_by_list, total=None):
    """Write the part of a report that is read: (group, words, {system: errors}) per list."""
    rows = [
        {
            "group": group,
            "reference_words": words,
            "readings": [{"systems": [name], "errors": count} for name, count in errors.items()],
        }
        for group, words, errors in errors_by_list
    ]
    path.write_text(json.dumps({"utterances": {"rows": rows, "total": total or len(rows)}}))
    return path


def test_sums_errors_and_words_over_sets(tmp_path):
    lists = [("s1", 10, {"a": 3, "b": 1}), ("s2", 10, {"a": 2, "b": 2}), ("", 20, {"a": 1, "b": 2})]
    first, second = (write_report(tmp_path / f"{i}.json", lists) for i in (1, 2))
    outcomes = [*read_outcomes(first, "a", "b"), *read_outcomes(second, "a", "b")]
    assert len({outcome.group for outcome in outcomes}) == 6  # groups of two sets are never the same
    assert pool(outcomes).gain == pytest.approx((12 - 10) / 80)


def test_says_what_is_missing(tmp_path):
    lists = [("s1", 10, {"a": 3})]
    with pytest.raises(SystemExit, match="no system 'b'; it has: a"):
        list(read_outcomes(write_report(tmp_path / "1.json", lists), "a", "b"))
    with pytest.raises(SystemExit, match="has 1 of 2 lists; give --max-utterances"):
        list(read_outcomes(write_report(tmp_path / "2.json", lists, total=2), "a", "a"))

"""Every test that the page on reliability names exists."""

from __future__ import annotations

import re

from tests.conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+/test_\w+\.py)(?:::(\w+))?`", PAGE)))


def test_named_tests_exist():
    assert len(NAMED) > 80
    missing = [
        f"{file}::{name}"
        for file, name in NAMED
        if not (path := REPOSITORY / "tests" / file).is_file()
        or (name and f"def {name}(" not in path.read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_every_row_of_a_case_has_three_cells():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "test_" in line]
    assert {row.count(" | ") for row in rows} == {2}

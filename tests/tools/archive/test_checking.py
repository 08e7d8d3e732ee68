"""The comparison of output and archive finds whatever is lost, repeated, moved or shortened."""

from __future__ import annotations

import hashlib
import json

import pytest

from tools.archive.checking import check_output


def make_line(list_id: str, key: str, n: int = 2) -> bytes:
    texts = [{"text": '{"text": "original_rank": 1', key: place} for place in range(n)]
    return json.dumps({"id": list_id, "hypotheses": texts}).encode() + b"\n"


IDS = ("a", 'b"', "c,", "d")


@pytest.fixture
def archive(tmp_path):
    """Four lists in two files."""
    lines = [make_line(list_id, "score") for list_id in IDS]
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_bytes(b"".join(lines[2 * number : 2 * number + 2]))
    return [tmp_path / "0.jsonl", tmp_path / "1.jsonl"]


@pytest.fixture
def output():
    return [make_line(list_id, "original_rank") for list_id in IDS]


def test_accepts_what_is_complete(archive, output):
    checked = check_output(output, archive)
    assert (checked.lists, checked.hypotheses, checked.faults) == (4, 8, [])
    assert checked.sha256 == hashlib.sha256(b"".join(output)).hexdigest()


def lose(lines):
    del lines[1]


def lose_last(lines):
    lines.pop()


def lose_all(lines):
    lines.clear()


def repeat(lines):
    lines.insert(2, lines[1])


def append(lines):
    lines.append(lines[0])


def swap(lines):
    lines[0], lines[1] = lines[1], lines[0]


def shorten(lines):
    lines[2] = make_line("c,", "original_rank", 1)


def garble(lines):
    lines[3] = b"\n"


@pytest.mark.parametrize("change", [lose, lose_last, lose_all, repeat, append, swap, shorten, garble])
def test_finds_what_is_wrong(change, archive, output):
    change(output)
    assert check_output(output, archive).faults


def test_says_where_the_first_fault_is(archive, output):
    lose(output)
    first = check_output(output, archive).faults[0]
    assert first.startswith("list 2: expected ")


def test_finds_an_archive_that_repeats_an_id(archive, output):
    archive[1].write_bytes(archive[0].read_bytes())
    faults = check_output([*output[:2], *output[:2]], archive).faults
    assert faults[0] == "list 3: the archive has b'\"a\"' twice"

"""Parts of archives that are drawn at random: every list belongs to one of them, and all are as likely."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.jobs import plan
from rescorer.jobs.plan import Block, draw_extract, read_block
from rescorer.types import NBestList
from tests.support.sharding import make_lines, make_source, write_lines

HEADER = json.dumps({"format": "rescorer-nbest", "version": 1, "streams": {"acoustic": {"sign": "cost"}}})


def ids_of(lists) -> list[str]:
    return [item.id for item in lists if isinstance(item, NBestList)]


@given(n=st.integers(0, 40), n_bytes=st.integers(20, 500), has_header=st.booleans(), ends=st.booleans())
def test_every_list_is_in_one_block(tmp_path_factory, n, n_bytes, has_header, ends):
    lines = [HEADER, *make_lines(n)] if has_header else make_lines(n)
    path = tmp_path_factory.mktemp("blocks") / "lists.jsonl"
    path.write_text("\n".join(lines) + "\n" * ends)
    source, size = make_source(format_="jsonl"), path.stat().st_size
    header = source.find_header(str(path))
    assert bool(header) == has_header
    found = []
    for start in range(0, size, n_bytes):
        found += read_block(Block(str(path), start, min(start + n_bytes, size)), source, header)
    whole = list(source.read_file(str(path)))
    assert [item for item in found if isinstance(item, NBestList)] == [
        item for item in whole if isinstance(item, NBestList)
    ]
    assert len(found) == len(whole)


def test_lists_of_all_lengths_are_drawn_equally_often(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "BLOCK_BYTES", 512)
    texts = [" ".join(["word"] * (1 + i // 4)) for i in range(120)]  # the longest ones at the end
    lines = [json.dumps({"id": f"u{i}", "hypotheses": [{"text": text}]}) for i, text in enumerate(texts)]
    names = [
        str(write_lines(tmp_path / f"{half}.jsonl", lines[60 * half : 60 * half + 60])) for half in range(2)
    ]
    counts, totals = Counter[str](), []
    for seed in range(400):
        n_bytes_of_all, parts = draw_extract(names, make_source(format_="jsonl"), 3 * 512, seed)
        sizes, found = 0, []
        for n_bytes, lists in parts:
            sizes += n_bytes
            found += ids_of(lists)
        assert len(set(found)) == len(found)
        totals.append(len(found) * n_bytes_of_all / sizes)
        counts.update(found)
    expected = sum(counts.values()) / len(lines)
    assert sum(totals) / len(totals) == pytest.approx(len(lines), rel=0.05)
    assert all(0.6 * expected < counts[f"u{i}"] < 1.5 * expected for i in range(len(lines)))


def test_small_archives_and_files_of_different_kinds_are_read_as_a_whole(tmp_path):
    lines = make_lines(30)
    plain, packed = write_lines(tmp_path / "a.jsonl", lines[:20]), tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(lines[20:]).encode()))
    names = [str(plain), str(packed)]
    for max_bytes in (10, 10**6):
        n_bytes_of_all, drawn = draw_extract(names, make_source(format_="jsonl"), max_bytes, 0)
        parts = [(n_bytes, ids_of(lists)) for n_bytes, lists in drawn]
        assert sum(n_bytes for n_bytes, _ in parts) == n_bytes_of_all
        assert [name for _, ids in parts for name in ids] == [f"u{i}" for i in range(30)]


def test_compressed_files_are_drawn_as_a_whole(tmp_path):
    names = []
    for i in range(8):
        path = tmp_path / f"{i}.jsonl.gz"
        path.write_bytes(gzip.compress(make_lines(i + 1)[-1].encode()))
        names.append(str(path))
    source, counts = make_source(format_="jsonl"), Counter[str]()
    n_bytes = sum((tmp_path / f"{i}.jsonl.gz").stat().st_size for i in range(8))
    for seed in range(200):
        parts = [ids_of(lists) for _, lists in draw_extract(names, source, n_bytes // 2 + 1, seed)[1]]
        assert len(parts) == 4
        counts.update(name for ids in parts for name in ids)
    assert all(70 < n < 130 for n in counts.values())
    assert len(list(draw_extract(names, source, 1, 0)[1])) == 2

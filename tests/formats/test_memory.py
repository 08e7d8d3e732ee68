"""Memory while reading: small compressed files that expand to millions of words, values or lines."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tracemalloc
from itertools import chain
from pathlib import Path

import pytest

from rescorer.errors import FormatError, InvalidList
from rescorer.formats import common
from rescorer.formats.io.folders import MAX_CHARACTERS, read_sample
from rescorer.formats.io.json_io import JsonStream
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE, MIN_PIECES
from rescorer.formats.registry import choose, detect
from rescorer.terminal import program

MB = 1 << 20


def write_bomb(path: Path, begin: bytes, part: bytes, count: int, end: bytes) -> Path:
    """Write a gzip file: a beginning, a part about ``count`` times, and an end."""
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(begin)
        block = part * (1 << 10)
        for _ in range(-(-count >> 10)):
            stream.write(block)
        stream.write(end)
    return path


LONG_LINES = {
    "jsonl": (
        b'{"id": "u1", "hypotheses": [',
        b"{},",
        5 * MB // 2,
        b'"a"]}\n{"id": "u2", "hypotheses": ["a"]}\n',
    ),
    "json": (b'[{"id": "u1", "hypotheses": [\n', b"[],", 5 * MB // 2, b'"a"]}]'),
    "whisper": (b'{"segments": [{"text": "a", "tokens": [', b"{},", 5 * MB // 2, b"1]}]}"),
    "kaldi-text": (b"u1 ", b"ab ", 5 * MB // 2, b"\nu2 a\n"),
    "trn": (b"", b"ab ", 5 * MB // 2, b"(u1)\na (u2)\n"),
}
"""Lines of 7.5 MB; all files have 50 kB or less. Their words and values would take 150 MB and more."""
MAX_GROWTH = 60 * MB
READ = """
import resource, sys
from rescorer.formats.registry import choose, detect
def peak(): return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = peak()
for choice, path in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        for item in [detect(path)[0]] if choice == "detect" else choose(choice).read(path):
            print(f"{choice}:", getattr(item, "id", item))
    except Exception as error:
        print(f"{choice}:", error)
    print("grown", choice, peak() - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is that of Linux")
def test_lines_of_many_words_or_values_are_not_parsed(tmp_path):
    paths = {name: write_bomb(tmp_path / name, *bomb) for name, bomb in LONG_LINES.items()}
    paths["detect"] = write_bomb(tmp_path / "lines", b"", b"x" * (8 * MB >> 10), 1 << 10, b"\n")
    paths["detect"].write_bytes(paths["detect"].read_bytes() * 15)  # members that are lines of 8 MB
    arguments = [word for name, path in paths.items() for word in (name, str(path))]
    assert all(path.stat().st_size < MB for path in paths.values())
    command = [sys.executable, "-c", READ, *arguments, "detect", str(paths["jsonl"])]
    environment = os.environ | {MAX_LINE_VARIABLE: str(8 * MB)}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    lines = out.splitlines()
    grown = {line.split()[1]: int(line.split()[2]) for line in lines if line.startswith("grown")}
    assert max(grown.values()) < MAX_GROWTH, grown
    for name in LONG_LINES:
        found = [line for line in lines if line.startswith(f"{name}:")]
        kind = "values" if name in ("jsonl", "json", "whisper") else "words"
        assert any(kind in line and f"set {MAX_LINE_VARIABLE}" in line for line in found), (name, found)
        assert f"{name}: u1" not in found
        assert b"u2" not in LONG_LINES[name][3] or found[-1] == f"{name}: u2", found


LINES = 16_000
LIST_BYTES = 1 << 18
MANY_LINES = {
    "ctm": (b"", b"u1 A 0.5 0.25 ab\n", b"u2 A 0 1 a\n"),
    "cued:base=e": (b"", b"u1 -1 -2 1 ab\n", b"u2 -1 -2 1 a\n"),
    "paragraphs": (b"", b"ab\n", b"\na\n"),
    "fairseq": (b"", b"H-1\t-0.5\tab\n", b"H-2\t-0.5\ta\n"),
    "wenet": (b"wav u1\n", b"candidate -1 ab\n", b"wav u2\ncandidate -1 a\n"),
    "moses": (b"", b"0 ||| ab ||| LM= -1 ||| -1\n", b"1 ||| a ||| LM= -1 ||| -1\n"),
    "table": (b"id\ttext\tscore\n", b"u1\tab\t-1\n", b"u2\ta\t-1\n"),
    "srilm": (b"", b"-1 -2 1 ab\n", b""),
    "nbestlist2": (b"NBestList2.0\n", b"(-1) a ( st: 0 et: 0 g: 0 a: 0 )\n", b""),
    "htk": (b"N=2 L=1\nI=0\nI=1\n", b"J=0 S=0 E=1 W=ab a=-1 l=-2\n", b""),
    "kaldi-lattice": (b"u1\n", b"0\t1\tab\t1,2,\n", b"1\n\nu2\n0\t1\ta\t1,2,\n1\n\n"),
    f"nemo:beam={LINES + 1500}": (b"", b"ab\t-1\n", b""),
}
"""Files whose first list has many lines: their beginning, the line that is repeated, and the next list."""


@pytest.mark.parametrize("name", MANY_LINES)
def test_a_list_of_many_lines_is_dropped_and_the_next_one_read(tmp_path, monkeypatch, name):
    monkeypatch.setenv(MAX_LINE_VARIABLE, str(LIST_BYTES))
    monkeypatch.setattr(common, "MIN_LIST_BYTES", LIST_BYTES)
    begin, line, end = MANY_LINES[name]
    path = write_bomb(tmp_path / "u1", begin, line, LINES, end)
    tracemalloc.start()
    try:
        try:
            items = list(choose(name).read(path))
        except FormatError as error:
            items = [error]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * MB  # without a bound, at least 3
    assert isinstance(items[0], FormatError | InvalidList)
    reason = f"takes more than {LIST_BYTES:,} bytes, with 128 for each line; set {MAX_LINE_VARIABLE}"
    assert reason in str(items[0])
    next_id = "2" if name in ("paragraphs", "fairseq", "moses") else "u2"
    assert [item.id.split()[0] for item in items[1:]] == ([next_id] if end else [])


def test_a_sample_ends_with_its_first_long_line(tmp_path):
    path = tmp_path / "lists"
    path.write_text('{"id": "u1", "hypotheses": ["' + "a" * MAX_CHARACTERS + '"]}\n{"id": "u2"}\n' * 9)
    sample = read_sample(path)
    assert len(sample.lines) == 1
    assert sample.record.keys() >= {"id"}
    assert detect(path)[0] == "jsonl"


def test_detection_names_the_limit_of_the_first_line(tmp_path):
    path = write_bomb(tmp_path / "lists", b"[", b"1,", 40 * MIN_PIECES, b"1]\n")
    with pytest.raises(FormatError, match=rf"its first line has .* JSON values; set {MAX_LINE_VARIABLE}"):
        detect(path)


def test_blank_lines_before_a_document_are_not_kept(tmp_path):
    path = write_bomb(tmp_path / "lists", b"", b"\n", 100_000, b'[\n{"id": "u1", "hypotheses": ["a"]},\n}]\n')
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=f":{98 * 1024 + 3}: not JSON"):
            list(choose("json").read(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MB


def test_values_are_counted_to_the_end_of_one_value_only(monkeypatch):
    """Many values in a row are many items; many in one are too many, wherever the text is cut."""
    items = b"[1,2]," * MIN_PIECES
    for n_characters in (10, 1 << 16):
        text = f"[{items.decode()}0]"
        chunks = (text[i : i + n_characters] for i in range(0, len(text), n_characters))
        stream = JsonStream(chunks if n_characters > 10 else iter([text]), "f")
        monkeypatch.setattr(stream, "_max_values", 100)
        assert (
            sum(len(stream.read_value()) for _ in zip(range(99), stream.read_elements(), strict=False)) == 198
        )
    stream = JsonStream(iter(["[" + "1," * 200 + '"', "a,[{" * 200 + '"]']), "f")
    monkeypatch.setattr(stream, "_max_values", 300)
    with pytest.raises(FormatError, match="more than 300 values in it; set RESCORER_MAX_LINE_BYTES"):
        stream.read_value()


@pytest.mark.parametrize(("max_values", "n_searches"), [(100_000, 1), (1_000, 16), (10, 1_667)])
def test_many_values_in_a_row_are_counted_together(max_values, n_searches, monkeypatch):
    """A new search is needed only after the 15,000 brackets and commas exceed the limit of a value again."""
    text = "[" + "[1,2]," * 5_000 + "0]"
    searches: list[JsonStream] = []
    cut_text = JsonStream._cut_text

    def count_and_cut(stream):
        searches.append(stream)
        return cut_text(stream)

    monkeypatch.setattr(JsonStream, "_cut_text", count_and_cut)
    stream = JsonStream(iter([text]), "f")
    monkeypatch.setattr(stream, "_max_values", max_values)
    elements = stream.read_elements()
    assert [stream.read_value() for _ in zip(range(5_000), elements, strict=False)] == [[1, 2]] * 5_000
    assert len(searches) == n_searches


def test_streams_with_a_name_per_hypothesis_make_no_square(tmp_path):
    """One stream for each of 3,000 hypotheses would be 9 million scores, of 72 MB."""
    hypotheses = ", ".join(f'{{"text": "a", "scores": {{"{number}": 1}}}}' for number in range(3000))
    path = tmp_path / "lists.jsonl"
    path.write_text(f'{{"id": "u1", "hypotheses": [{hypotheses}]}}\n')
    tracemalloc.start()
    try:
        (item,) = choose("jsonl").read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "no score, though other hypotheses" in str(item)
    assert peak < 10 * MB


def test_features_of_few_hypotheses_make_no_square(tmp_path):
    """One feature for each of 3,000 hypotheses would be 9 million zeros, of 900 MB."""
    path = tmp_path / "nbest"
    path.write_text("".join(f"0 ||| a ||| F{number}= 1 ||| -1\n" for number in range(3000)))
    tracemalloc.start()
    try:
        (item,) = choose("moses").read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "sentence 1 takes more than" in str(item)
    assert peak < 10 * MB


def test_reasons_of_rejections_are_counted_and_not_all_kept(monkeypatch, capsys):
    monkeypatch.setattr(program, "MAX_REASONS", 5)
    rejected = program.Rejections()
    rejected.extend(chain((FormatError(f"a{n}") for n in range(7)), (InvalidList("b") for _ in range(2))))
    assert (len(rejected), rejected.reasons[-1], len(rejected.to_dict()["rejected_lists"])) == (9, "a4", 5)
    rejected.report(rejected.see_json)
    assert capsys.readouterr().err.splitlines() == [
        *(f"rejected: a{n}" for n in range(3)), "rejected: 4 more lists; --json names the first 5",
        *["rejected: list '': b"] * 2,
    ]  # fmt: skip
    assert program.Rejections().see_json == "; --json names them all"


def test_parquet_footers_of_many_columns_are_refused(tmp_path):
    """A footer of 900,000 columns, 12 MB, would take 1.9 GB; one of 10,001 stands for it here."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table({"id": ["u1"], "texts": [["a"]]} | {f"c{number}": [None] for number in range(10_000)})
    path = tmp_path / "wide.parquet"
    parquet.write_table(table, path)
    with pytest.raises(FormatError, match="has 10,002 columns; at most 10,000 are read"):
        next(iter(choose("parquet").read(path)))
    size = 5 * MB
    path.write_bytes(b"PAR1" + bytes(size) + size.to_bytes(4, "little") + b"PAR1")
    with pytest.raises(FormatError, match=rf"has a footer of 5,242,880 bytes; .* set {MAX_LINE_VARIABLE}"):
        next(iter(choose("parquet").read(path)))

"""Lines come out of plain and gzip bytes alike, and damage is an error with a place."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io import text_io
from rescorer.formats.io.text_io import open_output, read_lines


def lines_of(data: bytes) -> list[tuple[int, str | FormatError]]:
    return list(read_lines(io.BytesIO(data)))


TEXTS = st.lists(st.text(st.characters(exclude_characters="\n\r\0\ufeff", exclude_categories=["Cs"])))


@given(TEXTS, st.booleans(), st.booleans(), st.integers(1, 9))
def test_lines_are_those_that_splitting_the_whole_text_gives(texts, compressed, crlf, chunk_bytes):
    data = "".join(text + ("\r\n" if crlf else "\n") for text in texts).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_io, "CHUNK_BYTES", chunk_bytes)
        assert lines_of(gzip.compress(data) if compressed else data) == list(enumerate(texts, start=1))


def test_last_line_needs_no_end_and_blank_lines_count():
    assert lines_of(b"a\n\nb") == [(1, "a"), (2, ""), (3, "b")]
    assert lines_of(b"") == []


def test_byte_order_mark_is_taken_off_the_first_line_only():
    assert lines_of("\ufeffa\n\ufeffb\n".encode()) == [(1, "a"), (2, "\ufeffb")]


def test_several_gzip_members_with_padding_are_one_text():
    assert lines_of(gzip.compress(b"a\n") + gzip.compress(b"b\n") + b"\0" * 100) == [(1, "a"), (2, "b")]


def test_truncated_gzip_gives_its_whole_lines_and_then_the_error():
    whole = b"".join(os.urandom(20).hex().encode() + b"\n" for _ in range(1000))
    *good, (number, fault) = lines_of(gzip.compress(whole)[:-5000])
    assert len(good) > 500
    assert [text.encode() for _, text in good] == whole.split(b"\n")[: len(good)]
    assert isinstance(fault, FormatError)
    assert "damaged gzip data" in str(fault)
    assert number == fault.line == len(good) + 1


def test_corrupt_gzip_is_an_error():
    data = bytearray(gzip.compress(os.urandom(4000)))
    data[len(data) // 2] ^= 0xFF
    assert "damaged gzip data" in str(lines_of(bytes(data))[-1][1])


def test_lines_that_are_no_text_do_not_stop_the_others():
    numbered = lines_of(b"a\nb\xff\nc\0\nd\n")
    assert [numbered[0], numbered[3]] == [(1, "a"), (4, "d")]
    assert str(numbered[1][1]) == "<stream>:2: not UTF-8: invalid start byte at byte 2"
    assert str(numbered[2][1]) == "<stream>:3: contains NUL bytes; expected text"


def test_an_endless_line_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(text_io, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(text_io, "CHUNK_BYTES", 4)
    numbered = lines_of(b"ok\n" + b"x" * 50 + b"\nok\n" + b"y" * 11)
    assert [numbered[0], numbered[2]] == [(1, "ok"), (3, "ok")]
    assert "longer than 10 bytes" in str(numbered[1][1])
    assert "longer than 10 bytes" in str(numbered[3][1])


def test_the_limit_of_a_line_can_be_told(monkeypatch):
    monkeypatch.setenv(text_io.MAX_LINE_VARIABLE, "5")
    assert lines_of(b"12345\n")[0] == (1, "12345")
    assert "longer than 5 bytes; set RESCORER_MAX_LINE_BYTES to allow more" in str(
        lines_of(b"123456\n")[0][1]
    )
    for wrong in ("0", "-1", "64M"):
        monkeypatch.setenv(text_io.MAX_LINE_VARIABLE, wrong)
        with pytest.raises(ConfigError, match=f"RESCORER_MAX_LINE_BYTES='{wrong}': expected a number of"):
            lines_of(b"")


def test_what_is_compressed_a_thousand_times_does_not_fill_the_memory():
    data = gzip.compress((b" " * 9999 + b"\n") * 4000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_lines(io.BytesIO(data))) == 4000
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_a_source_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"none\.jsonl: cannot be read: No such file"):
        list(read_lines(tmp_path / "none.jsonl"))
    with pytest.raises(FormatError, match="Is a directory"):
        list(read_lines(tmp_path))
    with (
        pytest.raises(FormatError, match="cannot be written"),
        open_output(tmp_path / "none" / "out.jsonl"),
    ):
        pass


@pytest.mark.parametrize("name", ["out.txt", "out.txt.gz"])
def test_what_is_written_is_read_back(tmp_path, name):
    with open_output(tmp_path / name) as stream:
        stream.write("a\nü\n")
    assert list(read_lines(tmp_path / name)) == [(1, "a"), (2, "ü")]


def test_dash_is_standard_input_and_output_and_a_pipe_is_served_line_by_line():
    program = """
from rescorer.formats.io.text_io import open_output, read_lines
with open_output("-") as out:
    for number, text in read_lines("-"):
        print(number, text, file=out, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as child:
        for number, word in enumerate([b"one", b"two"], start=1):
            child.stdin.write(word + b"\n")
            assert child.stdout.readline() == b"%d %s\n" % (number, word)
        child.stdin.close()
        assert child.wait(timeout=10) == 0

"""Lines of plain and gzip files, and errors with the place of the damage."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
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


def parse_lines(data: bytes) -> list[tuple[int, str | FormatError]]:
    return list(read_lines(io.BytesIO(data)))


TEXTS = st.lists(st.text(st.characters(exclude_characters="\n\r\0\ufeff", exclude_categories=["Cs"])))


@given(TEXTS, st.booleans(), st.booleans(), st.integers(1, 9))
def test_lines_do_not_depend_on_compression_and_chunk_size(texts, compressed, crlf, chunk_bytes):
    data = "".join(text + ("\r\n" if crlf else "\n") for text in texts).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_io, "CHUNK_BYTES", chunk_bytes)
        assert parse_lines(gzip.compress(data) if compressed else data) == list(enumerate(texts, start=1))


def test_last_line_needs_no_line_end_and_blank_lines_count():
    assert parse_lines(b"a\n\nb") == [(1, "a"), (2, ""), (3, "b")]
    assert parse_lines(b"") == []


def test_removes_byte_order_mark_from_first_line_only():
    assert parse_lines("\ufeffa\n\ufeffb\n".encode()) == [(1, "a"), (2, "\ufeffb")]


def test_reads_several_gzip_members_with_padding():
    assert parse_lines(gzip.compress(b"a\n") + gzip.compress(b"b\n") + b"\0" * 100) == [(1, "a"), (2, "b")]


def test_truncated_gzip_gives_complete_lines_and_then_the_error():
    whole = b"".join(os.urandom(20).hex().encode() + b"\n" for _ in range(1000))
    *valid, (number, error) = parse_lines(gzip.compress(whole)[:-5000])
    assert len(valid) > 500
    assert [text.encode() for _, text in valid] == whole.split(b"\n")[: len(valid)]
    assert isinstance(error, FormatError)
    assert "damaged gzip data" in str(error)
    assert number == error.line == len(valid) + 1


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("bzip2", bz2.compress(b"text")),
        ("bzip2", bz2.compress(b"")),
        ("xz", lzma.compress(b"text")),
        ("zstd", b"\x28\xb5\x2f\xfd rest"),
        ("zip", b"PK\x03\x04 rest"),
    ],
)
def test_names_compressions_that_it_does_not_read(name, data, monkeypatch):
    for chunk_bytes in (1, 1 << 16):
        monkeypatch.setattr(text_io, "CHUNK_BYTES", chunk_bytes)
        with pytest.raises(FormatError) as raised:
            parse_lines(data)
        assert str(raised.value) == f"<stream>: is compressed with {name}; decompress it, or use gzip"
        assert parse_lines(b"BZh9 is a word\n") == [(1, "BZh9 is a word")]


def test_rejects_corrupt_gzip():
    data = bytearray(gzip.compress(os.urandom(4000)))
    data[len(data) // 2] ^= 0xFF
    assert "damaged gzip data" in str(parse_lines(bytes(data))[-1][1])


def test_invalid_lines_do_not_affect_the_others():
    numbered = parse_lines(b"a\nb\xff\nc\0\nd\n")
    assert [numbered[0], numbered[3]] == [(1, "a"), (4, "d")]
    assert str(numbered[1][1]) == "<stream>:2: not UTF-8: invalid start byte at byte 2"
    assert str(numbered[2][1]) == "<stream>:3: contains NUL bytes; expected text"


def test_rejects_lines_over_the_limit(monkeypatch):
    monkeypatch.setattr(text_io, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(text_io, "CHUNK_BYTES", 4)
    numbered = parse_lines(b"ok\n" + b"x" * 50 + b"\nok\n" + b"y" * 11)
    assert [numbered[0], numbered[2]] == [(1, "ok"), (3, "ok")]
    assert "longer than 10 bytes" in str(numbered[1][1])
    assert "longer than 10 bytes" in str(numbered[3][1])


def test_environment_variable_sets_the_limit(monkeypatch):
    monkeypatch.setenv(text_io.MAX_LINE_VARIABLE, "5")
    assert parse_lines(b"12345\n")[0] == (1, "12345")
    assert "longer than 5 bytes; set RESCORER_MAX_LINE_BYTES to allow more" in str(
        parse_lines(b"123456\n")[0][1]
    )
    for invalid in ("0", "-1", "64M"):
        monkeypatch.setenv(text_io.MAX_LINE_VARIABLE, invalid)
        with pytest.raises(ConfigError, match=f"RESCORER_MAX_LINE_BYTES='{invalid}': expected a number of"):
            parse_lines(b"")


def test_decompresses_in_little_memory():
    data = gzip.compress((b" " * 9999 + b"\n") * 4000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_lines(io.BytesIO(data))) == 4000
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_error_names_source_that_cannot_be_opened(tmp_path):
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
def test_reads_back_what_it_wrote(tmp_path, name):
    with open_output(tmp_path / name) as stream:
        stream.write("a\nü\n")
    assert list(read_lines(tmp_path / name)) == [(1, "a"), (2, "ü")]


def test_dash_is_standard_input_and_output_line_by_line():
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

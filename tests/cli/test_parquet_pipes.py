"""Tables through a pipe, which commands cannot read: they say so."""

from __future__ import annotations

import io

import pytest

from rescorer.formats.registry import detect
from tests.support.tables import write_texts


class Dribbling(io.RawIOBase):
    """A pipe that gives a byte at a time."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._content.read(min(size, 1))


@pytest.mark.parametrize(
    "command",
    [
        ("rescore", "-", "--bundle"),
        ("rescore", "-", "--format", "kaldi-lattice", "--bundle"),
        ("rescore", "-", "--map", "text=words", "--bundle"),
        ("rescore", "-", "--plan", "--bundle"),
        ("explain", "-", "u0", "--bundle"),
        ("tune", "-", "-o", "weights.json", "--bundle"),
        ("convert", "-", "out.jsonl"),
        ("convert", "-", "out.jsonl", "--format", "whisper"),
        ("inspect", "-"),
        ("evaluate", "-"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", [io.BytesIO, Dribbling])
def test_says_that_a_table_cannot_be_read_from_a_pipe(
    kind, command, run, ngram_bundle, tmp_path, monkeypatch
):
    class Pipe:
        buffer = kind(write_texts(tmp_path / "a.parquet", 3).read_bytes())

    monkeypatch.setattr("sys.stdin", Pipe())
    monkeypatch.chdir(tmp_path)
    bundle = (ngram_bundle,) if command[-1] == "--bundle" else ()
    code, _, err = run(*command, *bundle)
    assert (code, err.count("<stdin>")) == (3, 1), err
    assert "<stdin>: is a parquet table, which cannot be read from a pipe or in another format" in err


def test_says_that_a_table_has_another_format(run, tmp_path):
    table = write_texts(tmp_path / "a.parquet", 3)
    code, _, err = run("convert", table, tmp_path / "out.jsonl", "--format", "srilm")
    assert (code, "a.parquet: is a parquet table" in err) == (1, True), err


def test_reads_texts_that_begin_like_a_table(run, tmp_path):
    lists = tmp_path / "lists.trn"
    lists.write_text("PAR1 a b (u1)\n")
    assert detect(lists)[0] == "trn"
    assert run("convert", lists, tmp_path / "out.jsonl")[0] == 0
    assert '"PAR1 a b"' in (tmp_path / "out.jsonl").read_text()

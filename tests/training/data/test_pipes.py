"""Texts that come through pipes are read as often as files, and kept no longer than asked for."""

from __future__ import annotations

import gzip
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from rescorer.errors import ConfigError, FormatError
from rescorer.text import Normaliser
from rescorer_training.corpus import read_lines
from rescorer_training.evaluation.perplexity import open_ngram
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.pipes import keep_pipes

TEXT = "the cat sat\nthe mat\nthe cat\n"


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A named pipe through which a text comes once."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = Thread(target=lambda: path.write_bytes(gzip.compress(TEXT.encode())), daemon=True)
    writer.start()
    yield path
    writer.join(10)
    assert not writer.is_alive()


def test_a_pipe_is_read_as_often_as_a_file(pipe: Path) -> None:
    with keep_pipes():
        assert [list(read_lines(pipe)) for _ in range(3)] == [TEXT.splitlines()] * 3


def test_an_ngram_of_a_pipe_is_that_of_the_file(pipe: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    for source in (text, pipe):
        train_ngram([source], Normaliser(), tmp_path / f"{source.name}.arpa", NGramOptions(2))
    assert (tmp_path / "pipe.arpa").read_bytes() == (tmp_path / "text.txt.arpa").read_bytes()


def test_standard_input_is_read_again_under_both_names(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(reader) as stdin:
        os.write(writer, TEXT.encode())
        os.close(writer)
        monkeypatch.setattr(sys, "stdin", stdin)
        with keep_pipes():
            names = (Path("-"), Path(f"/dev/fd/{reader}"), Path("-"))
            assert [list(read_lines(name)) for name in names] == [TEXT.splitlines()] * 3


def test_says_what_is_wrong_with_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for content, message in (
        (b"", "<stdin>: nothing came through this pipe"),
        (b"a\n\xff\n", "<stdin>:2: not UTF-8"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        with keep_pipes(), pytest.raises(FormatError, match=message):
            list(read_lines(Path("-")))


def test_says_if_a_pipe_cannot_be_kept(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda: full)
        with keep_pipes(), pytest.raises(FormatError, match=r"pipe: cannot be kept in .*: No space left"):
            list(read_lines(pipe))


def test_a_model_does_not_come_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model")
    with pytest.raises(ConfigError, match="model: is a pipe, but a model is read more than once"):
        open_ngram(tmp_path / "model")

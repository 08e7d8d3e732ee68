"""The commands ``rescorer-train vectors …``: options, tables, JSON and refusals."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rescorer.errors import FormatError
from rescorer_training.cli import app
from rescorer_training.vectors.files import read_vectors, write_vectors
from rescorer_training.vectors.files.formats import VectorFormat
from tests.support.random_vectors import random_vectors


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["vectors", *map(str, arguments)], env={"COLUMNS": "80"})
    if result.exception:
        raise result.exception
    return result.stdout


def test_convert_keeps_words_and_values(tmp_path):
    vectors = random_vectors(5)
    write_vectors(tmp_path / "v.txt", vectors, VectorFormat.GLOVE)
    run("convert", tmp_path / "v.txt", tmp_path / "v.bin", "--to", "word2vec-binary", "--limit", 4)
    converted = read_vectors(tmp_path / "v.bin", VectorFormat.WORD2VEC_BINARY)
    assert converted.words == vectors.words[:4]
    assert (converted.matrix == vectors.matrix[:4]).all()
    with pytest.raises(FormatError, match="the first line is"):
        run("convert", tmp_path / "v.txt", tmp_path / "v2.txt", "--to", "glove", "--format", "word2vec")

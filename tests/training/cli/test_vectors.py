"""The commands ``rescorer-train vectors …``: options, tables, JSON and refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rescorer.errors import ConfigError, FormatError
from rescorer_training.cli import app
from rescorer_training.vectors.files import VectorFormat, read_vectors, write_vectors
from tests.support.random_vectors import random_vectors
from tests.support.tiny_models import NETWORK_WORDS, write_bundle


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["vectors", *map(str, arguments)], env={"COLUMNS": "80"})
    if result.exception:
        raise result.exception
    return result.stdout


@pytest.fixture
def vectors(tmp_path) -> Path:
    write_vectors(tmp_path / "v.bin", random_vectors(30), VectorFormat.WORD2VEC_BINARY)
    return tmp_path / "v.bin"


def test_neighbours_of_words_and_sums(vectors):
    shown = run("neighbours", vectors, "w1", "w1 - w2 + w3", "-n", 3)
    assert max(map(len, shown.splitlines())) <= 80
    found = json.loads(run("neighbours", vectors, "w1", "w1 - w2 + w3", "-n", 3, "--json"))
    assert list(found) == ["w1", "w1 - w2 + w3"]
    for neighbours in found.values():
        assert len(neighbours) == 3
        assert all(item["word"] in shown and f"{item['cosine']:.3f}" in shown for item in neighbours)


def test_analogies_by_category(vectors, tmp_path):
    lines = ": family\nw1 w2 w3 w4\nw1 w2 w3 zebra\n: gram9-a-rather-long-category\nw5 w6 w7 w8\n"
    (tmp_path / "q.txt").write_text(lines)
    shown = run("analogy", vectors, tmp_path / "q.txt")
    assert max(map(len, shown.splitlines())) <= 80
    facts = json.loads(run("analogy", vectors, tmp_path / "q.txt", "--json"))
    assert [item["name"] for item in facts["sums"]] == ["semantic", "syntactic", "total"]
    assert (facts["sums"][-1]["questions"], facts["sums"][-1]["covered"]) == (3, 2)


def test_similarity_of_a_folder(vectors, tmp_path):
    folder = tmp_path / "sets"
    folder.mkdir()
    pairs = [f"w{number}\tW{number + 1}\t{number}\n" for number in range(20)]
    (folder / "EN-ALL.txt").write_text("".join(pairs))
    (folder / "EN-HALF.txt").write_text("".join(pairs[:9]))
    shown = run("similarity", vectors, folder)
    assert "HALF (in ALL)" in shown
    assert "mean of 1" in shown
    assert max(map(len, shown.splitlines())) <= 80
    facts = json.loads(run("similarity", vectors, folder, "--json"))
    assert facts["mean"] == facts["sets"][0]["spearman"]
    with pytest.raises(ConfigError, match="another set has the name 'ALL'"):
        run("similarity", vectors, folder, folder / "EN-ALL.txt")
    with pytest.raises(ConfigError, match="no files that end in"):
        run("similarity", vectors, tmp_path)


def test_convert_keeps_words_and_values(tmp_path):
    vectors = random_vectors(5)
    write_vectors(tmp_path / "v.txt", vectors, VectorFormat.GLOVE)
    run("convert", tmp_path / "v.txt", tmp_path / "v.bin", "--to", "word2vec-binary", "--limit", 4)
    converted = read_vectors(tmp_path / "v.bin", VectorFormat.WORD2VEC_BINARY)
    assert converted.words == vectors.words[:4]
    assert (converted.matrix == vectors.matrix[:4]).all()
    with pytest.raises(FormatError, match="the first line is"):
        run("convert", tmp_path / "v.txt", tmp_path / "v2.txt", "--to", "glove", "--format", "word2vec")


def test_plots_a_picture_or_a_page(vectors, tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'rescorer[vectors]'")
    run("plot", vectors, "-o", tmp_path / "v.png", "--projection", "PCA", "-n", 9)
    assert (tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "w.txt").write_text("w1\tone\nw2\ttwo\nw3\ttwo\nw4\tone\n")
    run("plot", vectors, "-o", tmp_path / "v.html", "--words", tmp_path / "w.txt", "--title", "A <title>")
    page = (tmp_path / "v.html").read_text()
    assert "A &lt;title&gt;" in page
    assert '"t-SNE": [[' in page
    with pytest.raises(ConfigError, match=r"ends in \.png or \.html"):
        run("plot", vectors, "-o", tmp_path / "v.pdf")
    with pytest.raises(ConfigError, match="a picture shows one projection, got 2"):
        run("plot", vectors, "-o", tmp_path / "v.png", "--projection", "PCA", "--projection", "t-SNE")


@pytest.fixture
def text(tmp_path):
    random = np.random.default_rng(0)
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(random.choice(list("abcdefgh"), 8)) + "\n" for _ in range(30)))
    return path


def test_svd_writes_a_vector_per_word(text, tmp_path):
    options = ["--dimensions", 3, "--to", "word2vec-binary", "--min-count", 1]
    run("svd", text, "-o", tmp_path / "svd.bin", *options)
    vectors = read_vectors(tmp_path / "svd.bin")
    assert sorted(vectors.words) == list("abcdefgh")
    assert vectors.dimensions == 3
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "svd.bin"}


def test_glove_continues_a_run(text, tmp_path):
    options = ["--run", tmp_path / "run", "-o", tmp_path / "glove.txt", "--dimensions", 3, "--threads", 1]
    assert "8 words, 3 dimensions; loss" in run("glove", text, *options, "--epochs", 2)
    first = read_vectors(tmp_path / "glove.txt")
    run("glove", text, *options, "--epochs", 4, "--resume")
    assert (read_vectors(tmp_path / "glove.txt").matrix != first.matrix).any()
    with pytest.raises(ConfigError, match="has a run already"):
        run("glove", text, *options)
    with pytest.raises(ConfigError, match="window was 15, is 10"):
        run("glove", text, *options, "--window", 10, "--resume")
    text.write_text("other words\n")
    with pytest.raises(ConfigError, match=r"other texts: text 1 was .*text\.txt \(480 bytes\), is"):
        run("glove", text, *options, "--resume")


@pytest.mark.parametrize("command", ["train", "glove", "svd", "lsa", "export", "convert", "plot"])
def test_outputs_are_checked_before_inputs_are_read(tmp_path, command):
    missing, folder, file = tmp_path / "missing", tmp_path / "folder.html", tmp_path / "file"
    options = ["--run", tmp_path / "run"] if command in ("train", "glove") else []
    options += ["--to", "glove"] if command == "convert" else []
    inputs = ["--neural", missing] if command == "export" else [missing]
    if command == "plot":
        pytest.importorskip(
            "sklearn", reason="scikit-learn is not installed: pip install 'rescorer[vectors]'"
        )
    folder.mkdir()
    file.write_text("")
    for output, problem in (
        (folder, f"{folder}: cannot be written: Is a directory"),
        (file / "v.html", f"{file}: is not a folder"),
        (Path("/proc/v.html"), "/proc/v.html: cannot be written: (No such file|Permission|Read-only file)"),
    ):
        target = [output] if command == "convert" else ["-o", output]
        with pytest.raises(FormatError, match=problem):
            run(command, *inputs, *target, *options)
    assert {path.name for path in tmp_path.iterdir()} == {"folder.html", "file"}


@pytest.mark.parametrize("command", ["svd", "lsa"])
def test_vectors_are_written_to_a_pipe(text, command):
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8") as pipe:
        try:
            run(command, text, "-o", f"/dev/fd/{writer}", "--dimensions", 3)
        finally:
            os.close(writer)
        assert pipe.readline() == "8 3\n"


def test_export_reads_networks_and_bundles(tmp_path):
    bundle = write_bundle(tmp_path)
    run("export", "--bundle", bundle, "-o", tmp_path / "a.txt")
    run("export", "--neural", bundle / "neural", "-o", tmp_path / "b.txt", "--output-layer")
    assert read_vectors(tmp_path / "a.txt").words == NETWORK_WORDS
    assert read_vectors(tmp_path / "b.txt").words == NETWORK_WORDS
    with pytest.raises(ConfigError, match="either --neural or --bundle"):
        run("export", "-o", tmp_path / "c.txt")
    with pytest.raises(ConfigError, match="expected --model with one of neural, got other"):
        run("export", "--bundle", bundle, "--model", "other", "-o", tmp_path / "c.txt")


def test_rejects_a_text_without_words(tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(FormatError, match="no words"):
        run("svd", tmp_path / "empty.txt", "-o", tmp_path / "svd.txt")


def test_train_writes_vectors_and_resumes(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the red cat sat on the red mat\nthe cat ate\n" * 20)
    options = ["--dimensions", 4, "--min-count", 2, "--threads", 1]
    arguments = ["train", text, "--run", tmp_path / "run", *options]
    report = json.loads(run(*arguments, "-o", tmp_path / "v.txt", "--json"))
    assert report["vocabulary"] == 7
    assert report["words"] == 220
    vectors = read_vectors(tmp_path / "v.txt")
    assert vectors.words[0] == "the"
    assert vectors.dimensions == 4
    run(*arguments, "-o", tmp_path / "v.bin", "--resume", "--to", "word2vec-binary")
    assert (read_vectors(tmp_path / "v.bin").matrix == vectors.matrix).all()
    with pytest.raises(ConfigError, match="continue it with --resume"):
        run(*arguments, "-o", tmp_path / "v.txt")

"""What training word vectors says when the disk is full, at each of the files that it writes."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rescorer.errors import ScoringError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.cli import main
from rescorer_training.vectors import glove, word2vec
from rescorer_training.vectors.glove import GloveOptions
from rescorer_training.vectors.word2vec import Word2VecOptions

N_WORDS = 60
RAW = Normaliser(NormaliserSettings.raw())
GLOVE = GloveOptions(dimensions=50, window=15, min_count=1, epochs=1)
WORD2VEC = Word2VecOptions(dimensions=50, min_count=1, epochs=1)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path / "text"
    lines = (" ".join(f"w{number}" for number in random.integers(N_WORDS, size=8)) for _ in range(400))
    path.write_text("\n".join(lines))
    return path


@contextmanager
def limited_file_size(n_bytes: int) -> Iterator[None]:
    """Let every write beyond a size fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def start_glove(text: Path, folder: Path) -> None:
    glove.start_run([text], RAW, folder, GLOVE, memory_mb=16)


def start_word2vec(text: Path, folder: Path) -> None:
    word2vec.start_run([text], RAW, folder, WORD2VEC)


@pytest.mark.parametrize(
    ("start", "n_bytes", "message"),
    [
        (start_glove, 10, "files of the run cannot be written: File too large. Free disk space, or choose"),
        (start_glove, 10_000, "words of the text cannot be written: File too large"),
        (start_glove, 20_000, "co-occurrences cannot be written: File too large.* a smaller --window"),
        (start_glove, 35_000, "co-occurrences cannot be written: File too large.* a smaller --window"),
        (start_glove, 45_000, "state.safetensors cannot be written at part 0 .*Free disk space, then start"),
        (
            start_word2vec,
            10,
            "files of the run cannot be written: File too large. Free disk space, or choose",
        ),
        (start_word2vec, 10_000, "words of the text cannot be written: File too large"),
        (
            start_word2vec,
            20_000,
            "state.safetensors cannot be written at part 0 .*Free disk space, then start",
        ),
    ],
)
def test_says_what_cannot_be_written(
    text: Path, tmp_path: Path, start: Callable[[Path, Path], None], n_bytes: int, message: str
) -> None:
    with limited_file_size(n_bytes), pytest.raises(ScoringError, match=message):
        start(text, tmp_path / "run")
    assert not list((tmp_path / "run").glob("tmp*"))
    start(text, tmp_path / "run")  # once there is space, without --resume


@pytest.mark.parametrize(
    ("start", "go_on"),
    [
        (start_glove, lambda folder: glove.run(folder, GLOVE, threads=1)),
        (start_word2vec, lambda folder: word2vec.run(folder, WORD2VEC, threads=1)),
    ],
)
def test_keeps_the_saved_state(
    text: Path, tmp_path: Path, start: Callable[[Path, Path], None], go_on: Callable[[Path], object]
) -> None:
    start(text, tmp_path / "run")
    with limited_file_size(20_000), pytest.raises(ScoringError, match="continue from it with --resume"):
        go_on(tmp_path / "run")
    go_on(tmp_path / "run")


@pytest.mark.parametrize(
    ("n_bytes", "message"),
    [
        (10_000, "words of the text cannot be written: File too large"),
        (20_000, "co-occurrences cannot be written: File too large.* a smaller --window"),
        (40_000, "svd.txt: cannot be written: File too large"),
    ],
)
def test_svd_says_what_cannot_be_written(
    text: Path, tmp_path: Path, run: Callable[..., tuple[int, str, str]], n_bytes: int, message: str
) -> None:
    options = ["--dimensions", N_WORDS - 1, "--min-count", 1, "--memory-mb", 16]
    with limited_file_size(n_bytes):
        code, _, error = run("vectors", "svd", text, "-o", tmp_path / "svd.txt", *options, command=main)
    assert code == 2
    assert re.search(f"^rescorer-train: .*{message}", error, re.MULTILINE)
    assert "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


IN_A_SMALL_FILE_SYSTEM = 'mount -t tmpfs -o size=$1 tmpfs "$2" && echo mounted && shift 2 && exec "$@"'


@pytest.mark.slow
@pytest.mark.parametrize(("size", "content"), [("12k", "words of the text"), ("64k", "co-occurrences")])
def test_a_full_file_system_ends_the_command_with_one_line(
    text: Path, tmp_path: Path, size: str, content: str
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    command = (
        f"{sys.executable} -m rescorer_training vectors glove {text} --run {folder}/run -o {tmp_path}/v.txt"
    )
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", IN_A_SMALL_FILE_SYSTEM, "sh"]
    options = ["--min-count", "1", "--dimensions", "4"]
    result = subprocess.run(
        [*namespace, size, folder, *command.split(), *options], capture_output=True, text=True
    )
    if "mounted" not in result.stdout:
        pytest.skip(f"no file system can be mounted here: {result.stderr}")
    message = (
        f"{folder}/run: {content} cannot be written: No space left on device. Free disk space, or choose"
    )
    assert result.stderr.startswith(f"rescorer-train: {message} another folder")
    assert result.stderr.count("\n") == 1
    assert result.returncode == 2

"""The record of the texts that a run was made from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rescorer.errors import BundleError, ConfigError, FormatError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.vectors.runs import SOURCES_FILE, check_sources, record_sources


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path in paths:
        path.write_text(f"words of {path.name}\n")
    record_sources(tmp_path / "run", paths, Normaliser())
    return paths


def test_accepts_the_same_texts_also_under_another_name(texts: list[Path], tmp_path: Path) -> None:
    check_sources(tmp_path / "run", texts, None)
    check_sources(tmp_path / "run", texts, Normaliser())
    moved = texts[0].rename(tmp_path / "moved.txt")
    check_sources(tmp_path / "run", [moved, texts[1]], None)


def test_names_the_text_that_has_changed(texts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"text 1 was .*a\.txt \(15 bytes\), is .*b\.txt \(15 bytes\);"):
        check_sources(tmp_path / "run", texts[::-1], None)
    with pytest.raises(ConfigError, match="there were 2 texts, now 1"):
        check_sources(tmp_path / "run", texts[:1], None)
    texts[1].write_text("words of B.txt\n")
    with pytest.raises(ConfigError, match=r"text 2 was .*b\.txt \(15 bytes\), is .* with another content"):
        check_sources(tmp_path / "run", texts, None)
    texts[1].unlink()
    with pytest.raises(FormatError, match=r"b\.txt: cannot be read: No such file"):
        check_sources(tmp_path / "run", texts, None)


def test_rejects_another_normaliser(texts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave --normaliser out"):
        check_sources(tmp_path / "run", texts, Normaliser(NormaliserSettings.raw()))


def test_does_not_read_pipes(texts: list[Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_sources(tmp_path / "run", [tmp_path / "pipe", texts[1]], None)
    record_sources(tmp_path / "other", [tmp_path / "pipe"], Normaliser())
    check_sources(tmp_path / "other", texts[:1], None)


def test_rejects_a_folder_without_a_run_and_a_damaged_record(texts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run of word vectors to resume; start without --resume"):
        check_sources(tmp_path, texts, None)
    (tmp_path / "run" / SOURCES_FILE).write_text("[{}]")
    with pytest.raises(BundleError, match="damaged"):
        check_sources(tmp_path / "run", texts, None)

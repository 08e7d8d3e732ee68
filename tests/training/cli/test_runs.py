"""Runs of training in a folder: only one at a time, and a stopped one says how to resume it."""

from __future__ import annotations

import errno
import fcntl
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rescorer.errors import ConfigError
from rescorer_training.cli import main
from rescorer_training.cli.options import train_in
from rescorer_training.state_files import lock_folder

COMMANDS = (
    "neural TEXT --validation TEXT -o RUN",
    "classify train a=TEXT b=OTHER -o RUN",
    "vectors train TEXT -o vectors.txt --run RUN",
    "vectors glove TEXT -o vectors.txt --run RUN",
)


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Return a function that runs a command line in a folder with two texts, and returns the exit status."""
    monkeypatch.chdir(tmp_path)
    for name in ("TEXT", "OTHER"):
        (tmp_path / name).write_text("the cat sat\nthe dog slept\n" * 5)

    def call(line: str) -> int:
        monkeypatch.setattr(sys, "argv", ["rescorer-train", *line.split()])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0)

    return call


@pytest.mark.parametrize("line", COMMANDS)
def test_a_folder_in_which_a_process_trains_is_refused(
    call: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    folder = tmp_path / "RUN"
    folder.mkdir()
    with lock_folder(folder):
        assert call(line) == 2
    assert "RUN: another process is training there; wait until it has ended" in capsys.readouterr().err
    assert [*folder.iterdir()] == []


REFUSED = (
    "neural MISSING --validation TEXT -o new/run",
    "neural TEXT --validation EMPTY -o new/run",
    "neural TEXT --validation TEXT --classes 1000 -o new/run",
    "classify train a=TEXT b=EMPTY -o new/run",
    "vectors train EMPTY -o new/vectors.txt --run new/run",
    "vectors glove MISSING -o new/vectors.txt --run new/run",
    "tag train EMPTY -o new/run",
    "correct train MISSING -o new/run",
    "ngram EMPTY -o new/model.arpa",
    "bundle new/model/1 --ngram EMPTY --validation TEXT",
    "finetune MISSING --bundle EMPTY -o new/model/1",
    "run small --data MISSING -o new/run",
)


@pytest.mark.parametrize("line", REFUSED)
def test_nothing_is_left_of_a_refused_command(
    call: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    (tmp_path / "EMPTY").touch()
    assert call(line) in (2, 3, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"TEXT", "OTHER", "EMPTY"}, capsys.readouterr().err


def test_the_lock_ends_with_the_context(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_folder(tmp_path), pytest.raises(ConfigError), lock_folder(tmp_path):
            pass
    assert [*tmp_path.iterdir()] == []


def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with lock_folder(tmp_path):
        pass
    assert caplog.messages == [
        f"{tmp_path}: cannot be locked (No locks available); let no other process train there"
    ]


@pytest.mark.parametrize("has_state", [False, True])
def test_a_stopped_run_says_how_to_resume_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_state: bool
) -> None:
    def train() -> None:
        with train_in(tmp_path / "run", "state", resume=False):
            if has_state:
                (tmp_path / "run" / "state").touch()
            sys.exit(143)

    with pytest.raises(SystemExit):
        train()
    assert ("run is saved: repeat the command with --resume" in capsys.readouterr().err) == has_state


@pytest.mark.parametrize("line", COMMANDS)
def test_there_is_nothing_to_resume_without_a_folder(
    call: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert call(f"{line} --resume") == 2
    assert "without --resume" in capsys.readouterr().err
    assert not (tmp_path / "RUN").exists()


@pytest.mark.parametrize("line", ["neural TEXT --validation TEXT -o RUN", "ngram TEXT -o m.arpa"])
def test_a_size_in_place_of_a_vocabulary_is_refused_before_any_work(
    call: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    assert call(f"{line} --vocabulary 10000") == 2
    message = "--vocabulary 10000: no such file; for the most frequent words, give --vocabulary-size 10000"
    assert message in capsys.readouterr().err
    assert not (tmp_path / "RUN").exists()

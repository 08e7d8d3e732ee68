"""Check that finished work survives interruptions, and that runs with other settings are not mixed."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from rescorer.errors import ConfigError
from rescorer_training.lists.speech import Journal


def test_records_survive_a_cut_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, {"seed": 1}) as journal:
        journal.add("a", [1])
        before = path.stat().st_size
        journal.add("b", "zwölf")
    content = path.read_bytes()
    for cut in range(before, len(content)):
        path.write_bytes(content[:cut])
        with Journal(path, {"seed": 1}) as journal:
            assert journal.finished == {"a": [1]}
            journal.add("b", "zwölf")
        assert path.read_bytes() == content


def test_a_cut_header_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"settings": {"se')
    with Journal(path, {"seed": 1}) as journal:
        assert journal.finished == {}
        journal.add("a", 1)
    with Journal(path, {"seed": 1}) as journal:
        assert journal.finished == {"a": 1}


def test_rejects_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path, {"voices": ("x", "y")}):
        pass
    with Journal(path, {"voices": ("x", "y")}):
        pass
    with pytest.raises(ConfigError, match=r"an unfinished run has other settings \(voices x, y, now x\)"):
        Journal(path, {"voices": ("x",)})


def test_rejects_a_second_run_at_the_same_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal", {}), pytest.raises(ConfigError, match="another process is writing it"):
        Journal(tmp_path / "journal", {})


def test_says_that_a_file_system_cannot_lock_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match="cannot be locked against other runs: No locks available"):
        Journal(tmp_path / "journal", {})

"""Progress reports of library code, and the bars that the command line draws for them."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import pytest

from rescorer import progress
from rescorer.terminal.progress import show_bar
from rescorer.text import Normaliser
from rescorer_training.corpus import count_words


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a word\n" * 25_000)
    return path


def test_reports_go_to_the_installed_display(text, monkeypatch):
    monkeypatch.setattr(progress, "_display", progress._display)  # restored after the test
    reports = []

    class Task:
        def advance(self, amount=1):
            reports.append(amount)

    @contextmanager
    def record(description, unit, total):
        reports.append((description, unit, total))
        yield Task()

    count_words([text], Normaliser())
    assert reports == []
    progress.install_display(record)
    count_words([text], Normaliser(), progress="")
    assert reports == []
    count_words([text], Normaliser())
    assert reports == [("counting words", "lines", None), 10_000, 10_000]


@pytest.mark.parametrize("terminal", [True, False])
def test_bars_are_drawn_on_terminals_only(terminal, monkeypatch, capsys):
    monkeypatch.setattr("rescorer.terminal.progress.SHORT_TASK_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with show_bar("clustering", "sweeps", 2) as task:
        task.set_note("0.5 nats")
        task.advance(2)
    assert ("clustering" in capsys.readouterr().err) == terminal

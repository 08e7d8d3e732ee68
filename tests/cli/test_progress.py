"""Progress on standard error: a bar on a terminal, a line per minute in a log, nothing for short tasks."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rescorer import progress
from rescorer.terminal import progress as bars


def test_a_log_gets_a_line_per_minute(monkeypatch):
    log, clock = io.StringIO(), [1000.0]
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(bars, "time", SimpleNamespace(time=lambda: clock[0]))
    with bars.progress_bar("rescoring", total=400, unit=" lists") as bar:
        bar._time = lambda: clock[0]
        bar.start_t = bar.last_print_t = clock[0]
        for _ in range(10):
            clock[0] += 20
            bar.update(20)
    assert log.getvalue().splitlines() == [
        "rescoring: 60 of 400 lists, 15 % in 01:00, 05:40 left",
        "rescoring: 120 of 400 lists, 30 % in 02:00, 04:40 left",
        "rescoring: 180 of 400 lists, 45 % in 03:00, 03:40 left",
    ]


def test_short_tasks_and_other_messages_leave_no_line_in_a_log(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with bars.progress_bar("rescoring", total=2) as bar:
        bar.update(1)
        bar.write("shard 0 failed", file=log)
    with bars.progress_bar("rescoring", enabled=False) as bar:
        bar.update(1)
    assert log.getvalue() == "shard 0 failed\n"


@pytest.fixture
def shown(monkeypatch) -> dict[str, list[int | None]]:
    """For each task that was displayed, its total and its steps."""
    shown: dict[str, list[int | None]] = {}

    class Task(progress.ProgressTask):
        def __init__(self, steps: list[int | None]) -> None:
            self.steps = steps

        def advance(self, amount: int = 1) -> None:
            self.steps.append(amount)

    def show(description, unit, total):
        shown[description] = [total]
        return progress.nullcontext(Task(shown[description]))

    monkeypatch.setattr("rescorer.terminal.program._show_bar", show)
    return shown


@pytest.fixture
def lists(tmp_path) -> Path:
    lists = tmp_path / "lists.jsonl"
    lists.write_text(
        "".join(
            f'{{"id": "{i}", "reference": "the cat {i}", "hypotheses": [{{"text": "a cat {i}", "scores": '
            f'{{"acoustic": {-i}}}}}, {{"text": "the cat {i}", "scores": {{"acoustic": -3.5}}}}]}}\n'
            for i in range(20)
        )
    )
    return lists


def test_tuning_and_scoring_report_how_far_they_are(shown, run, ngram_bundle, lists, tmp_path):
    code, _, _ = run("tune", lists, "--bundle", ngram_bundle, "-o", tmp_path / "w.json", "--no-cache")
    assert code == 0
    assert {"tuning", "judging on held-out lists"} <= shown.keys()
    for name in ("tuning", "judging on held-out lists"):
        total, *steps = shown[name]
        assert total == sum(steps), name


def test_the_end_of_a_report_says_how_far_it_is(shown, run, ngram_bundle, lists, tmp_path):
    code, _, _ = run("report", lists, "--bundle", ngram_bundle, "-o", tmp_path / "r.html", "--no-cache")
    assert code == 0
    aligned = [name for name in shown if name.startswith("aligning ")]
    assert aligned
    for name in ("judging confidences", *aligned, "describing utterances"):
        total, *steps = shown[name]
        assert total == sum(steps) == 20, name


def test_conversions_count_their_lists(monkeypatch, run, lists, tmp_path):
    bars_made = []

    def make(what, **style):
        bars_made.append(bars.progress_bar(what, **style))
        return bars_made[-1]

    monkeypatch.setattr("rescorer.cli.convert.progress_bar", make)
    monkeypatch.setattr("rescorer.cli.convert.count_lists", lambda sources: len(sources))
    assert run("convert", lists, tmp_path / "out.jsonl")[0] == 0
    (bar,) = bars_made
    assert (bar.n, bar.total, bar.desc) == (20, 1, "converting")


def test_short_tasks_have_no_bar(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with bars.show_bar("scoring", "lists", 10) as task:
        task.advance(10)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(bars, "SHORT_TASK_S", 0.0)
    with bars.show_bar("scoring", "lists", 10) as task:
        task.advance(10)
    assert "scoring" in terminal.getvalue()


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_quiet_rescoring_shows_no_progress_of_its_networks_either(
    options, shown, run, bundle, lists, tmp_path
):
    code, _, _ = run("rescore", lists, "-b", bundle, "-o", tmp_path / "out.jsonl", *options)
    assert code == 0
    assert ("reading a batch" in shown) == (not options)

"""Progress on standard error: a bar on a terminal, a line per minute in a log, nothing for short tasks."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

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


def test_tuning_and_scoring_report_how_far_they_are(monkeypatch, run, ngram_bundle, tmp_path):
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
    lists = tmp_path / "lists.jsonl"
    lists.write_text(
        "".join(
            f'{{"id": "{i}", "reference": "the cat {i}", "hypotheses": [{{"text": "a cat {i}", "scores": '
            f'{{"acoustic": {-i}}}}}, {{"text": "the cat {i}", "scores": {{"acoustic": -3.5}}}}]}}\n'
            for i in range(20)
        )
    )
    code, _, _ = run("tune", lists, "--bundle", ngram_bundle, "-o", tmp_path / "w.json", "--no-cache")
    assert code == 0
    assert {"tuning", "judging on held-out lists"} <= shown.keys()
    for name in ("tuning", "judging on held-out lists"):
        total, *steps = shown[name]
        assert total == sum(steps), name

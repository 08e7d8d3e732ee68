"""The tool that measures how processes feed models runs, and its forecast is that of the slowest part."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from tests.support.sharding import make_lines, write_lines
from tools.feed_speed import forecast
from tools.feed_speed import main as feed_speed


def test_the_slowest_part_limits_the_forecast():
    costs = {"parent": 1e-4, "models": 5e-5, "workers": 1e-3}
    assert forecast(costs, 4) == pytest.approx(4 / 1.15e-3)
    assert forecast(costs, 64) == pytest.approx(1e4)


@pytest.mark.slow
def test_the_tool_measures_one_process_and_several(ngram_bundle, tmp_path):
    lists = write_lines(tmp_path / "in.jsonl", make_lines(20))
    app = typer.Typer()
    app.command()(feed_speed)
    arguments = [str(lists), "--bundle", str(ngram_bundle), "--workers", "1", "--repetitions", "1"]
    done = CliRunner().invoke(app, [*arguments, "--batch-words", "50"])
    assert done.exit_code == 0, done.output
    assert "one, alone" in done.output
    assert "1 + 2" in done.output
    assert "bytes of frames a list" in done.output

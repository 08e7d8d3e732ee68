"""Check the command ``lists speech`` with a fake synthesiser and recogniser: SIGTERM, resumption, JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rescorer_training.cli import app
from rescorer_training.lists import speech
from tests.support.fake_speech import CALLS, FakeRecogniser, install_flite

ROOT = Path(__file__).parents[3]
PROGRAM = """
from rescorer_training.cli import main
from rescorer_training.lists import speech
from tests.support.fake_speech import FakeRecogniser
speech.PocketSphinx, speech.import_pocketsphinx = FakeRecogniser, lambda: None
main()
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the fakes and a text of 300 sentences; return the file that counts recognitions."""
    install_flite(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(CALLS, str(tmp_path / "calls"))
    monkeypatch.setattr(speech, "PocketSphinx", FakeRecogniser)
    monkeypatch.setattr(speech, "import_pocketsphinx", lambda: None)
    names = [f"{chr(97 + i // 20)}{chr(97 + i % 20)}" for i in range(300)]
    (tmp_path / "text.txt").write_text("".join(f"sentence number {name}\n" for name in names))
    return tmp_path / "calls"


def arguments(output: Path, number: int) -> list[str]:
    text = str(output.parent / "text.txt")
    return ["lists", "speech", text, "-o", str(output), "-n", str(number), "--voice", "flite:slt"]


def run(output: Path, number: int, *more: str) -> str:
    result = CliRunner().invoke(app, [*arguments(output, number), *more], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def interrupt(output: Path, calls: Path, number: int) -> subprocess.CompletedProcess[str]:
    """Start the command, and send it SIGTERM once four sentences have been recognised."""
    command = [sys.executable, "-c", PROGRAM, *arguments(output, number)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as program:
        while program.poll() is None and (not calls.exists() or len(calls.read_text().splitlines()) < 4):
            time.sleep(0.01)
        program.send_signal(signal.SIGTERM)
        _, errors = program.communicate(timeout=60)
    return subprocess.CompletedProcess(command, program.returncode, "", errors)


def test_goes_on_after_sigterm_and_a_smaller_number_loses_nothing(tmp_path: Path, calls: Path) -> None:
    output, whole = tmp_path / "parts.jsonl", tmp_path / "whole.jsonl"
    ended = interrupt(output, calls, 300)
    assert ended.returncode == 128 + signal.SIGTERM
    assert f"finished lists are kept in {output}.unfinished" in ended.stderr
    folder = tmp_path / "parts.jsonl.unfinished"
    n_finished = len((folder / "lists.jsonl").read_text().splitlines()) - 1
    assert 2 < n_finished < 300
    assert f"{n_finished - 2} finished sentence" in run(output, 2)
    assert len(output.read_text().splitlines()) <= 2
    calls.unlink()
    run(output, n_finished + 2)
    assert len(calls.read_text().splitlines()) <= 2
    assert not folder.exists()
    run(whole, n_finished + 2)
    assert output.read_text() == whole.read_text()


def test_prints_json(tmp_path: Path, calls: Path) -> None:
    facts = json.loads(run(tmp_path / "lists.jsonl", 6, "--json"))
    assert facts["written"] == len((tmp_path / "lists.jsonl").read_text().splitlines())
    assert facts["written"] + sum(facts["rejected"].values()) == 6
    assert facts["kept"] == 0


@pytest.mark.parametrize("snr", ["inf", "nan", "41"])
def test_refuses_an_empty_range_of_noise(tmp_path: Path, calls: Path, snr: str) -> None:
    result = CliRunner().invoke(app, [*arguments(tmp_path / "lists.jsonl", 2), "--min-snr", snr])
    assert result.exit_code != 0
    assert f"--min-snr {snr}, --max-snr 40" in str(result.exception) + result.output

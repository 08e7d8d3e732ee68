"""Check lists made by speech with a fake synthesiser and recogniser: resumption, determinism, rejections."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.formats.jsonlines import read_lists
from rescorer.terminal.list_options import ListInputOptions
from rescorer.types import NBestList
from rescorer_training.cli import app
from rescorer_training.cli.reranking import ReadingOptions
from rescorer_training.lists.patterns import Sentence
from rescorer_training.lists.speech import SpeechSettings, make_speech_lists
from tests.support.fake_speech import CALLS, FakeRecogniser, install_flite

TEXTS = ["a crash", "silence please", *(f"sentence number {chr(97 + i)}" for i in range(10))]
SENTENCES = [Sentence(f"{number:016x}", tuple(text.split())) for number, text in enumerate(TEXTS)]
SETTINGS = SpeechSettings(seed=1, depth=3, voices=("flite:slt", "flite:kal"), snr_range_db=(20.0, 35.0))


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the fake synthesiser; return the file that counts recognitions."""
    install_flite(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(CALLS, str(tmp_path / "calls"))
    return tmp_path / "calls"


def make(output: Path, n_processes: int = 1, sentences: list[Sentence] = SENTENCES):
    return make_speech_lists(
        sentences, output, SETTINGS, FakeRecogniser, n_processes=n_processes, timeout_s=60.0
    )


def test_lists_do_not_depend_on_processes_and_record_voices(tmp_path: Path, calls: Path) -> None:
    summary = make(tmp_path / "one.jsonl")
    make(tmp_path / "two.jsonl", n_processes=2)
    content = (tmp_path / "one.jsonl").read_text()
    assert content == (tmp_path / "two.jsonl").read_text()
    assert not list(tmp_path.glob("*.unfinished"))
    lists = [item for item in read_lists(tmp_path / "one.jsonl") if isinstance(item, NBestList)]
    assert len(lists) == summary.written
    assert summary.rejected["flite failed with status 7"] == 1
    assert summary.rejected["flite wrote no speech"] == 1
    assert summary.written + summary.rejected.total() == len(SENTENCES)
    for nbest in lists:
        assert nbest.reference in TEXTS
        assert set(nbest.streams) == {"acoustic", "lm"}
        assert nbest.group == nbest.fields["voice"]
        assert 0.8 <= nbest.fields["speed"] <= 1.25
        assert abs(nbest.fields["pitch_semitones"]) <= 3
        assert 20 <= nbest.fields["snr_db"] <= 35


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, calls: Path) -> None:
    make(tmp_path / "whole.jsonl")
    n_calls = len(calls.read_text().splitlines())
    output = tmp_path / "parts.jsonl.gz"
    folder = tmp_path / "parts.jsonl.gz.unfinished"
    folder.mkdir()
    # the state that a killed run leaves: some finished sentences, a line that was cut off, and a sound file
    make(tmp_path / "first.jsonl", sentences=SENTENCES[:7])
    (folder / "sounds").mkdir()
    (folder / "sounds" / "left.wav").write_bytes(b"RIFF")
    lines = [json.loads(line) for line in (tmp_path / "first.jsonl").read_text().splitlines()]
    done = {line["id"].removeprefix("speech-"): line for line in lines}
    settings = {"seed": 1, "depth": 3, "voices": list(SETTINGS.voices), "snr_range_db": [20.0, 35.0]}
    records = [{"settings": settings}]
    records += [
        {"key": key, "value": {"list": json.dumps(line, separators=(",", ":"))}} for key, line in done.items()
    ]
    journal = "".join(f"{json.dumps(record)}\n" for record in records)
    (folder / "lists.jsonl").write_text(journal + '{"key": "00000000000000')
    calls.unlink()
    make(output)
    assert gzip.decompress(output.read_bytes()).decode() == (tmp_path / "whole.jsonl").read_text()
    assert len(calls.read_text().splitlines()) == n_calls - len(done)
    assert not folder.exists()


def test_nothing_is_written_if_no_sentence_gives_a_list(tmp_path: Path, calls: Path) -> None:
    output = tmp_path / "lists.jsonl"
    output.write_text("what was there\n")
    crashes = [Sentence("00", ("crash",)), Sentence("01", ("crash", "with", "words"))]
    reasons = r"1: flite failed with status 7; 1: flite failed with status 1: 7 is unlucky"
    with pytest.raises(ConfigError, match=rf"no sentence gave a list \({reasons}\)"):
        make(output, sentences=crashes)
    assert output.read_text() == "what was there\n"
    assert not list(tmp_path.glob("*.unfinished"))


def run_command(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["lists", "speech", *map(str, arguments)])
    assert result.exit_code != 0
    return str(result.exception) + result.output


def test_command_checks_its_files_before_any_work(tmp_path: Path) -> None:
    text, lists = tmp_path / "text.txt", tmp_path / "lists.jsonl"
    text.write_text("one two three four\n")
    lists.write_text('{"id": "1", "hypotheses": ["one"], "reference": "one"}\n')
    for file in (text, lists):
        message = run_command(text, "-o", file, "--exclude", lists)
        assert f"{file} would overwrite an input file" in message
    assert "not of a device or pipe" in run_command(text, "-o", "/dev/null")
    message = run_command(text, "-o", tmp_path / "out.jsonl", "--min-words", 9, "--max-words", 3)
    assert "--min-words 9 is more than --max-words 3" in message


def test_says_how_many_lists_cannot_be_excluded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text(
        '{"id": "1", "hypotheses": ["one"], "reference": "one"}\n{"id": "2", "hypotheses": ["two"]}\n'
    )
    reading = ReadingOptions(list_options=ListInputOptions())
    assert len(reading.read_excluded([str(path)])) == 2
    assert "1 of the 2 lists of --exclude have no reference" in capsys.readouterr().err

"""Run the examples against a real server, on synthetic speech."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY
from tests.support.servers import run_server

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "examples"
SENTENCE = "the ship lay at anchor in the bay"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with run_server(REPOSITORY / "models" / "starter" / "1") as server:
        yield server.target


def run_example(*command: object) -> list[str]:
    """Run an example that must succeed; return the lines of its output."""
    process = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def test_reflection_client_rescores_a_list(server):
    first, second = run_example(EXAMPLES / "reflect.py", server)
    assert first.startswith("1 (was 2)")
    assert first.endswith("the sea was calm")
    assert second.endswith("the see was calm")
    source = (EXAMPLES / "reflect.py").read_text()
    assert "import rescorer" not in source
    assert "from rescorer" not in source


@pytest.mark.slow
def test_recognises_speech_and_rescores_its_list_and_lattice(server, tmp_path):
    pytest.importorskip("pocketsphinx")
    if shutil.which("flite") is None:
        pytest.skip("flite, a speech synthesiser, is not installed")
    wav = tmp_path / "speech.wav"
    subprocess.run(["flite", "-voice", "slt", "-t", SENTENCE, "-o", str(wav)], check=True)
    texts = dict(
        line.split(maxsplit=1) for line in run_example(EXAMPLES / "recognise.py", wav, "--server", server)
    )
    first_pass = texts.pop("first").removeprefix("pass").strip()
    assert set(texts) == {"list", "lattice"}
    words = set(SENTENCE.split())
    assert len(words & set(texts["list"].split())) >= len(words & set(first_pass.split()))
    assert len(words & set(texts["lattice"].split())) > len(words) / 2


def test_rejects_audio_that_is_not_mono_16_khz(tmp_path):
    pytest.importorskip("pocketsphinx")
    import wave

    with wave.open(str(tmp_path / "a.wav"), "wb") as audio:
        audio.setparams((2, 2, 8000, 0, "NONE", ""))
        audio.writeframes(b"\0" * 400)
    command = [sys.executable, EXAMPLES / "recognise.py", tmp_path / "a.wav"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert "expected 1 channel, 16 bits and 16000 Hz" in process.stderr

"""The examples run, against a real server, on speech that a synthesiser speaks for them."""

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
SAID = "the ship lay at anchor in the bay"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with run_server(REPOSITORY / "models" / "starter" / "1") as server:
        yield server.target


def ran(*command: object) -> list[str]:
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_client_that_knows_only_reflection_gets_a_list_in_its_new_order(server):
    first, second = ran(EXAMPLES / "reflect.py", server)
    assert first.startswith("1 (was 2)")
    assert first.endswith("the sea was calm")
    assert second.endswith("the see was calm")
    imported = (EXAMPLES / "reflect.py").read_text()
    assert "import rescorer" not in imported
    assert "from rescorer" not in imported


@pytest.mark.slow
def test_speech_is_recognised_and_its_list_and_lattice_rescored(server, tmp_path):
    pytest.importorskip("pocketsphinx")
    if shutil.which("flite") is None:
        pytest.skip("no flite here, Debian's package of a speech synthesiser")
    wav = tmp_path / "speech.wav"
    subprocess.run(["flite", "-voice", "slt", "-t", SAID, "-o", str(wav)], check=True)
    told = dict(line.split(maxsplit=1) for line in ran(EXAMPLES / "recognise.py", wav, "--server", server))
    heard = told.pop("first").removeprefix("pass").strip()
    assert set(told) == {"list", "lattice"}
    said = set(SAID.split())
    assert len(said & set(told["list"].split())) >= len(said & set(heard.split()))
    assert len(said & set(told["lattice"].split())) > len(said) / 2


def test_speech_that_is_no_mono_16_khz_is_refused(tmp_path):
    pytest.importorskip("pocketsphinx")
    import wave

    with wave.open(str(tmp_path / "a.wav"), "wb") as made:
        made.setparams((2, 2, 8000, 0, "NONE", ""))
        made.writeframes(b"\0" * 400)
    command = [sys.executable, EXAMPLES / "recognise.py", tmp_path / "a.wav"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "expected 1 channel, 16 bits and 16000 Hz" in done.stderr) == (1, True)

"""Run the examples against a real server, on synthetic speech."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rescorer.service.access import hash_token
from tests.conftest import REPOSITORY
from tests.support.certificates import Authority
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


def test_reflection_client_uses_tls_and_a_token(tmp_path):
    authority = Authority(tmp_path)
    pair = authority.issue("service")
    access = tmp_path / "clients.toml"
    access.write_text(
        f'[[client]]\nname = "a"\nroles = ["score"]\ntoken_sha256 = ["{hash_token("secret")}"]\n'
    )
    access.chmod(0o600)
    settings = {"tls_certificate": pair.certificate, "tls_key": pair.key, "access": access}
    with run_server(REPOSITORY / "models" / "starter" / "1", **settings) as server:
        secure = (EXAMPLES / "reflect.py", server.target, "--ca", authority.certificate)
        assert run_example(*secure, "--token", "secret")[0].startswith("1 (was 2)")
        with pytest.raises(AssertionError, match="UNAUTHENTICATED"):
            run_example(*secure, "--token", "wrong")
        other = Authority(tmp_path, "other").certificate
        for options, reason in (
            ((), "the server speaks TLS: add --tls or --ca"),
            (
                ("--ca", other),
                "its certificate is not trusted (",
            ),
        ):
            with pytest.raises(AssertionError) as raised:
                run_example(EXAMPLES / "reflect.py", server.target, *options)
            assert str(raised.value).startswith(f"{server.target}: UNAVAILABLE: {reason}")
            assert "handshake" not in str(raised.value).lower()  # a line of gRPC's own log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("127.0.0.1:1",), "127.0.0.1:1: UNAVAILABLE: connection refused"),
        (("10.0.0.1:1", "--token", "secret"), "plain text"),
        (("127.0.0.1:1", "--ca", "missing.pem"), "missing.pem: No such file"),
    ],
)
def test_reflection_client_explains_errors_in_one_line(options, message):
    command = [sys.executable, EXAMPLES / "reflect.py", *options]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert message in process.stderr
    assert "Traceback" not in process.stderr


def test_reflection_client_says_that_a_server_has_no_tls(server, tmp_path):
    with pytest.raises(AssertionError, match="UNAVAILABLE: the server does not speak TLS: leave out --tls"):
        run_example(EXAMPLES / "reflect.py", server, "--ca", Authority(tmp_path).certificate)


def test_reflection_client_has_help():
    assert "--token" in "\n".join(run_example(EXAMPLES / "reflect.py", "--help"))


def test_captions_are_rescored_while_people_speak(server, tmp_path):
    expected = [
        "partial  the ship lay at",
        "final    the ship lay at anchor",
        "partial  and the sea",
        "final    and the sea was calm",
    ]
    example = EXAMPLES / "stream_captions.py"
    assert run_example(example, "--server", server) == expected
    events = tmp_path / "events.jsonl"
    events.write_text('{"partial": ["the ship lay"]}\n{"final": [["the ship lay", -1.0]]}\n')
    assert run_example(example, events, "--server", server) == [
        "partial  the ship lay",
        "final    the ship lay",
    ]


def test_captions_carry_what_was_said_before():
    spec = importlib.util.spec_from_file_location("stream_captions", EXAMPLES / "stream_captions.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    sent = []

    class Recording:
        def rescore(self, nbest, weights, timeout_s):
            sent.append(nbest)
            return [SimpleNamespace(best=nbest.hypotheses[-1])]

    list(example.rescore_events(Recording(), example.CONVERSATION * 20))
    assert [hypothesis.partial for hypothesis in sent[0].hypotheses] == [True, True]
    assert not sent[1].hypotheses[0].partial
    assert [utterance.text for utterance in sent[3].previous] == ["the ship lay at anchor"]
    assert len(sent[-1].previous) == example.MAX_PREVIOUS


def test_beams_of_a_ctc_model_are_rescored():
    pytest.importorskip("pyctcdecode", reason="the package pyctcdecode is not installed")
    bundle = REPOSITORY / "models" / "starter" / "1"
    assert run_example(EXAMPLES / "ctc_beams.py", "--bundle", bundle) == [
        "first pass  the see was calm",
        "rescored    the sea was calm",
    ]


def test_recognises_speech_and_rescores_its_list_and_lattice(server, tmp_path):
    pytest.importorskip("pocketsphinx", reason="the package pocketsphinx is not installed")
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
    (tmp_path / "words.txt").write_text("ship lay\nanchor\n")
    lines = run_example(
        EXAMPLES / "recognise.py", wav, "--server", server, "--phrases", tmp_path / "words.txt"
    )
    assert len(lines) == 3


def test_rejects_audio_that_is_not_mono_16_khz(tmp_path):
    pytest.importorskip("pocketsphinx", reason="the package pocketsphinx is not installed")
    import wave

    with wave.open(str(tmp_path / "a.wav"), "wb") as audio:
        audio.setparams((2, 2, 8000, 0, "NONE", ""))
        audio.writeframes(b"\0" * 400)
    command = [sys.executable, EXAMPLES / "recognise.py", tmp_path / "a.wav"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert "expected 1 channel, 16 bits and 16000 Hz" in process.stderr

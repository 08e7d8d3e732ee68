"""Signals from the start of a program on: SIGTERM and Ctrl-C end it, SIGHUP never does, also as process 1."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from rescorer.bench.load import process_tree
from rescorer.signals import TERMINATED_STATUS, HeldStop, Stopped, hold_stops, keep_sigterm
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow

DELAYS_S = 0.0, 0.3, 1.0, 2.0
"""Times between the start of a program and the signal; imports take 2 s if a network is loaded."""
LIST = json.dumps({"id": "u", "hypotheses": [{"text": "the cat", "scores": {"acoustic": -1.0}}]})
WAIT_S = 60
"""Time for what takes a few seconds, also on a busy machine."""
N_PROCESSES = 4
"""A command, the tracker of ``multiprocessing``, and two processes that score."""
N_LISTS = 1000
"""More than is read at once, so that rescoring begins before the input ends."""
RESCORER, TRAINER = (sys.executable, "-m", "rescorer.cli"), (sys.executable, "-m", "rescorer_training")
UNSHARE = "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"


@contextmanager
def start(*command: object, stderr: int | IO[str] = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a process group of its own; kill the group at the end."""
    with subprocess.Popen(
        [*map(str, command)],
        stdin=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
        pipesize=1 << 20,  # more than tests write
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def handles(pid: int, number: int) -> bool:
    """Whether a process catches or ignores a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def wait_until_handled(process: subprocess.Popen[str]) -> None:
    wait_until(lambda: process.poll() is not None or handles(process.pid, signal.SIGTERM))


@pytest.fixture
def in_processes(ngram_bundle: Path, tmp_path: Path) -> tuple[object, ...]:
    """A command that rescores lists in two processes until the pipe ends from which it reads them."""
    more = ("-o", tmp_path / "out.jsonl", "--weights", "default", "--workers", 2, "--batch-words", 1)
    return *RESCORER, "rescore", "-", "--bundle", ngram_bundle, *more


def write_lists(process: subprocess.Popen[str]) -> None:
    """Send lists to the process, and keep the pipe open."""
    process.stdin.write(f"{LIST}\n" * N_LISTS)
    process.stdin.flush()


@pytest.fixture
def commands(ngram_bundle: Path, tmp_path: Path) -> dict[str, tuple[object, ...]]:
    """Commands that run until they are stopped."""
    text = tmp_path / "text"
    os.mkfifo(text)
    return {
        "rescore": (*RESCORER, "rescore", "-", "--bundle", ngram_bundle, "-o", tmp_path / "out.jsonl"),
        "serve": (*RESCORER, "serve", "--bundle", ngram_bundle, "--port", "0", "--threads", "1"),
        "perplexity": (*TRAINER, "perplexity", text, "--bundle", ngram_bundle),
    }


@pytest.mark.parametrize("name", ["rescore", "perplexity"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_whenever_it_comes(commands, name, number, tmp_path):
    for delay_s in DELAYS_S[:3] if name == "rescore" else DELAYS_S[1:2]:
        with start(*commands[name]) as process:
            wait_until_handled(process)
            time.sleep(delay_s)
            process.send_signal(number)
            assert (process.wait(WAIT_S), process.stderr.read()) == (128 + number, "")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_sigterm_before_a_command_has_begun_ends_it(commands):
    with start(*commands["rescore"]) as process:
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        # by the kernel if Python starts late
        assert process.wait(WAIT_S) in (-signal.SIGTERM, TERMINATED_STATUS)


@pytest.mark.parametrize(("name", "statuses"), [("rescore", {TERMINATED_STATUS}), ("serve", {0, 143})])
def test_sigterm_ends_process_1_whenever_it_comes(commands, name, statuses):
    allowed = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"needs the right to make a namespace of processes: {allowed.stderr.strip()}")
    for delay_s in DELAYS_S[::2] if name == "rescore" else DELAYS_S:
        with start(*UNSHARE, *commands[name]) as unshare:
            wait_until(lambda pid=unshare.pid: len(process_tree(pid)) > 1)
            first = process_tree(unshare.pid)[1]
            wait_until(lambda pid=first: handles(pid, signal.SIGTERM))
            time.sleep(delay_s)
            os.kill(first, signal.SIGTERM)
            assert unshare.wait(WAIT_S) in statuses


def test_the_handler_is_there_before_anything_that_takes_long_is_imported():
    code = "import sys, rescorer.cli, rescorer_training.cli; print(*sys.modules, sep='\\n')"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"typer", "numpy", "dataclasses", "rescorer.types", "rescorer.errors"} & {*modules.split()}


def test_sighup_does_not_end_a_command_or_its_processes(in_processes, tmp_path):
    with start(*in_processes) as process:
        write_lists(process)
        wait_until(lambda: handles(process.pid, signal.SIGHUP))

        def have_started() -> bool:
            os.killpg(process.pid, signal.SIGHUP)
            return len(process_tree(process.pid)) == N_PROCESSES

        wait_until(have_started)
        process.stdin.close()
        while process.poll() is None:
            os.killpg(process.pid, signal.SIGHUP)
            time.sleep(0.02)
        assert process.returncode == 0, process.stderr.read()
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == N_LISTS


def test_sigterm_ends_the_processes_of_a_command(in_processes, tmp_path):
    with start(*in_processes) as process:
        write_lists(process)
        wait_until(lambda: len(process_tree(process.pid)) == N_PROCESSES)
        children = process_tree(process.pid)[1:]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == TERMINATED_STATUS
        wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children))
    assert [*tmp_path.iterdir()] == []


def test_ctrl_c_ends_a_command_and_its_processes_quietly(in_processes, tmp_path):
    with start(*in_processes) as process:
        write_lists(process)
        wait_until(lambda: len(process_tree(process.pid)) == N_PROCESSES)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(WAIT_S) == 128 + signal.SIGINT
        assert "Traceback" not in process.stderr.read()
    assert [*tmp_path.iterdir()] == []


def test_sighup_ends_no_process_of_a_server_that_starts(ngram_bundle, tmp_path):
    options = ("--port", "0", "--front-ends", "2", "--threads", "1", "--log-format", "json")
    path = tmp_path / "log"
    with (
        path.open("w") as log,
        start(*RESCORER, "serve", "--bundle", ngram_bundle, *options, stderr=log) as process,
    ):
        wait_until(lambda: handles(process.pid, signal.SIGHUP))
        while process.poll() is None and path.read_text().count('"serving"') < 2:
            os.killpg(process.pid, signal.SIGHUP)
            time.sleep(0.02)
        n_processes = len(process_tree(process.pid))
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, path.read_text()
    assert n_processes == 4
    assert [line for line in path.read_text().splitlines() if json.loads(line)["level"] != "info"] == []


@pytest.mark.parametrize(
    ("limit_s", "cleanup_s", "names"), [(60, 1, []), (1, 600, ["folder"])], ids=["cleans up", "hangs"]
)
def test_a_program_has_some_time_to_clean_up(tmp_path, limit_s, cleanup_s, names):
    code = f"""
import os, time
from rescorer import signals
signals.CLEANUP_S = {limit_s}
with signals.handle_signals():
    os.mkdir("folder")
    try:
        print(flush=True)
        time.sleep(600)
    finally:
        time.sleep({cleanup_s})
        os.rmdir("folder")
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == TERMINATED_STATUS
    assert [path.name for path in tmp_path.iterdir()] == names


LOSSES = {
    "in a destructor": """
class Sender:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

Sender()
""",
    "by a library": """
try:
    os.kill(os.getpid(), signal.SIGTERM)
except BaseException:
    pass
""",
}
"""Code in which the exception of a stop is lost."""


@pytest.mark.parametrize("loss", LOSSES)
def test_a_stop_is_repeated_if_its_exception_is_lost(loss, tmp_path):
    code = f"""
import os, signal, time
from rescorer import signals
signals.CLEANUP_S = 60.0
with signals.handle_signals():
    os.mkdir("folder")
    try:
        {LOSSES[loss].strip().replace(chr(10), chr(10) + " " * 8)}
        time.sleep(600)
    finally:
        os.rmdir("folder")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr, [*tmp_path.iterdir()]) == (TERMINATED_STATUS, b"", [])


@pytest.mark.parametrize("loss", LOSSES)
def test_a_program_that_ends_before_a_lost_stop_is_repeated_has_its_status(loss):
    code = f"""
import os, signal
from rescorer import signals
signals.REPEAT_S = 600
with signals.handle_signals():
    {LOSSES[loss].strip().replace(chr(10), chr(10) + " " * 4)}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stderr) == (TERMINATED_STATUS, b"")


def test_other_errors_in_destructors_are_printed_after_a_stop():
    code = """
import os, signal
from rescorer import signals

class Failing:
    def __del__(self):
        raise ValueError("cannot close")

with signals.handle_signals():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        Failing()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, b"ValueError: cannot close" in done.stderr) == (TERMINATED_STATUS, True)


def test_later_signals_do_not_interrupt_the_cleanup(tmp_path):
    code = """
import os, signal, time
from rescorer import signals
signals.CLEANUP_S = 60.0
with signals.handle_signals():
    os.mkdir("folder")
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
            time.sleep(2 * signals.REPEAT_S)
        os.rmdir("folder")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr, [*tmp_path.iterdir()]) == (TERMINATED_STATUS, b"", [])


def test_held_stops_take_effect_at_the_end():
    held = HeldStop()

    def work() -> None:
        nonlocal held
        with hold_stops() as held:
            held.check()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(Stopped):
                held.check()

    with pytest.raises(KeyboardInterrupt):
        work()
    assert held.number == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_held_stop_takes_effect_after_an_error_too():
    def fail() -> None:
        with hold_stops():
            signal.raise_signal(signal.SIGINT)
            raise OSError("no more processes")

    with pytest.raises(KeyboardInterrupt) as stop:
        fail()
    assert isinstance(stop.value.__context__, OSError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_that_python_did_not_install_are_kept(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    with hold_stops() as held, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert held.number == 0
    with keep_sigterm():  # None cannot be set again
        monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)


def test_nothing_is_held_outside_the_main_thread():
    def hold() -> int:
        with hold_stops() as stop:
            stop.check()
        return stop.number

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(hold).result() == 0


def test_an_error_that_a_library_makes_of_the_exit_does_not_change_the_status():
    code = """
import time
from rescorer import signals
with signals.handle_signals():
    try:
        print(flush=True)
        time.sleep(60)
    except SystemExit as error:
        raise ValueError("a schema cannot be built") from error
"""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == TERMINATED_STATUS
        assert process.stderr.read() == b""

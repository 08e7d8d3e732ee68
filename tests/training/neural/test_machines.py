"""Training over two machines, here two launchers of ``torchrun`` on loopback, each with a process of its own:
what is left when one dies, and how both go on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.toy_training import write_text

pytestmark = pytest.mark.slow
SIZES = ("--embedding", "8", "--hidden", "8", "--batch-words", "64", "--dropout", "0.2", "--threads", "1")
DURATION = ("--epochs", "12", "--patience", "12")
DEADLINE_S = 240.0
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Makes restarted processes meet in a store of their own; in one that is shared with those before them, they
may find the addresses of these and try to reach them."""


def wait_until(condition: Callable[[], object], launchers: Sequence[subprocess.Popen] = ()) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        assert all(launcher.poll() is None for launcher in launchers), "a launcher ended"
        time.sleep(0.01)


class Machines:
    """Two launchers with the same command, which end with the block."""

    def __init__(self, command: Sequence[str | Path], restarts: int, folder: Path, python: Path) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "toy"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        python_path = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'training'}"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": python_path,
            "PYTHON_EXEC": str(python),
            "GLOO_SOCKET_IFNAME": "lo",
            **OWN_STORE,
        }
        self.logs = [folder / f"machine{i}.txt" for i in range(2)]
        self.launchers = []
        for log in self.logs:
            with open(log, "w") as stream:
                self.launchers.append(
                    subprocess.Popen(
                        [*torchrun, *rendezvous, "--max-restarts", str(restarts), *map(str, command)],
                        cwd=folder,
                        env=environment,
                        stdout=stream,
                        stderr=stream,
                    )
                )

    def find_worker(self, number: int) -> int:
        """The id of the training process of a machine."""
        launcher = self.launchers[number].pid
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
        return next(child for child, command in commands.items() if b"rescorer_training" in command)

    def wait(self) -> list[int]:
        return [launcher.wait(DEADLINE_S) for launcher in self.launchers]

    def read(self, number: int) -> str:
        return self.logs[number].read_text()

    def end(self) -> None:
        for number, launcher in enumerate(self.launchers):
            if launcher.poll() is None:
                for kill in (lambda: os.kill(self.find_worker(number), signal.SIGKILL), launcher.kill):  # noqa: B023
                    try:
                        kill()
                    except (OSError, StopIteration):
                        continue
                launcher.wait()


@pytest.fixture
def start(tmp_path, warm_programs):
    """Start machines with the same command, whose training processes start warm."""

    @contextmanager
    def start_machines(command: Sequence[str | Path], restarts: int = 0) -> Iterator[Machines]:
        machines = Machines(command, restarts, tmp_path, warm_programs / "python")
        try:
            yield machines
        finally:
            machines.end()

    return start_machines


def read_log(run: Path) -> list[dict]:
    """The reports of a run without times."""
    if not (run / "log.jsonl").exists():
        return []
    reports = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [{key: value for key, value in report.items() if key != "seconds"} for report in reports]


@pytest.fixture
def training(tmp_path):
    """Make the command that trains the network of a run."""
    train, validation = write_text(tmp_path)

    def make(run: Path, *options: str) -> list[str | Path]:
        texts = train, "--validation", validation, "-o", run
        return ["-m", "rescorer_training", "neural", *texts, *SIZES, *DURATION, *options]

    return make


def test_training_goes_on_after_a_machine_died(tmp_path, training, start):
    broken, restarted = tmp_path / "broken", tmp_path / "restarted"
    with start(training(broken)) as machines:
        wait_until(lambda: len(read_log(broken)) >= 3, machines.launchers)
        worker = machines.find_worker(1)
        machines.launchers[1].kill()  # as if its machine lost power
        os.kill(worker, signal.SIGKILL)
        assert 0 not in machines.wait()
        assert "start all of them again with --resume" in machines.read(0) + machines.read(1)
    assert len(read_log(broken)) < 12
    with start(training(broken, "--resume")) as machines:
        assert machines.wait() == [0, 0], machines.read(0)
    assert len(read_log(broken)) == 12

    with start(training(restarted), restarts=1) as machines:
        wait_until(lambda: len(read_log(restarted)) >= 3, machines.launchers)
        os.kill(machines.find_worker(0), signal.SIGKILL)
        assert machines.wait() == [0, 0], machines.read(0) + machines.read(1)
    assert read_log(restarted) == read_log(broken)  # they were interrupted after different steps


@pytest.fixture
def apart(tmp_path):
    """Make a command in which ``{rank}`` stands for the number of the process."""
    program = tmp_path / "apart.py"
    program.write_text(
        "import os, runpy, sys\n"
        "from rescorer_training.neural import checkpoint\n"
        "checkpoint.FILE_WAIT_S = 0.5\n"
        "sys.argv = [argument.replace('{rank}', os.environ['RANK']) for argument in sys.argv]\n"
        "runpy.run_module('rescorer_training', run_name='__main__')\n"
    )
    return lambda command: [program, *command[2:]]


def test_machines_that_share_no_folder_say_so(tmp_path, training, apart, start):
    with start(apart(training(tmp_path / "run{rank}"))) as machines:
        assert 0 not in machines.wait()
        assert "process 1 does not see validation.ids" in machines.read(0) + machines.read(1)


def test_machines_with_different_options_say_so(tmp_path, training, apart, start):
    command = apart(training(tmp_path / "run", "--epochs", "1{rank}"))
    with start(command) as machines:
        assert 0 not in machines.wait()
        for number in range(2):
            assert "start all processes with the same ones" in machines.read(number)

"""Fixtures for all tests; tests that this machine cannot run are skipped with the reason."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from rescorer.signals import GROUP_SIGNALS

if TYPE_CHECKING:
    from rescorer.client import Client
    from rescorer.pipeline import Rescorer
    from tests.support.object_storage import ObjectStorage
    from tests.support.servers import RunningServer

# There are many small tests: one thread each is faster than several that wait for one another, and other
# processes on the machine disturb it less. Must be set before torch is imported, here and in subprocesses.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The size of a terminal is not that of the tests' output; processes of pytest-xdist have these variables.
for variable in ("COLUMNS", "LINES"):
    os.environ.pop(variable, None)

# What a script starts in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
HANDLERS = {number: signal.getsignal(number) for number in GROUP_SIGNALS}

# Servers refuse a clients file that the group may write, which some systems make the default.
os.umask(0o022)

# No deadlines: a busy machine must not fail a test. CI draws the same examples in every run, so that a
# failure is caused by the change under test, and half of them. Local runs and `make fuzz` keep searching for
# new examples; `make test-fast` tries a few.
settings.register_profile("search", deadline=None, derandomize=False)
settings.register_profile("fast", deadline=None, max_examples=10)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("ci" if os.environ.get("CI") else "search")

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("RESCORER_DATA", REPOSITORY.parent / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without_data = pytest.mark.skip(reason=f"no data folder at {DATA} (set RESCORER_DATA)")
    without_gpu = pytest.mark.skip(reason="no CUDA device") if lacks_gpu(items) else None
    for item in items:
        if "data" in item.keywords and not DATA.is_dir():
            item.add_marker(without_data)
        if "gpu" in item.keywords and without_gpu is not None:
            item.add_marker(without_gpu)


def lacks_gpu(items: list[pytest.Item]) -> bool:
    """Whether a test needs a CUDA device and there is none."""
    if not any("gpu" in item.keywords for item in items):
        return False
    import torch  # takes seconds to import; tests that do not need it should not wait

    return not torch.cuda.is_available()


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Restore the handlers that commands install, which tests and fixtures run in this process.

    Also before the test: the fixtures of its module, which run before this one, may have run a command.
    """
    hook = sys.unraisablehook
    restore_handlers()
    yield
    restore_handlers()
    sys.unraisablehook = hook


def restore_handlers() -> None:
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def score_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cache the scores of language models in a folder of this session, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESCORER_CACHE", str(tmp_path_factory.mktemp("scores")))
        yield


@pytest.fixture(scope="session")
def warm_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of ``python``, ``rescorer`` and ``rescorer-train`` that start with torch imported."""
    from tests.support.warm_programs import run_warm_programs

    with run_warm_programs(tmp_path_factory.mktemp("warm")) as folder:
        yield folder


@pytest.fixture(scope="session")
def storage() -> Iterator[ObjectStorage]:
    """A storage with S3's protocol, on loopback."""
    from tests.support.object_storage import ObjectStorage

    server = ObjectStorage()
    yield server
    server.close()


@pytest.fixture
def bucket(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of an empty bucket, with all that clients need in the environment."""
    for name, value in storage.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    return storage.make_bucket()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny bundle of ``tiny_models.py``."""
    from tests.support.tiny_models import write_bundle

    return write_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def ngram_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny bundle without its neural model, which loads faster."""
    from tests.support.tiny_models import write_bundle

    return write_bundle(tmp_path_factory.mktemp("ngram"), neural=False)


@pytest.fixture(scope="module")
def reranker_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny bundle with the rerankers ``linear`` and ``mlp`` and weights of the same names."""
    from tests.support.tiny_models import write_bundle
    from tests.support.tiny_rerankers import add_tiny_rerankers

    return add_tiny_rerankers(write_bundle(tmp_path_factory.mktemp("rerankers")))


@pytest.fixture(scope="module")
def transformer_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny bundle with the reranker ``transformer`` and weights of the same name."""
    from tests.support.tiny_models import write_bundle
    from tests.support.tiny_rerankers import add_tiny_transformer

    return add_tiny_transformer(write_bundle(tmp_path_factory.mktemp("transformers")))


@pytest.fixture(scope="module")
def library(bundle: Path) -> Rescorer:
    """A ``Rescorer`` with the tiny bundle."""
    from rescorer.pipeline import Rescorer

    return Rescorer.load(bundle)


@pytest.fixture(scope="module")
def served_bundle(bundle: Path) -> Path:
    """The bundle of ``server``; test modules may define another."""
    return bundle


@pytest.fixture(scope="module")
def server_settings() -> dict[str, Any]:
    """Settings of ``server`` that are not the defaults; test modules may define others."""
    return {}


@pytest.fixture(scope="module")
def server(served_bundle: Path, server_settings: dict[str, Any]) -> Iterator[RunningServer]:
    """A server with its models loaded."""
    from tests.support.servers import run_server

    with run_server(served_bundle, **server_settings) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Client]:
    """A client of ``server``."""
    from rescorer.client import Client

    with Client(server.target) as client:
        client.wait_ready(10)
        yield client


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real lists and text; tests that use it are marked ``data``."""
    return DATA


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command in this process; returns its exit code, standard output and standard error."""
    from rescorer.cli import main

    monkeypatch.setenv("COLUMNS", "200")  # tables do not depend on the length of temporary paths

    def call(*arguments, command=None):
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        code = 0
        try:
            (command or main)()
        except SystemExit as stop:
            code = stop.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call

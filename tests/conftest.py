"""Fixtures every test may use; skips what this machine cannot run, with the reason."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from rescorer.pipeline import Rescorer

# Tests are many and small: one thread each is faster than several that wait for one another, and a busy
# machine does not stall them. Set before torch is imported, for this process and those it starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadlines: a busy machine is not a fault of ours. CI draws the same examples every time, so that main is
# red for its own changes only; people's runs go on searching.
settings.register_profile("search", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "search")

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("RESCORER_DATA", REPOSITORY.parent / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without_data = pytest.mark.skip(reason=f"no data folder at {DATA} (set RESCORER_DATA)")
    without_gpu = pytest.mark.skip(reason="no CUDA device") if needs_gpu_in_vain(items) else None
    for item in items:
        if "data" in item.keywords and not DATA.is_dir():
            item.add_marker(without_data)
        if "gpu" in item.keywords and without_gpu is not None:
            item.add_marker(without_gpu)


def needs_gpu_in_vain(items: list[pytest.Item]) -> bool:
    if not any("gpu" in item.keywords for item in items):
        return False
    import torch  # takes seconds; tests without it do not wait for it

    return not torch.cuda.is_available()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny bundle of ``tiny_models.py``."""
    from tests.support.tiny_models import write_bundle

    return write_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def ngram_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the same without its neural models: soon loaded."""
    from tests.support.tiny_models import write_bundle

    return write_bundle(tmp_path_factory.mktemp("ngram"), neural=False)


@pytest.fixture(scope="module")
def library(bundle: Path) -> Rescorer:
    """The library on the tiny bundle."""
    from rescorer.pipeline import Rescorer

    return Rescorer.load(bundle)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real lists and text; tests that use it are marked ``data``."""
    return DATA


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command in this process; gives its exit code, output and error output."""
    from rescorer.cli import main

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

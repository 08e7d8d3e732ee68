"""Fixtures: a folder of tiny bundles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.repositories import add_version


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def add(ngram_bundle, folder) -> Callable[[str], Path]:
    """Add a version to the folder."""
    folder.mkdir()
    return partial(add_version, folder, original=ngram_bundle)
